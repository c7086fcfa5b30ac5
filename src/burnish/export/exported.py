"""What an export is: a form, a folder that is there completely or not at all, and how far it was tried."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

from burnish.errors import InputError, is_disk_full, nearest
from burnish.runs.disk import folder_to_disk, to_disk
from burnish.text import as_json, without_secrets

FORMS = {
    "adapter": "a LoRA in peft's format",
    "merged": "a model in transformers' format, the LoRA folded into its weights",
    "gguf": "a file for llama.cpp: the LoRA, or with --merged the whole model",
    "lora": "an ordinary peft LoRA that says what a response-scope one says",
    "ollama": "a Modelfile for ollama, with the files that it names",
}
FACTS = "export.json"  # in every export: its form, what it was made from, and how it was tried
CARD = "README.md"
GGUF_TYPES = ("f32", "f16", "q8_0")


@dataclass
class Exported:
    """A finished export, for a person and for a program."""

    form: str
    folder: Path
    facts: dict[str, Any] = field(default_factory=dict)
    """As FACTS has them."""

    def as_dict(self) -> dict[str, Any]:
        sizes = {str(f.relative_to(self.folder)): f.stat().st_size for f in files_of(self.folder)}
        return {"form": self.form, "folder": str(self.folder), "files": sizes, **self.facts}


def files_of(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def check_form(form: str) -> None:
    if form not in FORMS:
        raise InputError(f"there is no form {form!r}{nearest(form, FORMS)}; there are {', '.join(FORMS)}")


def check_output(folder: Path) -> None:
    """Nothing is written over."""
    if os.path.lexists(folder):
        raise InputError(f"{folder} exists already; choose another --output, or move it away")


@contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """A folder to write into, which takes its place when everything in it is done, and leaves no trace otherwise."""
    check_output(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # A name of its own: another export to the same place may be under way. (mkdtemp would hide it from others.)
        scratch = folder.parent / f".writing-{folder.name}-{token_hex(4)}"
        scratch.mkdir()
    except OSError as error:
        if is_disk_full(error):
            raise
        raise InputError(f"cannot write to {folder.parent}: {error.strerror or error}") from None
    try:
        yield scratch
        folder_to_disk(scratch)
        check_output(folder)
        scratch.rename(folder)
        to_disk(folder.parent)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def write_facts(folder: Path, facts: dict[str, Any]) -> None:
    (folder / FACTS).write_text(as_json(without_secrets(facts)) + "\n", encoding="utf-8")


def read_facts(folder: Path) -> dict[str, Any]:
    """Those of a folder that `burnish export` wrote; any other is refused."""
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"{folder} is no export (it has no {FACTS}); make one first: burnish export RUN --to adapter"
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"{folder / FACTS} is damaged: {error}") from None
    if not isinstance(facts, dict) or facts.get("form") not in FORMS:
        raise InputError(f"{folder / FACTS} names no form of an export; make it again: burnish export RUN --to adapter")
    return facts
