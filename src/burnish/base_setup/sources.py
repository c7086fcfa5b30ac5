"""Where a base model comes from: the hub, a folder, a GGUF file, or a package. No weights are loaded to know it."""

from __future__ import annotations

from pathlib import Path

from burnish.base_setup.embedded import embedded_model_folder
from burnish.base_setup.gguf import gguf_folder, is_gguf
from burnish.config.model_config import EMBEDDED_NAME, ModelConfig
from burnish.errors import InputError

WAYS_OUT = (
    f"give a hub id that this machine can reach, a local folder, a .gguf file, or {EMBEDDED_NAME} (no hub needed)"
)


def full_name(config: ModelConfig) -> str:
    """The model's name, with the revision where one is set."""
    return config.model_name if config.revision is None else f"{config.model_name}@{config.revision}"


def is_on_the_hub(config: ModelConfig) -> bool:
    """Whether it is asked for by name, and not read from this machine."""
    return _place(config.model_name) is None


def model_source(config: ModelConfig) -> str:
    """What transformers loads it from: a hub id, or a folder. A GGUF file is converted into one."""
    name, place = config.model_name, _place(config.model_name)
    if place is not None and config.revision is not None:
        raise InputError(
            f"revision {config.revision!r} is a version of a model on the hub, and model_name {name!r} is {place}; "
            "leave revision out"
        )
    if name == EMBEDDED_NAME:
        return str(embedded_model_folder())
    if is_gguf(name):
        return str(gguf_folder(Path(name)))
    if place is None and name.startswith(("/", ".", "~")):
        raise InputError(f"model_name {name!r} looks like a folder, but there is none; {WAYS_OUT}")
    return name


def _place(name: str) -> str | None:
    """In words; None for the hub."""
    if name == EMBEDDED_NAME:
        return "the embedded model"
    if is_gguf(name):
        return "a GGUF file"
    return "a folder" if Path(name).is_dir() else None
