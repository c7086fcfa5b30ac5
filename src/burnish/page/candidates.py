"""What there is to judge: pairs of answers to a prompt, out of a run, of two runs, or of a file."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from burnish.data import Prompt, load_candidates, messages_of
from burnish.errors import InputError
from burnish.evaluation.said import SIDES, Row
from burnish.page.kept_responses import KeptResponses
from burnish.page.library import Library
from burnish.runs.run import Run

MOST_PAIRS = 500  # of kept responses: more than anybody judges
ANSWERS = "/answers"  # which no run can be called
"""To judge several answers of one prompt, out of samples.jsonl."""


@dataclass(frozen=True)
class Pair:
    """Two answers to a prompt."""

    prompt: str
    answers: tuple[str, str]
    sides: tuple[str, str] = SIDES[1]
    origins: tuple[str, str] | None = None
    """Where each came from, where the sides do not say it."""
    margin: float | None = None
    """By how much the reward prefers the first; None where it is not known."""

    @property
    def key(self) -> str:
        """The same for the same answers in any order."""
        return key_of(self.prompt, *sorted(self.answers))

    def row(self, better: str) -> Row:
        """A choice, as it is kept; `better` is one of the sides, `tie` or `skip`."""
        origins = {"from": list(self.origins)} if self.origins else {}
        return prompt_row(self.prompt) | dict(zip(self.sides, self.answers, strict=True)) | {"better": better} | origins


@dataclass(frozen=True)
class Candidates:
    """Pairs to choose from, and every answer in them."""

    pairs: list[Pair]
    singles: list[tuple[str, str]] = field(default_factory=list)
    """Prompt and answer of answers that have no partner."""

    @property
    def answers(self) -> list[tuple[str, str]]:
        """Prompt and answer, each once. Which of a pair comes first says nothing of where it came from."""
        in_pairs = [(pair.prompt, answer) for pair in self.pairs for answer in sorted(pair.answers, key=key_of)]
        return list({key_of(*own): own for own in [*in_pairs, *self.singles]}.values())


def key_of(*texts: str) -> str:
    """Stands for texts in a form without showing them."""
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:20]


def prompt_row(prompt: str) -> Row:
    """A prompt in a row that is kept."""
    return {"prompt": str(prompt)} | ({"messages": chat} if (chat := messages_of(prompt)) else {})


def of_run(library: Library, name: str, against: str) -> Candidates:
    """`against` is empty for start against tuned, ANSWERS, or another run's name."""
    run = library.run(name)
    if against == ANSWERS:
        pairs = _of_responses(library.growing(name, KeptResponses))
    elif not against:
        pairs = [
            Pair(own["prompt"], (own["start"], own["tuned"]), SIDES[0], None, _margin(own["scores"]))
            for own in _held_out(run)
        ]
    else:
        pairs = _of_two(name, _held_out(run), against, _held_out(library.run(against)))
    return Candidates([pair for pair in pairs if pair.answers[0].strip() != pair.answers[1].strip()])


def of_file(path: Path) -> Candidates:
    """Neighbouring answers of each row."""
    try:
        found = path.stat()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    return _of_version(path, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=1)
def _of_version(path: Path, *version: int) -> Candidates:
    pairs, singles = [], []
    for row in load_candidates(path).records:
        scores: list[float | None] = [*row.scores] or [None] * len(row.answers)
        answers = list(zip(row.answers, scores, strict=True))
        different = [two for two in pairwise(answers) if two[0][0].strip() != two[1][0].strip()]
        pairs += [Pair(row.prompt, (a, b), margin=_margin((x, y))) for (a, x), (b, y) in different]
        if not different:
            singles.append((row.prompt, row.answers[0]))
    return Candidates(pairs, singles)


def _held_out(run: Run) -> list[dict[str, Any]]:
    """Prompt, both answers and their rewards, out of verdict.json."""
    known = run.read("verdict.json") if run.has("verdict.json") else {}
    measured = known.get("evaluations") or {}
    rewards = [(measured.get(side) or {}).get("reward") or [] for side in SIDES[0]]
    try:
        return [
            {
                "prompt": Prompt(row["prompt"], messages=row.get("messages")),
                "start": str(row["start"]),
                "tuned": str(row["tuned"]),
                "scores": tuple(own[n] if n < len(own) else None for own in rewards),
            }
            for n, row in enumerate(known.get("answers") or [])
        ]
    except (KeyError, TypeError):
        raise InputError(f"verdict.json of {run.name} is damaged") from None


def _of_two(name: str, ours: list[dict[str, Any]], other: str, theirs: list[dict[str, Any]]) -> list[Pair]:
    """What the tuned models of two runs answered to the same prompts. Scores of two rewards are not compared."""
    there = {str(row["prompt"]): row["tuned"] for row in theirs}
    return [
        Pair(row["prompt"], (row["tuned"], there[str(row["prompt"])]), origins=(name, other))
        for row in ours
        if str(row["prompt"]) in there
    ]


def _of_responses(kept: KeptResponses) -> list[Pair]:
    """Neighbours among those to one prompt in one step; the newest first."""
    groups: dict[tuple[int, int], list[int]] = {}
    for n in range(len(kept)):
        groups.setdefault((kept.steps[n], kept.prompt_of[n]), []).append(n)
    several = [own for own in reversed(groups.values()) if len(own) > 1]
    pairs = []
    for numbers in several[:MOST_PAIRS]:
        for a, b in pairwise(list(kept.headings(numbers))):
            margin = _margin((a["score"], b["score"]))
            origins = (f"step {a['step']}", f"step {b['step']}")
            pairs.append(Pair(a["prompt"], (a["response"], b["response"]), origins=origins, margin=margin))
    return pairs[:MOST_PAIRS]


def _margin(scores: tuple[Any, Any]) -> float | None:
    a, b = scores
    if not all(isinstance(own, int | float) and math.isfinite(own) for own in scores):
        return None
    return float(a - b)
