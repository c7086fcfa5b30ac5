"""`burnish demo`: the whole story on a real model in minutes, with nothing but this machine."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from rich.console import Console

from burnish.config.files import load_train_config, read_mapping
from burnish.config.pipeline_config import load_pipeline_config
from burnish.errors import InputError, nearest
from burnish.runs.run import Run
from burnish.stages.pipeline import run_pipeline
from burnish.stages.stage import STAGES

TASKS = {"tldr": "demo.yaml", "sentiment": "sentiment.yaml"}


def run_demo(console: Console, task: str, steps: int | None = None, seed: int = 0, run_dir: str | Path = "runs") -> Run:
    """`tldr`: SFT, reward model, PPO, verdict, report. `sentiment`: PPO alone against a rule."""
    if task not in TASKS:
        raise InputError(f"there is no task {task!r}, only {' and '.join(TASKS)}{nearest(task, TASKS)}")
    with as_file(files("burnish.data") / "texts" / TASKS[task]) as file:
        if task == "tldr":
            changes = [f"run_dir={run_dir}", f"model.seed={seed}", *([f"ppo.steps={steps}"] if steps else [])]
            return run_pipeline(load_pipeline_config(file, changes), console)
        changes = [f"run_dir={run_dir}", f"seed={seed}", *([f"steps={steps}"] if steps else [])]
        config = load_train_config(file, changes)
    return STAGES["ppo"].run(config, console)


def demo_settings(task: str) -> dict[str, Any]:
    """What a task is made of, as its file has it."""
    with as_file(files("burnish.data") / "texts" / TASKS[task]) as file:
        return read_mapping(file)
