"""`burnish demo`: the whole of PPO on a real model in minutes, with nothing but this machine."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.base_setup import EMBEDDED_NAME
from burnish.config import PPOConfig
from burnish.data import Prompts, bundled_sentiment, bundled_tldr
from burnish.errors import InputError, nearest


@dataclass(frozen=True)
class DemoTask:
    """A config and the bundled prompts that go with it."""

    config: PPOConfig
    prompts: Prompts


def demo_task(name: str, **overrides: object) -> DemoTask:
    """The demo's settings by task name; `overrides` replace single settings."""
    if name not in TASKS:
        raise InputError(f"there is no task {name!r}, only {' and '.join(TASKS)}{nearest(name, TASKS)}")
    settings, prompts = TASKS[name]
    return DemoTask(PPOConfig(**(COMMON | settings | overrides)), prompts())


COMMON: dict[str, object] = {
    "model_name": EMBEDDED_NAME,
    "lora_layers": 10,
    "lora_dropout": 0.0,
    "batch_size": 32,
    "mini_batch_size": 16,
    "epochs": 2,
    "gamma": 1.0,
    "lam": 1.0,  # the whole return: in so few steps the value model cannot be trusted yet
    "prompt_cache_mb": 1600,  # room for all bundled posts
    "value_learning_rate": 1e-3,
}
TASKS = {
    "tldr": (
        {
            "reward": "tldr",
            "steps": 12,
            "max_new_tokens": 32,
            "temperature": 0.7,
            "kl_coef": 0.01,
            "learning_rate": 1.5e-3,
            "chat_template": True,
            "system_prompt": "Tell in one short sentence what happened in the post.",
        },
        bundled_tldr,
    ),
    "sentiment": (
        {
            "reward": "sentiment",
            "steps": 10,
            "max_new_tokens": 20,
            "kl_coef": 0.02,
            "learning_rate": 2e-3,
            # Openings end in any word: peft could not find where a response-scope adapter begins. And they are short.
            "adapter_scope": "sequence",
        },
        bundled_sentiment,
    ),
}
