"""What a person should know about the data before hours are spent on it."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields
from statistics import median
from typing import Any, Protocol

from burnish.data.records import prompts_of
from burnish.data.splits import Split

MANY_CUT = 0.1
Row = tuple[str, str, str]
"""What, of the training rows, of the held-out rows."""


class Encoder(Protocol):
    """What turns texts into tokens."""

    def try_encode(self, prompt: str) -> tuple[list[int], str | None]: ...
    def count_tokens(self, text: str) -> int: ...


def data_summary(split: Split[Any], encoder: Encoder, longest_answer: int) -> list[Row]:
    """Rows, prompts, lengths in tokens, answers that would be cut, duplicates, rows that were left out."""
    sides = (split.train, split.held_out)
    rows: list[Row] = [
        _row("rows", sides, lambda side: f"{len(side)}"),
        _row("different prompts", sides, lambda side: f"{len(set(prompts_of(side)))}"),
        _row("prompt tokens", sides, lambda side: _lengths([len(encoder.try_encode(p)[0]) for p in prompts_of(side)])),
    ]
    for name in _answer_fields(sides):
        lengths = tuple([encoder.count_tokens(getattr(r, name)) for r in side] for side in sides)
        rows.append(_row(f"{name} tokens", lengths, _lengths))
        # With its stop token an answer is one longer; one that loses only that has lost its end.
        rows.append(
            _row(f"{name} cut at {longest_answer}", lengths, lambda n: f"{sum(x >= longest_answer for x in n)}")
        )
        share = sum(x >= longest_answer for x in lengths[0]) / max(len(lengths[0]), 1)
        if share > MANY_CUT:
            warnings.warn(
                f"{share:.0%} of the training rows lose the end of their {name} at max_new_tokens {longest_answer}; "
                "raise it, unless that is meant",
                stacklevel=2,
            )
    rows.append(_row("duplicate rows", sides, lambda side: f"{sum(n - 1 for n in Counter(side).values())}"))
    if split.num_left_out:
        rows.append(("bad rows left out", f"{split.num_left_out}", ""))
    return rows


def _row(name: str, sides: Sequence[Any], say: Callable[[Any], str]) -> Row:
    return (name, *(say(side) if side else "-" for side in sides))  # type: ignore[return-value]


def _answer_fields(sides: Sequence[list[Any]]) -> list[str]:
    """The texts that a record has beside its prompt."""
    record = next((side[0] for side in sides if side), None)
    if record is None or isinstance(record, str):
        return []
    return [f.name for f in fields(record) if f.name != "prompt" and isinstance(getattr(record, f.name), str)]


def _lengths(lengths: Sequence[int]) -> str:
    if not lengths:
        return "-"
    ordered = sorted(lengths)
    return f"{median(ordered):.0f} median, {ordered[int(0.95 * (len(ordered) - 1))]} 95 %, {ordered[-1]} longest"
