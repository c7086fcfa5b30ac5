"""A response, token by token: value, TD error, advantage, KL, and how far the credit may be trusted."""

from __future__ import annotations

import math
import os
from typing import Any

from burnish.drawing.tokens import COLUMN_NAMES, OF_THE_RESPONSE, SHADES, signed_kl
from burnish.page.kept_responses import KeptResponses
from burnish.page.view import Asked, Data, View
from burnish.runs.run import Run
from burnish.sa_pairs.columns import COLUMNS
from burnish.show.credit import credit_sentence, unmeasured_sentence

STRENGTHS = 10  # of colour
MORE_SHADES = {
    "value": (
        "what the value model expects of the response before this token",
        "a good end is expected",
        "a bad end is expected",
    ),
    "ratio": (
        "how much more likely the step's updates had made the token at the last pass over it: the logarithm of the "
        "ratio; a pair of scissors marks what was clipped",
        "made more likely",
        "made less likely",
    ),
}
MORE_NAMES = {"entropy": "entropy", "ratio": "ratio", "clipped": "clipped"}


def data(asked: Asked) -> Data:
    """Path: `run`. Query: `number` (of the response; the last unless given), `by` (the column that colours)."""
    name = asked.path["run"]
    run, kept = asked.library.run(name), asked.library.growing(name, KeptResponses)
    wanted = asked.one("number")
    number = int(wanted[:9]) if wanted.isascii() and wanted.isdigit() else max(0, len(kept) - 1)
    if not len(kept):
        return asked.library.summary(name) | {"kept": 0, "response": None, "trust": _trust(run, asked, name)}
    sample = kept.whole(number)
    shades = _shades(sample)
    by = asked.choice("by", tuple(shades))
    step = kept.steps[number]
    firsts = {s: n for n, s in reversed(list(enumerate(kept.steps)))}
    columns = {key: told for key, told in _columns().items() if key in sample}
    return asked.library.summary(name) | {
        "kept": len(kept),
        "number": number,
        "of_step": [n for n in range(len(kept)) if kept.steps[n] == step],
        "first_of_steps": [{"step": s, "number": n} for s, n in sorted(firsts.items())],
        "response": next(kept.headings([number])),
        "by": by,
        "shades": {key: dict(zip(SHADE_WORDS, (label_of(key), *told), strict=True)) for key, told in shades.items()},
        "columns": {key: {"label": label, "meaning": meaning} for key, (label, meaning) in columns.items()},
        "tokens": _tokens(sample, [*columns], by, _subtracted(asked, name, step)),
        "trust": _trust(run, asked, name),
    }


SHADE_WORDS = ("label", "meaning", "above", "below")


def label_of(column: str) -> str:
    return {"ratio": "ratio", "kl": "KL"}.get(column) or COLUMN_NAMES[column]


def _columns() -> dict[str, tuple[str, str]]:
    """By key of a sample: what a column is called and what it holds."""
    meanings = {column.row_key: column.meaning for column in COLUMNS.values()}
    return {key: (label, meanings[key]) for key, label in (COLUMN_NAMES | MORE_NAMES).items()}


def _shades(sample: dict[str, Any]) -> dict[str, tuple[str, str, str]]:
    """What tokens can be coloured by; without a value model, KL first: the advantage is then the response's."""
    known = SHADES | MORE_SHADES
    order = ["advantage", "td_error", "value", "kl", "ratio"] if "value" in sample else ["kl", "advantage", "ratio"]
    there = {key: known[key] for key in order if key in sample}
    return there if "value" in sample else there | {"advantage": OF_THE_RESPONSE}


def _subtracted(asked: Asked, name: str, step: int) -> float:
    """What the step's update subtracts from every advantage: a token above it is made more likely."""
    if not asked.library.settings(name).get("whiten_advantages", True):
        return 0.0
    means = dict(asked.library.metrics(name).series("advantage_mean"))
    return means.get(float(step), 0.0)


def _tokens(sample: dict[str, Any], columns: list[str], by: str, subtracted: float) -> list[dict[str, Any]]:
    shown = _shown(sample, by, subtracted)
    largest = max((abs(value) for value in shown if math.isfinite(value)), default=0.0) or 1.0
    return [
        {
            "text": text,
            "shown": value,
            "strength": round(STRENGTHS * math.sqrt(abs(value) / largest)) if math.isfinite(value) else 0,
            "numbers": {key: sample[key][place] for key in columns},
        }
        for place, (text, value) in enumerate(zip(sample["tokens"], shown, strict=True))
    ]


def _shown(sample: dict[str, Any], by: str, subtracted: float) -> list[float]:
    """The number under each token; its sign decides the colour."""
    if by == "kl":
        return signed_kl(sample)
    if by == "advantage":
        return [own - subtracted for own in sample["advantage"]]
    if by == "ratio":
        return [math.log(own) if own > 0 else -math.inf for own in sample["ratio"]]
    return list(sample[by])


def _trust(run: Run, asked: Asked, name: str) -> str:
    if run.has("credit.json"):
        return credit_sentence(run.read("credit.json"))
    explained = asked.library.metrics(name).series("explained_variance")
    rows = [{"explained_variance": value} for _, value in explained]
    return unmeasured_sentence(rows, os.path.relpath(run.folder))


VIEW = View("credit", "/credit/{run:path}", data, "Credit")
