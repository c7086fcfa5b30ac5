"""`burnish demo`: the whole story on a real model in minutes, with nothing but this machine."""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from burnish.base_setup import EMBEDDED_NAME
from burnish.config import TrainConfig
from burnish.config.pipeline_config import PipelineConfig, pipeline_config
from burnish.data import load_split
from burnish.errors import InputError, nearest
from burnish.runs import Run

TASKS = ("tldr", "sentiment")
MODEL: dict[str, Any] = {
    "model_name": EMBEDDED_NAME,
    "lora_layers": 10,
    "lora_dropout": 0.0,
    "prompt_cache_mb": 1600,  # room for all bundled posts
}
PPO: dict[str, Any] = {
    "batch_size": 32,
    "mini_batch_size": 16,
    "epochs": 2,
    "gamma": 1.0,
    "lam": 1.0,  # the whole return: in so few steps the value model cannot be trusted yet
    "value_learning_rate": 1e-3,
}
SENTIMENT: dict[str, Any] = {
    "prompts": "bundled:sentiment",
    "reward": "sentiment",
    "steps": 10,
    "max_new_tokens": 20,
    "kl_coef": 0.02,
    "learning_rate": 2e-3,
    # Openings end in any word: peft could not find where a response-scope adapter begins. And they are short.
    "adapter_scope": "sequence",
}
TLDR: dict[str, Any] = {
    "best_of": 2,
    "model": MODEL
    | {
        "max_new_tokens": 40,
        "chat_template": True,
        "system_prompt": "Tell in one short sentence what happened in the post.",
    },
    "sft": {"demonstrations": "bundled:tldr", "epochs": 1, "batch_size": 8, "learning_rate": 2e-3},
    "reward_model": {
        "preferences": "bundled:tldr",
        "max_new_tokens": 60,  # the longest of the rejected answers
        "epochs": 1,
        "batch_size": 8,
        "learning_rate": 1e-3,
    },
    # One pass over large batches: a learned reward is noisy, and a large batch decodes at a better rate.
    "ppo": PPO
    | {
        "prompts": "bundled:tldr",
        "eval_reward": "tldr",
        "steps": 6,
        "batch_size": 64,
        "epochs": 1,
        "temperature": 0.7,
        "kl_coef": 0.03,
        "learning_rate": 1e-3,
        "lr_schedule": "constant",
    },
}


def run_demo(console: Console, task: str, steps: int | None = None, seed: int = 0, run_dir: str | Path = "runs") -> Run:
    """`tldr`: SFT, reward model, PPO, verdict, report. `sentiment`: PPO alone against a rule."""
    if task not in TASKS:
        raise InputError(f"there is no task {task!r}, only {' and '.join(TASKS)}{nearest(task, TASKS)}")
    if task == "tldr":
        from burnish.stages.pipeline import run_pipeline

        return run_pipeline(tldr_pipeline(run_dir, steps, seed), console)
    from burnish.stages.ppo import run_ppo

    config = sentiment_config(**({"steps": steps} if steps else {}), seed=seed)
    return run_ppo(config, load_split("prompts", config.prompts)[0], run_dir, None, console)


def tldr_pipeline(run_dir: str | Path = "runs", steps: int | None = None, seed: int = 0) -> PipelineConfig:
    values = copy.deepcopy(TLDR)
    values["model"]["seed"] = seed
    if steps is not None:
        values["ppo"]["steps"] = steps
    return pipeline_config(values, Path(run_dir) / time.strftime("%Y%m%d-%H%M%S"), "the demo")


def sentiment_config(**overrides: object) -> TrainConfig:
    return TrainConfig(**(MODEL | PPO | SENTIMENT | overrides))
