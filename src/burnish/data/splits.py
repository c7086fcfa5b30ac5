"""Held out by prompt: records that share a prompt stay on one side, so nothing measured on was trained on."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from burnish.data.records import prompts_of, texts_of
from burnish.errors import InputError

Record = TypeVar("Record")
FEW, MANY = 16, 64  # held-out prompts: fewer show only large effects, more cost time and show little more
MOST_HELD_OUT = 0.5  # of the rows; above that it is hardly meant


@dataclass(frozen=True)
class Split(Generic[Record]):
    """Records to train on, and records to measure on."""

    train: list[Record]
    held_out: list[Record]
    num_left_out: int = 0
    """Rows that could not be used, and were left out because `skip_bad` asks for that."""

    @property
    def everything(self) -> list[Record]:
        return [*self.train, *self.held_out]

    def texts(self) -> Iterator[str]:
        """Everything that the data says, and what of it is held out, for its fingerprint."""
        yield from texts_of(self.train)
        yield "held out"
        yield from texts_of(self.held_out)


def num_held_out(wanted: float | None, num_prompts: int) -> int:
    """How many prompts to hold out: a count, a share of them (2 at least), or what is usual for so many."""
    if wanted is None:
        usual = min(max(num_prompts // 10, FEW), MANY, num_prompts // 4)
        return usual if usual > 1 else 0  # one gives no interval
    return max(2, round(wanted * num_prompts)) if 0 < wanted < 1 else int(wanted)


def split_by_prompt(records: Sequence[Record], wanted: float | None, seed: int) -> Split[Record]:
    """Some of the different prompts, drawn by the seed, are set aside with all their records."""
    prompts = prompts_of(records)
    distinct = sorted(set(prompts))
    held_out_prompts = num_held_out(wanted, len(distinct))
    if held_out_prompts and held_out_prompts >= len(distinct):
        fewer = max(2, len(distinct) // 5) if len(distinct) > 2 else 0
        raise InputError(
            f"num_eval_prompts {wanted} leaves nothing to train on: there are {len(distinct)} different prompts. Set "
            f"num_eval_prompts: {fewer}, or give the held-out ones in a file of their own"
        )
    chosen = set(random.Random(seed).sample(distinct, held_out_prompts))
    sides: tuple[list[Record], list[Record]] = ([], [])
    for record, prompt in zip(records, prompts, strict=True):
        sides[prompt in chosen].append(record)
    train, held_out = sides
    if len(held_out) > MOST_HELD_OUT * len(records):
        warnings.warn(
            f"{len(held_out)} of {len(records)} rows are held out (num_eval_prompts: {held_out_prompts} prompts with "
            "all their rows); lower it to train on more of them",
            stacklevel=2,
        )
    return Split(train, held_out)


def refuse_overlap(train: Sequence[object], held_out: Sequence[object], train_name: str, held_out_name: str) -> None:
    """Two files must not share a prompt."""
    shared = set(prompts_of(train)) & set(prompts_of(held_out))
    if shared:
        raise InputError(
            f"{len(shared)} of the prompts in {held_out_name} are in {train_name} too, the first begins "
            f"{min(shared)[:60]!r}; held-out prompts must not be trained on"
        )
