"""Config files: YAML in, a checked config out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from burnish.config.keys import DATA, PATH, marked
from burnish.config.model_config import ModelConfig
from burnish.config.stage_configs import TrainConfig
from burnish.data.rows import FILES
from burnish.errors import ConfigError, InputError
from burnish.rewards.parts import KINDS
from burnish.rewards.rules import RULES

MAX_CONFIG_BYTES = 1_000_000
ABOUT_THE_FOLDER = ("format", "stage")  # what a run folder's config.yaml has beside the settings
Config = TypeVar("Config", bound=ModelConfig)


def load_train_config(path: str | Path, overrides: list[str] | None = None) -> TrainConfig:
    """The config of `burnish train`."""
    return load_config(TrainConfig, path, overrides)


def load_config(kind: type[Config], path: str | Path, overrides: list[str] | None = None) -> Config:
    """Reads a YAML file and applies `key=value` overrides. Relative paths in the file are taken from its folder."""
    path = Path(path)
    values = read_mapping(path)
    if "stage" in values and values.pop("stage") != kind.stage:  # a run folder's own config
        raise InputError(f"{path} is the config of a run of another stage than `burnish {kind.command}` makes")
    values.pop("format", None)
    start_paths_at(path.parent, kind, values)
    apply_overrides(kind, values, overrides or [])
    start_paths_at(Path(), kind, values)
    try:
        return kind(**values)
    except ConfigError as error:
        lines = lines_of(path, overrides or [])
        raise ConfigError(error.problems, str(path) + (" and its overrides" if overrides else ""), lines) from None


def read_mapping(path: Path) -> dict[str, Any]:
    """The settings of a YAML file."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise InputError(f"{path} is larger than {MAX_CONFIG_BYTES} bytes; that is not a config")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read the config {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"the config {path} is not UTF-8 text (byte {error.start})") from None
    values = parse(text, str(path))
    if not isinstance(values, dict):
        found = "empty" if values is None else f"a {type(values).__name__}"
        raise InputError(f"the config {path} is {found}; it must be a mapping of `key: value` lines")
    return values


def lines_of(path: Path, overrides: Sequence[str] = ()) -> dict[str, int]:
    """Where each key of a file stands, `section.key` for those of a section; not those that an override replaced."""
    lines: dict[str, int] = {}
    node = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        lines[key.value] = key.start_mark.line + 1
        for inner, _ in value.value if isinstance(value, yaml.MappingNode) else ():
            lines[f"{key.value}.{inner.value}"] = inner.start_mark.line + 1
    replaced = {override.partition("=")[0] for override in overrides}
    return {key: line for key, line in lines.items() if not replaced & {key, key.partition(".")[0]}}


def apply_overrides(kind: type[ModelConfig], values: dict[str, Any], overrides: list[str]) -> None:
    """`key=value` from the command line; a text key takes the value as it stands, any other as YAML."""
    text_keys = {name for name, field in kind.model_fields.items() if field.annotation in (str, str | None)}
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key or key.startswith("-"):
            raise InputError(
                f"override {override!r} is not of the form key=value; write it like steps=20, without dashes"
            )
        as_text = key in text_keys and value != "null"
        values[key] = value if as_text else parse(value, f"override {override!r}")


def start_paths_at(folder: Path, kind: type[ModelConfig], values: dict[str, Any]) -> None:
    """Writes out what names something on disk, so that the run folder's copy of the config stays true anywhere."""
    data = marked(kind, DATA)
    for key in (*data, *marked(kind, PATH)):
        if isinstance(values.get(key), str) and values[key]:
            values[key] = _from(folder, values[key], is_data=key in data)
    for parts in (values.get("reward"), values.get("eval_reward")):
        for part in parts if isinstance(parts, list) else []:
            own = KINDS.get(str(part.get("kind"))) if isinstance(part, dict) else None
            for key in own.path_keys if own else ():
                if isinstance(part.get(key), str):
                    part[key] = _from(folder, part[key], is_data=True)
                elif isinstance(part.get(key), list):
                    part[key] = [_from(folder, path, is_data=True) for path in map(str, part[key])]


def _from(folder: Path, value: str, is_data: bool) -> str:
    """A path if it is one: a data file by its ending, anything else if it exists; names stay as they are."""
    file, colon, name = value.rpartition(":") if ".py:" in value else (value, "", "")
    if value in RULES:
        return value
    is_path = colon or (is_data and Path(file).suffix in FILES) or (folder / file).exists()
    return f"{(folder / file).resolve()}{colon}{name}" if is_path else value


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that is given twice in one mapping: the second would silently win."""


def _mapping_without_duplicates(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: dict[Any, int] = {}
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise InputError(f"line {key_node.start_mark.line + 1}: {key!r} is not a key; keys are plain words")
        line = key_node.start_mark.line + 1
        if key in seen:
            raise InputError(f"key {key!r} is given twice, on lines {seen[key]} and {line}; remove one of them")
        seen[key] = line
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping_without_duplicates)


def parse(text: str, source: str) -> Any:
    """YAML without aliases (a few of them can stand for gigabytes) and without duplicate keys."""
    try:
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text, Loader=yaml.SafeLoader)):
            raise InputError("an alias (*name) is not allowed in a config; write the value out")
        return yaml.load(text, Loader=_StrictLoader)
    except RecursionError:
        raise InputError(f"{source}: nested too deeply") from None
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that does not exist, for example
        mark = getattr(error, "problem_mark", None)
        where = f"{source}:{mark.line + 1}" if mark else source
        raise InputError(f"{where}: not valid YAML: {getattr(error, 'problem', None) or error}") from None


def folder_inside(root: Path, name: str) -> Path:
    """A folder in the root, and not by a link somewhere else."""
    folder = root / name
    if not folder.resolve().is_relative_to(root.resolve()):
        raise InputError(f"{folder} leads out of {root}; choose another run_name")
    return folder
