"""`burnish demo`: the whole story on a real model in minutes, with nothing but this machine."""

from __future__ import annotations

import time
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from rich.console import Console

from burnish.base_setup.embedded import require_embedded
from burnish.config import PPOConfig, TrainConfig
from burnish.config.files import folder_inside, read_mapping
from burnish.config.pipeline_config import pipeline_config
from burnish.errors import InputError, nearest
from burnish.runs.run import Run
from burnish.stages.pipeline import run_pipeline
from burnish.stages.stage import STAGES

TASKS = {"tldr": "demo.yaml", "sentiment": "sentiment.yaml"}
# What a value model needs to know something after so few steps.
CRITIC = {"value_learning_rate": 0.001, "value_epochs": 4, "value_warmup_steps": 1, "value_warmup_epochs": 8}


def run_demo(
    console: Console,
    task: str,
    steps: int | None = None,
    seed: int = 0,
    run_dir: str | Path = "runs",
    recipe: str | None = None,
) -> Run:
    """`tldr`: SFT, reward model, PPO, verdict, report. `sentiment`: PPO alone against a rule. `recipe` is the file's
    unless given.
    """
    if task not in TASKS:
        raise InputError(f"there is no task {task!r}, only {' and '.join(TASKS)}{nearest(task, TASKS)}")
    settings = demo_settings(task)
    ppo = settings["ppo"] if task == "tldr" else settings
    ppo |= {"steps": steps} if steps else {}
    if recipe is not None:
        ppo = _by_recipe(ppo, recipe)
    require_embedded()
    if task == "tldr":
        settings |= {"model": settings["model"] | {"seed": seed}, "ppo": ppo, "run_dir": str(run_dir)}
        folder = folder_inside(Path(run_dir), time.strftime("%Y%m%d-%H%M%S"))
        return run_pipeline(pipeline_config(settings, folder), console)
    return STAGES["ppo"].run(TrainConfig(**ppo | {"seed": seed, "run_dir": str(run_dir)}), console)


def _by_recipe(ppo: dict[str, Any], recipe: str) -> dict[str, Any]:
    """The same with another recipe, and what belongs to that: nothing of a value model that it does not have."""
    about_credit = ("lam", "gamma", "baseline", "responses_per_prompt")
    rest = {key: own for key, own in ppo.items() if key not in about_credit and not key.startswith("value_")}
    rest["recipe"] = recipe
    if not PPOConfig(recipe=recipe).has_critic:
        return rest
    whole_returns = {"gamma": 1.0, "lam": 1.0} if recipe == "ppo" else {}
    return rest | whole_returns | (CRITIC if rest["steps"] > 1 else {})


def demo_settings(task: str) -> dict[str, Any]:
    """What a task is made of, as its file has it."""
    with as_file(files("burnish.data") / "texts" / TASKS[task]) as file:
        return read_mapping(file)
