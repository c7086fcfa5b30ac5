"""A model in a GGUF file: converted once into a folder that transformers loads in a second."""

from __future__ import annotations

import hashlib
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from burnish.base_setup.cache import cache_dir
from burnish.base_setup.kept_fingerprints import kept, key_of
from burnish.errors import InputError, is_disk_full, is_out_of_memory
from burnish.system.files import stand_in_for

MAGIC = b"GGUF"  # what every such file begins with
LONGEST_STEM = 64
OTHER_FORM = "get the model as safetensors (a hub id or a folder) instead"


def is_gguf(model_name: str) -> bool:
    return model_name.lower().endswith(".gguf")


def gguf_folder(file: Path) -> Path:
    """The converted model of a GGUF file, by what is in the file: another content is another folder."""
    digest = _digest(file)
    folder = converted_gguf(digest, file)
    if not folder.is_dir():
        convert_once(file, folder)
        if _digest(file) != digest:
            raise InputError(f"{file} changed while it was read; give the command again when it is complete")
    return folder


def converted_gguf(digest: str, file: Path) -> Path:
    return cache_dir() / "gguf" / f"{file.stem[:LONGEST_STEM]}-{digest}"


def _digest(file: Path) -> str:
    """Of every byte; a file that has not changed since is not read again."""
    try:
        with file.open("rb") as content:
            if content.read(len(MAGIC)) != MAGIC:
                raise InputError(f"{file} is no GGUF file, whatever its name says; {OTHER_FORM}")

        def compute() -> str:
            with file.open("rb") as content:
                return hashlib.file_digest(content, "sha256").hexdigest()[:32]

        return kept(key_of([file], "gguf"), compute)
    except FileNotFoundError:
        raise InputError(
            f"there is no file {file}; a GGUF file on a hub is fetched first (hf download REPOSITORY FILE), and "
            "model_name is then its path"
        ) from None
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}") from None


def convert_once(file: Path, folder: Path) -> None:
    """All or nothing: a folder that exists is complete."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".converting-") as scratch:
            converted = Path(scratch) / "model"
            _convert(file, Path(scratch), converted)
            converted.rename(folder)
    except OSError as error:
        if folder.is_dir():  # somebody else converted it meanwhile: theirs is as good
            return
        if is_disk_full(error):
            raise
        raise InputError(
            f"{file} cannot be converted into {folder.parent} ({error.strerror or error}); set BURNISH_CACHE to a "
            "folder that can be written to"
        ) from None


def require_gguf() -> None:
    if find_spec("gguf") is None:  # transformers reads GGUF through it
        raise InputError("reading a GGUF file needs the package gguf; get it with: pip install gguf")


def _convert(file: Path, scratch: Path, target: Path) -> None:
    import torch  # slow to import, and not needed to know where a converted model is
    from transformers import AutoModelForCausalLM, AutoTokenizer

    require_gguf()
    alone = scratch / "source"  # transformers would take what lies beside the file for a part of the model
    alone.mkdir()
    stand_in_for(file.resolve(), alone / "model.gguf")
    try:
        tokenizer = AutoTokenizer.from_pretrained(alone, gguf_file="model.gguf")
        read: Any = AutoModelForCausalLM.from_pretrained(
            alone, gguf_file="model.gguf", dtype=torch.float32, output_loading_info=True
        )
    except Exception as error:  # a damaged file can fail in any way in the code that takes it apart
        if is_out_of_memory(error) or (isinstance(error, OSError) and is_disk_full(error)):
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"transformers cannot read {file} ({reason}): it is damaged, or of a family that transformers does not "
            f"read as GGUF. Get the file again, or {OTHER_FORM}"
        ) from None
    quantized, found = read
    if found["missing_keys"]:
        raise InputError(
            f"{file} lacks {len(found['missing_keys'])} of the model's tensors ({sorted(found['missing_keys'])[0]} is "
            f"one); is it one of several parts? Join them (llama-gguf-split --merge), or {OTHER_FORM}"
        )
    # The weights are plain floats by now, but the model still calls itself quantized and would refuse to be saved.
    config = quantized.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(quantized.state_dict())
    model.generation_config = quantized.generation_config
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
