"""`burnish init`: a folder to start from. A config that explains itself, data to try it on, a reward to edit."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from burnish.data.bundled import bundled_demonstrations, bundled_preferences, bundled_sentiment, bundled_tldr
from burnish.data.records import reference_of
from burnish.errors import InputError, is_disk_full, nearest
from burnish.runs.disk import fresh_folder

SUFFIX = ".txt"  # of a Python file in the package, where it is a text and no module
ROWS = 60  # of the bundled texts


@dataclass(frozen=True)
class Template:
    """A kind of task."""

    about: str
    command: str = "train"
    """What its config is for."""
    data: Callable[[], dict[str, list[dict[str, Any]]]] = dict
    """Files of rows that are taken from the bundled texts."""


def _posts() -> dict[str, list[dict[str, Any]]]:
    rows = [{"prompt": str(post), "reference": reference_of(post)} for post in bundled_tldr().everything[:ROWS]]
    return {"posts.jsonl": rows}


def _openings() -> dict[str, list[dict[str, Any]]]:
    return {"openings.jsonl": [{"prompt": str(opening)} for opening in bundled_sentiment().everything[:ROWS]]}


def _choices() -> dict[str, list[dict[str, Any]]]:
    told = bundled_demonstrations().everything[:ROWS]
    pairs = bundled_preferences().everything[: 2 * ROWS]  # two to a post
    return {
        "demonstrations.jsonl": [{"prompt": str(own.prompt), "completion": own.completion} for own in told],
        "preferences.jsonl": [
            {"prompt": str(own.prompt), "chosen": own.chosen, "rejected": own.rejected} for own in pairs
        ],
        "prompts.jsonl": [{"prompt": str(own.prompt)} for own in told],
    }


TEMPLATES = {
    "tldr": Template("posts, summarized in one sentence; a rule judges", data=_posts),
    "sentiment": Template("openings, continued in a positive tone; a rule judges", data=_openings),
    "preferences": Template("SFT, a reward model from people's choices, PPO against it", "pipeline", _choices),
    "math": Template("sums in words, each with one right answer"),
    "blank": Template("your prompts and your reward function"),
}


def write_template(name: str, folder: Path) -> tuple[list[str], str]:
    """Writes a template's files into a folder that is new or empty: all of them or none. Gives their names and the
    next command.
    """
    if name not in TEMPLATES:
        raise InputError(f"there is no template {name!r}{nearest(name, TEMPLATES)}; there are {', '.join(TEMPLATES)}")
    if folder.is_symlink() or (folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))):
        raise InputError(f"{folder} exists already, and nothing is written over; name a new folder, or an empty one")
    template, given = TEMPLATES[name], folder
    folder = Path(os.path.abspath(folder))  # `.` has no name to write beside
    texts = dict(_own_files(name)) | {file: _lines(rows) for file, rows in template.data().items()}
    try:
        scratch = fresh_folder(folder.with_name(f".writing-{folder.name}"))
        for file, text in texts.items():
            (scratch / file).write_text(text, encoding="utf-8", newline="\n")
        if folder.exists():  # and is empty; it may be where the user's shell is, so it stays
            for file in texts:
                (scratch / file).rename(folder / file)
            scratch.rmdir()
        else:
            scratch.rename(folder)
    except OSError as error:
        if is_disk_full(error):
            raise
        raise InputError(f"cannot write {folder}: {error.strerror or error}") from None
    return sorted(texts), f"burnish {template.command} {shlex.quote((given / 'config.yaml').as_posix())}"


def _own_files(name: str) -> Iterable[tuple[str, str]]:
    for file in (files("burnish.data") / "templates" / name).iterdir():
        if file.is_file():
            is_text = file.name.endswith(f".py{SUFFIX}")
            yield file.name.removesuffix(SUFFIX) if is_text else file.name, file.read_text(encoding="utf-8")


def _lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
