"""The fast tests in every Python from 3.11 on that this machine has, each in an environment of its own.

python tests/pythons.py            # installs everything, torch too: some GB for each
python tests/pythons.py --light    # without torch: every module compiles, and the commands that need no torch work
python tests/pythons.py --only 3.12
python tests/pythons.py --oldest   # in the oldest of them with our lower bounds; the core's tests too
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
FAST = "tests/test_maths.py tests/config tests/data tests/sa_pairs tests/system tests/cli/test_init.py".split()
CORE = """tests/models tests/ppo/test_ppo_trainer.py tests/ppo/test_kl.py tests/ppo/test_training.py
tests/decoder/test_shared_base.py tests/runs/test_formats.py""".split()
OF_THE_TESTS = ["gguf", "vaderSentiment", "datasets", "pytest"]
SHOWN = ("torch", "transformers", "peft", "pydantic", "typer")
NEED_TORCH = ("torch", "peft", "transformers", "safetensors")
COMMANDS = ("--help", "--version", "init", "init blank", "init preferences", "config kl_coef", "config --recipe rloo")


def interpreters() -> dict[str, str]:
    """By version: those on the path, of pyenv and of uv."""
    folders = [*Path.home().glob(".pyenv/versions/*/bin"), *Path.home().glob(".local/share/uv/python/*/bin")]
    path = os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")])  # pyenv's shims may lead nowhere
    found = {version: shutil.which(f"python{version}", path=path) for version in VERSIONS}
    return {version: file for version, file in found.items() if file is not None}


def requirements(light: bool, oldest: bool) -> list[str]:
    """Ours, with those of the tests; `light` leaves out what needs torch, `oldest` takes our lower bounds."""
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    if oldest:
        return [re.sub(r">=([\w.]+).*", r"==\1", own) for own in needed] + OF_THE_TESTS
    if not light:
        return [f"{ROOT}[demo,dev]"]
    return [own for own in needed if re.split(r"[<>=\[ ]", own)[0] not in NEED_TORCH]


def check(python: str, light: bool, oldest: bool) -> bool:
    with tempfile.TemporaryDirectory(prefix="burnish-python-") as place:
        subprocess.run([python, "-m", "venv", place], check=True)
        own = Path(place) / ("Scripts" if os.name == "nt" else "bin") / "python"
        pip = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        needed = requirements(light, oldest)
        if subprocess.run([*pip, *needed]).returncode:
            print("  cannot be installed here")
            return False
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"}
        if not light:
            listed = subprocess.run([own, "-m", "pip", "freeze"], capture_output=True, text=True).stdout.splitlines()
            print("  with", ", ".join(line for line in listed if line.split("==")[0] in SHOWN), flush=True)
            tests = FAST + CORE if oldest else FAST
            return subprocess.run([own, "-m", "pytest", *tests], cwd=ROOT, env=environment).returncode == 0
        environment["PYTHONPYCACHEPREFIX"] = place
        commands = [["-W", "error", "-m", "compileall", "-q", str(ROOT / "src"), str(ROOT / "tests")]]
        commands += [["-m", "burnish", *command.split()] for command in COMMANDS]
        for command in commands:
            done = subprocess.run([own, *command], cwd=place, env=environment, capture_output=True, text=True)
            if done.returncode:
                print(f"  {' '.join(command)}\n{done.stdout}{done.stderr}")
                return False
    return True


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--light", action="store_true")
    options.add_argument("--only", choices=VERSIONS)
    options.add_argument("--oldest", action="store_true")
    chosen = options.parse_args()
    found = interpreters()
    failed = []
    versions = VERSIONS[:1] if chosen.oldest else VERSIONS
    for version in [chosen.only] if chosen.only else versions:
        if version not in found:
            print(f"Python {version}: not on this machine", flush=True)
            continue
        print(f"Python {version}: {found[version]}", flush=True)
        passed = check(found[version], chosen.light, chosen.oldest)
        print(f"Python {version}: {'passed' if passed else 'FAILED'}", flush=True)
        failed += [] if passed else [version]
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
