"""The config's own docstrings as help and as docs/config.md."""

from __future__ import annotations

from burnish.config.train_config import TrainConfig


def field_lines() -> list[tuple[str, str, str]]:
    """Key, default, meaning."""
    lines = []
    for name, field in TrainConfig.model_fields.items():
        default = "required" if field.is_required() else f"default {field.default!r}"
        lines.append((name, default, " ".join((field.description or "").split())))
    return lines


def config_page() -> str:
    """docs/config.md."""
    rows = "\n".join(f"| `{name}` | {default} | {meaning} |" for name, default, meaning in field_lines())
    return (
        "# Config\n\nThe keys of a `burnish train` file, and the fields of `PPOConfig` (all but the last seven). "
        "`burnish config` prints this list.\n(Made from the docstrings in `src/burnish/config/`.)\n\n"
        f"| key | default | meaning |\n|---|---|---|\n{rows}\n"
    )
