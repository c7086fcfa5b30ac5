"""One prompt as training went on: what was answered after each step, and how that differs from the start."""

from __future__ import annotations

import difflib
import re
from typing import Any

from burnish.errors import InputError
from burnish.page.kept_responses import KeptResponses
from burnish.page.view import Asked, Data, View
from burnish.runs.run import Run
from burnish.text import headline

MOST_PROMPTS = 200
MOST_VERSIONS = 200
LONGEST_DIFF = 1500  # words of either text: beyond that a comparison takes too long to be read, too
WORDS = re.compile(r"\s+|\w+|[^\w\s]")
HEADLINE = 100
Piece = tuple[str, str]
"""`same`, `added` or `gone`, and the text."""


def data(asked: Asked) -> Data:
    """Path: `run`. Query: `prompt` (its number in the list)."""
    name = asked.path["run"]
    run, kept = asked.library.run(name), asked.library.growing(name, KeptResponses)
    answers = _answers(run, kept)
    prompts = list(answers)[:MOST_PROMPTS]
    wanted = asked.one("prompt", "0")
    number = int(wanted) if wanted.isascii() and wanted.isdigit() and int(wanted[:9]) < len(prompts) else 0
    return asked.library.summary(name) | {
        "prompts": [{"headline": headline(p, HEADLINE), "answers": len(answers[p])} for p in prompts],
        "prompt_number": number,
        "prompt": prompts[number] if prompts else None,
        "versions": _versions(answers[prompts[number]]) if prompts else [],
    }


def _answers(run: Run, kept: KeptResponses) -> dict[str, list[dict[str, Any]]]:
    """By prompt, its answers in the order of steps: first the most likely ones of held-out prompts, then sampled ones
    of prompts that came back in training.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for row in run.read_lines("probes.jsonl"):
        try:
            answer = {"step": int(row["step"]), "response": str(row["response"]), "score": None, "number": None}
            found.setdefault(str(row["prompt"]), []).append(answer)
        except (KeyError, TypeError, ValueError):
            raise InputError(f"probes.jsonl of {run.name} is damaged") from None
    by_prompt: dict[int, list[int]] = {}
    for n, prompt in enumerate(kept.prompt_of):
        by_prompt.setdefault(prompt, []).append(n)
    again = [ns for ns in by_prompt.values() if len({kept.steps[n] for n in ns}) > 1]
    for numbers in sorted(again, key=len, reverse=True)[: MOST_PROMPTS - len(found)]:
        rows = list(kept.headings(_spread(numbers, MOST_VERSIONS)))
        if rows[0]["prompt"] not in found:
            told = ("step", "response", "score", "number")
            found[rows[0]["prompt"]] = [{key: row[key] for key in told} for row in rows]
    return found


def _versions(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    shown = _spread(answers, MOST_VERSIONS)
    return [answer | {"diff": word_diff(shown[0]["response"], answer["response"])} for answer in shown]


def _spread(items: list[Any], most: int) -> list[Any]:
    """Not more than so many, the first and the last among them."""
    if len(items) <= most:
        return items
    return [items[round(k * (len(items) - 1) / (most - 1))] for k in range(most)]


def word_diff(start: str, now: str) -> list[Piece]:
    """Word by word, what stayed, what came and what went."""
    before, after = WORDS.findall(start), WORDS.findall(now)
    if max(len(before), len(after)) > LONGEST_DIFF:
        return [("same", now)] if start == now else [("gone", start), ("added", now)]
    pieces: list[Piece] = []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind == "equal":
            pieces.append(("same", "".join(after[c:d])))
        else:
            pieces += [
                (kind, text) for kind, text in (("gone", "".join(before[a:b])), ("added", "".join(after[c:d]))) if text
            ]
    return pieces


VIEW = View("same_prompt", "/same-prompt/{run:path}", data, "Same prompt")
