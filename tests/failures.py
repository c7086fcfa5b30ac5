"""Ways to hurt a run: killed at any point, its files damaged. For test_reliability.py and benchmarks/torture.py."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
from rich.console import Console

import burnish.stages.ppo as _  # noqa: F401
from burnish import stages
from burnish.config import load_train_config
from burnish.stages.stage import STAGES
from tiny import tiny_model, tiny_tokenizer

CONFIG = """
model_name: model
prompts: prompts.jsonl
reward: judge.py:score
num_eval_prompts: 4
batch_size: 4
mini_batch_size: 2
steps: 6
epochs: 2
max_new_tokens: 6
lora_r: 4
learning_rate: 0.001
value_learning_rate: 0.001
adaptive_kl_target: 1.0
save_every: 2
samples_per_step: 1
seed: 1
"""
PIPELINE = """
model: {model_name: model, max_new_tokens: 6, lora_r: 4, save_every: 2}
sft: {demonstrations: demonstrations.jsonl, batch_size: 2, learning_rate: 0.01, num_eval_prompts: 2}
reward_model:
  {preferences: preferences.jsonl, batch_size: 2, learning_rate: 0.01, num_eval_prompts: 2, num_centring_prompts: 4}
ppo: {prompts: prompts.jsonl, num_eval_prompts: 4, batch_size: 4, steps: 3, save_every: 1}
best_of: 2
"""
JUDGE = "def score(prompts, responses):\n    return [sum(map(ord, r)) % 10 / 10 for r in responses]\n"


def make_workplace(folder: Path, config: str = CONFIG) -> Path:
    """A folder with a tiny model, prompts, a reward function and a config."""
    folder.mkdir(parents=True, exist_ok=True)
    tiny_model().save_pretrained(folder / "model")
    tiny_tokenizer().save_pretrained(folder / "model")
    rows = [{"prompt": f"number {i}:"} for i in range(14)]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "judge.py").write_text(JUDGE)
    (folder / "config.yaml").write_text(config)
    return folder


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return " ".join((self.out + " " + self.err).split())


class ForkServer:
    """Runs burnish commands in forks of one prepared process."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        scratch.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "COLUMNS": "100",
        }
        command = [sys.executable, str(Path(__file__).with_name("fork_server.py"))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._count = 0
        self._files: dict[int, tuple[Path, Path]] = {}

    def start(self, folder: Path, *arguments: Any, **kill: Any) -> int:
        """Begins a command, which may get a signal at some point (see fork_server.py); gives its process id."""
        self._count += 1
        files = tuple(self.scratch / f"{self._count}.{kind}" for kind in ("out", "err"))
        order = {
            "folder": str(folder),
            "arguments": list(map(str, arguments)),
            "stdout": str(files[0]),
            "stderr": str(files[1]),
        }
        pid = self._ask(order | kill)["pid"]
        self._files[pid] = files  # type: ignore[assignment]
        return pid

    def wait(self, pid: int) -> Outcome:
        code = self._ask({"wait": pid})["code"]
        out, err = self._files.pop(pid)
        return Outcome(code, out.read_text(errors="replace"), err.read_text(errors="replace"))

    def run(self, folder: Path, *arguments: Any, **kill: Any) -> Outcome:
        return self.wait(self.start(folder, *arguments, **kill))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def state_hash(run: Path, same_saves: bool = True) -> str:
    """Adapters, heads, optimizers, KL coefficient, counters and random numbers after the last step, as one hash; and
    which step was best, if both runs save at the same steps.
    """
    (folder,) = [sorted((run / "checkpoints").glob("step-*"))[-1]]
    values = json.loads((folder / "values.json").read_text())
    for incidental in ("identity", "config") if same_saves else ("identity", "config", "saver"):
        values.pop(incidental)
    tensors = (folder / "tensors.safetensors").read_bytes()
    return hashlib.sha256(tensors + json.dumps(values, sort_keys=True).encode()).hexdigest()


def log_of(run: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Metrics without wall clock, and samples; a torn line raises."""

    def rows(name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (run / name).read_text().splitlines()]

    metrics = [{k: v for k, v in row.items() if not k.startswith("seconds")} for row in rows("metrics.jsonl")]
    return metrics, rows("samples.jsonl")


def killed_and_resumed(
    fork_server: ForkServer, folder: Path, name: str, kills: list[tuple[int, str]], *settings: str
) -> Counter:
    """Trains with a kill at each point in turn, resumes after the last, and gives the kills that hit, by where."""
    hits: Counter[str] = Counter()
    arguments: tuple[Any, ...] = ("train", "config.yaml", f"run_name={name}", *settings)
    for kill_at, where in kills:
        outcome = fork_server.run(folder, *arguments, kill_at=kill_at, where=where)
        hits[where] += outcome.code == -9
        if outcome.code not in (-9, 0):
            raise AssertionError(outcome.text)
    final = fork_server.run(folder, *arguments)
    assert final.code == 0, final.text
    return hits


def corrupt(file: Path, draw: random.Random) -> str:
    """Truncates it, flips a byte of it, or removes it."""
    kind = draw.choice(["truncate", "flip", "remove"])
    content = bytearray(file.read_bytes())
    if kind == "remove":
        file.unlink()
    elif kind == "truncate":
        file.write_bytes(content[: draw.randrange(len(content))])
    else:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        file.write_bytes(content)
    return kind


def soak(folder: Path, steps: int) -> tuple[float, list[int]]:
    """A run of the command line's own kind in this process, saved after every step: by how much its memory grows from
    its first third on, and the file handles it holds after each step.
    """
    sizes: list[int] = []
    handles: list[int] = []
    process, log_step = psutil.Process(), stages.ppo.log_step

    def measured(*step: Any) -> None:
        log_step(*step)
        sizes.append(process.memory_info().rss)
        handles.append(process.num_fds())

    settings = [f"steps={steps}", "run_name=soak", "save_every=1", "lr_schedule=constant", "max_kl=null"]
    with contextlib.chdir(folder), mock.patch.object(stages.ppo, "log_step", measured):
        config = load_train_config("config.yaml", settings)
        STAGES["ppo"].work(config, STAGES["ppo"].load(config), Console(quiet=True))
    return sizes[-1] / sizes[steps // 3] - 1, handles


def copy_of(run: Path, name: str) -> Path:
    return Path(shutil.copytree(run, run.parent / name))


def interrupted(fork_server: ForkServer, folder: Path, name: str, kill_at: int = 13) -> Path:
    """A run that was killed while it wrote its second checkpoint or so."""
    assert fork_server.run(folder, "train", "config.yaml", f"run_name={name}", kill_at=kill_at, where="save").code == -9
    return folder / "runs" / name


def waiting_for(file: Path, lines: int = 1) -> None:
    """Another process writes it."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if file.is_file() and len(file.read_text().splitlines()) >= lines:
            return
        time.sleep(0.05)
    raise AssertionError(f"{file} did not come")
