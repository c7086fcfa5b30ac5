"""The file that `burnish train` reads: a PPOConfig, and where prompts come from and results go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, field_validator

from burnish.config.ppo_config import PPOConfig
from burnish.errors import ConfigError, InputError
from burnish.rewards import RULES

MAX_CONFIG_BYTES = 1_000_000


class TrainConfig(PPOConfig):
    """Config of `burnish train`: all PPO settings, and the run's files.

    Relative paths in a config file start at the file's folder; those in overrides, and run_dir, where the command runs.
    """

    prompts: str
    """Prompts to train on: a `.jsonl` file (one object per line) or a `.txt` file (one prompt per line).
    A relative path in a config file starts at that file's folder (so do eval_prompts, reward and model_name)."""
    prompt_field: str = "prompt"
    """Key of the prompt in each JSON object."""
    eval_prompts: str | None = None
    """Held-out prompts in a file of their own. Without it, `num_eval_prompts` are set aside from `prompts`."""
    num_eval_prompts: int = Field(16, ge=0)
    """Held-out prompts to measure before and after on; 0 measures nothing, an interval needs 2."""
    run_dir: str = "runs"
    """Folder that run folders are created in."""
    run_name: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    """Name of this run's folder. Unset: the time of its start."""
    samples_per_step: int = Field(2, ge=0)
    """Responses per step that are written to samples.jsonl with all their per-token columns."""

    @field_validator("num_eval_prompts")
    @classmethod
    def _interval_exists(cls, value: int) -> int:
        if value == 1:
            raise ValueError("one held-out prompt gives no interval; use 0, or 2 and more")
        return value


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping: the second would silently win."""


def _mapping_without_duplicates(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: dict[Any, int] = {}
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise InputError(f"line {key_node.start_mark.line + 1}: {key!r} is not a key; keys are plain words")
        line = key_node.start_mark.line + 1
        if key in seen:
            raise InputError(f"key {key!r} stands twice, on lines {seen[key]} and {line}; remove one of them")
        seen[key] = line
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping_without_duplicates)


def load_train_config(path: str | Path, overrides: list[str] | None = None) -> TrainConfig:
    """Reads a YAML file and applies `key=value` overrides. Relative paths in the file are taken from its folder."""
    path = Path(path)
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise InputError(f"{path} is larger than {MAX_CONFIG_BYTES} bytes; that is not a config")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read the config {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"the config {path} is not UTF-8 text (byte {error.start})") from None
    values = _parse(text, str(path))
    if not isinstance(values, dict):
        found = "empty" if values is None else f"a {type(values).__name__}"
        raise InputError(f"the config {path} is {found}; it must be a mapping of `key: value` lines")
    _start_paths_at(path.parent, values)
    raw_text = {name for name, field in TrainConfig.model_fields.items() if field.annotation in (str, str | None)}
    for override in overrides or []:
        key, equals, value = override.partition("=")
        if not equals or not key or key.startswith("-"):
            raise InputError(
                f"override {override!r} is not of the form key=value; write it like steps=20, without dashes"
            )
        as_text = key in raw_text and value != "null"
        values[key] = value if as_text else _parse(value, f"override {override!r}")
    _make_paths_absolute(values)
    try:
        return TrainConfig(**values)
    except ConfigError as error:
        raise ConfigError(error.problems, source=str(path) + (" and its overrides" if overrides else "")) from None


def _start_paths_at(folder: Path, values: dict[Any, Any]) -> None:
    """Relative paths in a config file start at the file's own folder."""
    for key in ("prompts", "eval_prompts", "reward", "model_name"):
        value = values.get(key)
        if not isinstance(value, str):
            continue
        is_file = key.endswith("prompts") or (key == "reward" and ".py:" in value)
        is_folder = value not in RULES and (folder / value).is_dir()
        if is_file or is_folder:
            values[key] = str(folder / value)


def _make_paths_absolute(values: dict[Any, Any]) -> None:
    """What names something on disk is written out, so that the run folder's copy of the config stays true anywhere."""
    for key in ("prompts", "eval_prompts", "reward", "model_name"):
        value = values.get(key)
        if not isinstance(value, str) or value in RULES:
            continue
        file, colon, function = value.rpartition(":") if key == "reward" and ".py:" in value else (value, "", "")
        if key.endswith("prompts") or Path(file).exists():
            values[key] = f"{Path(file).resolve()}{colon}{function}"


def _parse(text: str, source: str) -> Any:
    try:
        return yaml.load(text, Loader=_StrictLoader)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that does not exist, for example
        mark = getattr(error, "problem_mark", None)
        where = f"{source}:{mark.line + 1}" if mark else source
        raise InputError(f"{where}: not valid YAML: {getattr(error, 'problem', None) or error}") from None
