"""The configs' own docstrings as help and as docs/config.md."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

import yaml

from burnish.config.model_config import ModelConfig
from burnish.config.ppo_config import PPOConfig
from burnish.config.recipes import RECIPES
from burnish.config.stage_configs import RewardModelConfig, RunConfig, SFTConfig, SupervisedConfig, TrainConfig
from burnish.errors import InputError, nearest

SECTIONS: dict[str, tuple[type, ...]] = {
    "Every stage: the model": (ModelConfig,),
    "Every stage: files": (RunConfig,),
    "`burnish train`: PPO": (PPOConfig, TrainConfig),
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
        default = "required" if field.is_required() else _as_yaml(field.get_default(call_default_factory=True))
        meaning = " ".join((field.description or "").split())
        choices = [c for c in _choices(field.annotation) if f"`{c}`" not in meaning]
        said = f" One of: {', '.join(_choices(field.annotation))}." if choices else ""
        lines.append((name, default, meaning + said))
    return lines


def _as_yaml(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("\n...\n").strip()


def _choices(annotation: Any) -> list[str]:
    return [str(c) for c in get_args(annotation)] if get_origin(annotation) is Literal else []


def recipe_lines(name: str) -> str:
    """What a recipe is and sets, as it could stand in a config."""
    if name not in RECIPES:
        raise InputError(f"there is no recipe {name!r}{nearest(name, RECIPES)}; there are {', '.join(RECIPES)}")
    recipe = RECIPES[name]
    lines = [f"# {name}: {recipe.meaning}", *(f"{key}: {_as_yaml(value)}" for key, value in recipe.keys.items())]
    return "\n".join(lines if recipe.keys else [*lines, "# It sets nothing."])


def recipes_table() -> str:
    """For docs/recipes.md."""
    rows = []
    for name, recipe in RECIPES.items():
        keys = ", ".join(f"`{key}: {_as_yaml(value)}`" for key, value in recipe.keys.items())
        rows.append(f"| `{name}` | {recipe.meaning} | {keys or '-'} |")
    return "\n".join(["| recipe | what it is | what it sets |", "|---|---|---|", *rows])


def config_page() -> str:
    """docs/config.md."""
    tables = []
    for title, lines in field_lines().items():
        rows = "\n".join(f"| `{name}` | {default} | {meaning} |" for name, default, meaning in lines)
        tables.append(f"## {title}\n\n| key | default | meaning |\n|---|---|---|\n{rows}\n")
    return (
        "# Config\n\nThe keys of the files that `burnish train`, `sft` and `reward` read. A pipeline's file has them\n"
        "in sections ([feedback.md](feedback.md)). `burnish config` prints this list.\n"
        "(Made from the docstrings in `src/burnish/config/`.)\n\n" + "\n".join(tables)
    )
