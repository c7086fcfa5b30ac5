"""The configs' own docstrings as help; docs/make_tables.py makes docs/config.md of them."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

import yaml

from burnish.config.model_config import ModelConfig
from burnish.config.ppo_config import PPOConfig
from burnish.config.recipes import RECIPES
from burnish.config.rollout_config import ServedRollout
from burnish.config.stage_configs import RewardModelConfig, RunConfig, SFTConfig, SupervisedConfig, TrainConfig
from burnish.errors import InputError, nearest

SECTIONS: dict[str, tuple[type, ...]] = {
    "Every stage: the model": (ModelConfig,),
    "Every stage: files": (RunConfig,),
    "`burnish train`: PPO": (PPOConfig, TrainConfig),
    "`burnish train`: `rollout`, a server that generates": (ServedRollout,),
    "`burnish sft` and `burnish reward`: training": (SupervisedConfig,),
    "`burnish sft`": (SFTConfig,),
    "`burnish reward`": (RewardModelConfig,),
}
"""Which classes say what: a key stands in the section of the class that brings it."""

Line = tuple[str, str, str]


def field_lines() -> dict[str, list[Line]]:
    """By section: key, default (as one writes it in YAML), meaning and choices."""
    return {title: [line for c in classes for line in _own_lines(c)] for title, classes in SECTIONS.items()}


def _own_lines(config: Any) -> list[Line]:
    inherited = {name: own for base in config.__bases__ for name, own in getattr(base, "model_fields", {}).items()}
    lines = []
    for name, field in config.model_fields.items():
        if name in inherited and inherited[name].description == field.description:
            continue
        default = "required" if field.is_required() else as_yaml(field.get_default(call_default_factory=True))
        meaning = " ".join((field.description or "").split())
        choices = [c for c in _choices(field.annotation) if f"`{c}`" not in meaning]
        said = f" One of: {', '.join(_choices(field.annotation))}." if choices else ""
        within = "rollout." if config is ServedRollout else ""
        lines.append((within + name, default, meaning + said))
    return lines


def as_yaml(value: Any) -> str:
    """As one writes it in a config."""
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("\n...\n").strip()


def _choices(annotation: Any) -> list[str]:
    return [str(c) for c in get_args(annotation)] if get_origin(annotation) is Literal else []


def recipe_lines(name: str) -> str:
    """What a recipe is and sets, as it could stand in a config."""
    if name not in RECIPES:
        raise InputError(f"there is no recipe {name!r}{nearest(name, RECIPES)}; there are {', '.join(RECIPES)}")
    recipe = RECIPES[name]
    lines = [f"# {name}: {recipe.meaning}", *(f"{key}: {as_yaml(value)}" for key, value in recipe.keys.items())]
    return "\n".join(lines if recipe.keys else [*lines, "# It sets nothing."])
