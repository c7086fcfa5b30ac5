"""The config's own docstrings as help and as docs/config.md."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

import yaml

from burnish.config.train_config import TrainConfig


def field_lines() -> list[tuple[str, str, str]]:
    """Key, default (as one writes it in YAML), meaning and choices."""
    lines = []
    for name, field in TrainConfig.model_fields.items():
        default = "required" if field.is_required() else _as_yaml(field.default)
        meaning = " ".join((field.description or "").split())
        choices = [c for c in _choices(field.annotation) if f"`{c}`" not in meaning]
        lines.append(
            (name, default, meaning + (f" One of: {', '.join(_choices(field.annotation))}." if choices else ""))
        )
    return lines


def _as_yaml(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("\n...\n").strip()


def _choices(annotation: Any) -> list[str]:
    return [str(c) for c in get_args(annotation)] if get_origin(annotation) is Literal else []


def config_page() -> str:
    """docs/config.md."""
    rows = "\n".join(f"| `{name}` | {default} | {meaning} |" for name, default, meaning in field_lines())
    return (
        "# Config\n\nThe keys of a `burnish train` file, and the fields of `PPOConfig` (all but the last seven). "
        "`burnish config` prints this list.\n(Made from the docstrings in `src/burnish/config/`.)\n\n"
        f"| key | default | meaning |\n|---|---|---|\n{rows}\n"
    )
