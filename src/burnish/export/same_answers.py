"""Does the consumer of an export say what burnish says? Token by token, with the log-probabilities of both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from burnish.errors import WrongExportError, count
from burnish.export.source import Answer, Source

# How far log-probabilities may be apart, in nats, by the numbers that the two compute with. The same weights in
# the same numbers differ by the order of sums alone; rounded weights differ by what rounding costs.
TOLERANCE = {"float32": 0.01, "float16": 0.25, "bfloat16": 0.5}
TOLERANCE |= {"f32": 0.05, "f16": 0.1, "q8_0": 1.0}  # llama.cpp's: it sums in other orders, and rounds on the way


@dataclass(frozen=True)
class Difference:
    """Where an answer first leaves burnish's."""

    prompt: int
    position: int
    loss: float
    """How much less likely than its own token burnish finds the consumer's, in nats. Near 0: a tie."""


@dataclass(frozen=True)
class Sameness:
    """Of all answers of a consumer."""

    consumer: str
    num_prompts: int
    num_equal: int
    num_tokens: int
    largest_gap: float
    """Between what the consumer gives a token of its answer and what burnish gives the same token, in nats."""
    mean_gap: float
    first_difference: Difference | None
    tolerance: float
    largest_loss: float
    """Of all differences."""

    @property
    def is_right(self) -> bool:
        """Every number is within rounding, and so is every choice: a token chosen instead was as good as tied."""
        return self.largest_gap <= self.tolerance and self.largest_loss <= 2 * self.tolerance

    @property
    def sentence(self) -> str:
        said = (
            f"{self.consumer} gives {self.num_equal} of {count(self.num_prompts, 'answer')} token by token as burnish "
            f"does ({count(self.num_tokens, 'token')}; log-probabilities differ by {self.largest_gap:.2g} at most, "
            f"{self.mean_gap:.2g} on average)"
        )
        if (first := self.first_difference) is not None:
            said += (
                f". The first difference is at token {first.position + 1} of the answer to prompt {first.prompt + 1}, "
                f"where burnish finds the other token {first.loss:.2g} nats less likely"
            )
        return said + "."

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"is_right": self.is_right}


def compare(
    source: Source, own: Sequence[Answer], theirs: Sequence[Answer], consumer: str, numbers: Sequence[str]
) -> Sameness:
    """`own` are burnish's answers; `numbers` is what burnish and the consumer compute with: the coarser decide. burnish
    scores the consumer's whole answer, so that an answer which went another way at a tie is still compared to its end.
    """
    gaps: list[float] = []
    differences = []
    for number, (mine, other) in enumerate(zip(own, theirs, strict=True)):
        scored = source.logprobs(number, other.tokens)
        gaps += [abs(a - b) for a, b in zip(scored, other.logprobs, strict=True) if not math.isnan(b)]
        position = _first_difference(mine.tokens, other.tokens)
        if position is not None:
            here = scored[position] if position < len(scored) else -float("inf")
            loss = mine.logprobs[position] - here if position < len(mine.tokens) else float("inf")
            differences.append(Difference(number, position, max(0.0, loss)))
    return Sameness(
        consumer=consumer,
        num_prompts=len(own),
        num_equal=len(own) - len(differences),
        num_tokens=sum(len(a.tokens) for a in theirs),
        largest_gap=max(gaps, default=float("inf")),
        mean_gap=sum(gaps) / len(gaps) if gaps else float("inf"),
        first_difference=differences[0] if differences else None,
        tolerance=max(TOLERANCE[own] for own in numbers),
        largest_loss=max((d.loss for d in differences), default=0.0),
    )


def refuse_wrong(found: Sameness) -> Sameness:
    if not found.is_right:
        raise WrongExportError(
            f"this export is wrong, and was not kept: {found.sentence} Up to {found.tolerance:g} would be rounding. "
            "Please report it, with the output of `burnish env`"
        )
    return found


def _first_difference(mine: Sequence[int], theirs: Sequence[int]) -> int | None:
    if list(mine) == list(theirs):
        return None
    same = (a == b for a, b in zip(mine, theirs, strict=False))
    return next((n for n, equal in enumerate(same) if not equal), min(len(mine), len(theirs)))
