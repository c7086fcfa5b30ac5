"""An adapter for peft: the run's own files, without the names of this machine's folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from burnish.base_setup.lora_files import CONFIG, SCOPE_FILE, WEIGHTS, read_json
from burnish.config import ModelConfig
from burnish.config.model_config import EMBEDDED_NAME
from burnish.decoder.base_identity import MERGED_FROM
from burnish.export.source import Source

START = "start"  # a LoRA that the run began with and that is a part of its base
ORIGIN = {EMBEDDED_NAME: "HuggingFaceTB/SmolLM2-135M-Instruct"}  # whose weights it has, rounded to 4 bits


def public_name(config: ModelConfig) -> str:
    """The base as it may be told to others: a folder by its own name, without where it lies."""
    name = config.model_name
    if Path(name).exists() or name.startswith(("/", ".", "~")):
        return Path(name).resolve().name
    return name


def write_adapter(source: Source, folder: Path) -> None:
    """What a run saved, and beside it the LoRA that has to be merged into the base first, if there is one."""
    shutil.copy(source.folder / WEIGHTS, folder / WEIGHTS)
    _write_json(
        folder / CONFIG, read_json(source.folder / CONFIG) | {"base_model_name_or_path": public_name(source.config)}
    )
    facts = read_json(source.folder / SCOPE_FILE)
    base = facts.get("base")
    if isinstance(base, dict):
        base = base | {"name": public_name(source.config)} | ({MERGED_FROM: START} if MERGED_FROM in base else {})
        facts = facts | {"base": base}
    _write_json(folder / SCOPE_FILE, facts)
    if source.base.identity.merged is not None:
        begun = Path(source.base.identity.merged.folder)
        (folder / START).mkdir()
        shutil.copy(begun / WEIGHTS, folder / START / WEIGHTS)
        named = {"base_model_name_or_path": public_name(source.config)}
        _write_json(folder / START / CONFIG, read_json(begun / CONFIG) | named)


def _write_json(file: Path, values: dict[str, Any]) -> None:
    file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
