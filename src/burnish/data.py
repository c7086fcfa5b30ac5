"""Prompts in: from a user's file, or from the texts that come with burnish."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from burnish.errors import InputError, nearest

SHOWN_ERRORS = 3


@dataclass(frozen=True)
class Prompts:
    """Prompts to train on, held-out prompts to measure on, and a human's answers to those, where there are any."""

    train: list[str]
    held_out: list[str]
    references: list[str] | None = None


class FilePrompt(str):
    """A prompt that knows where it came from (file:line), so that an error found later can say it."""

    source: str

    def __new__(cls, text: str, source: str) -> FilePrompt:
        prompt = super().__new__(cls, text)
        prompt.source = source
        return prompt


def load_prompts(path: str | Path, field: str = "prompt") -> list[str]:
    """Prompts of a `.jsonl` file (key `field`) or a `.txt` file (one per line). All bad lines are reported together."""
    path = Path(path)
    if path.suffix not in (".jsonl", ".txt"):
        raise InputError(f"{path}: prompts come as a .jsonl or .txt file, not {path.suffix or 'a file without ending'}")
    lines = _lines(path)
    prompts: list[str] = []
    errors: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue  # a blank line separates, it is not a prompt
        try:
            text = _prompt_in(line, field) if path.suffix == ".jsonl" else line
            prompts.append(FilePrompt(text, f"{path}:{number}"))
        except InputError as error:
            errors.append(f"  {path}:{number}: {error}")
    if errors:
        more = f"\n  ... and {len(errors) - SHOWN_ERRORS} more" if len(errors) > SHOWN_ERRORS else ""
        raise InputError(f"{_count(len(errors), 'bad line')} in {path}:\n" + "\n".join(errors[:SHOWN_ERRORS]) + more)
    if not prompts:
        raise InputError(f"{path} holds no prompts; it needs at least one")
    return prompts


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _lines(path: Path) -> list[str]:
    try:
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n").split("\n")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise InputError(f"{path}:{line}: not UTF-8 text; save the file as UTF-8") from None


def _prompt_in(line: str, field: str) -> str:
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"not valid JSON ({getattr(error, 'msg', 'nested too deeply')})") from None
    if not isinstance(row, dict):
        raise InputError(f"a {type(row).__name__}, not an object such as {{{json.dumps(field)}: ...}}")
    if field not in row:
        raise InputError(f"no key {field!r}{nearest(field, row)} (set prompt_field to the key of the prompt)")
    prompt = row[field]
    if not isinstance(prompt, str):
        raise InputError(f"{field!r} is of type {type(prompt).__name__}, not text")
    problem = problem_with(prompt)
    if problem:
        raise InputError(f"{field!r} {problem}")
    return prompt


def problem_with(prompt: str) -> str | None:
    """Why no model could read this text, or None."""
    if not prompt.strip():
        return "is empty; a model needs at least one word to go on from"
    if any("\ud800" <= c <= "\udfff" for c in prompt):
        return "holds half of a character (a lone surrogate such as \\ud83d); cut it elsewhere"
    return None


def split_prompts(prompts: Sequence[str], num_eval: int, seed: int) -> tuple[list[str], list[str]]:
    """Training and held-out prompts; equal prompts stay on one side, so nothing held out was trained on."""
    distinct = sorted(set(prompts))
    if num_eval and num_eval >= len(distinct):
        raise InputError(
            f"num_eval_prompts {num_eval} leaves nothing to train on: there are {len(distinct)} different prompts. "
            "Lower it, or give the held-out prompts in a file of their own (eval_prompts)"
        )
    held_out = set(random.Random(seed).sample(distinct, num_eval))
    return [p for p in prompts if p not in held_out], sorted(held_out)


# ---------------------------------------------------------------------------------------------------- bundled texts


def bundled_tldr() -> Prompts:
    """Posts written for burnish, in the form that the TL;DR task is known by, with their authors' summaries."""
    posts = _bundled("tldr.jsonl")
    split = {name: [p for p in posts if p["split"] == name] for name in ("train", "held_out")}
    return Prompts(
        [tldr_prompt(p) for p in split["train"]],
        [tldr_prompt(p) for p in split["held_out"]],
        [p["tldr"] for p in split["held_out"]],
    )


def bundled_sentiment() -> Prompts:
    """Openings written for burnish, to be continued."""
    openings = _bundled("openings.jsonl")
    split = {name: [o["prompt"] for o in openings if o["split"] == name] for name in ("train", "held_out")}
    return Prompts(split["train"], split["held_out"])


def tldr_prompt(post: dict[str, str]) -> str:
    return f"SUBREDDIT: {post['subreddit']}\nTITLE: {post['title']}\nPOST: {post['post']}\nTL;DR:"


def _bundled(name: str) -> list[dict[str, Any]]:
    text = (files("burnish") / "bundled" / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]
