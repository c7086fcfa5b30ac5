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


def split_by_prompt(
    records: Sequence[Record], num_held_out: int, seed: int, key: str = "num_eval_prompts"
) -> Split[Record]:
    """`num_held_out` different prompts, drawn by the seed, are set aside with all their records."""
    prompts = prompts_of(records)
    distinct = sorted(set(prompts))
    if num_held_out and num_held_out >= len(distinct):
        way_out = f"Set {key}: {max(2, len(distinct) // 5)}, or give" if len(distinct) > 2 else f"Set {key}: 0, or give"
        raise InputError(
            f"{key} {num_held_out} leaves nothing to train on: there are {len(distinct)} different prompts. {way_out} "
            "the held-out ones in a file of their own"
        )
    chosen = set(random.Random(seed).sample(distinct, num_held_out))
    sides: tuple[list[Record], list[Record]] = ([], [])
    for record, prompt in zip(records, prompts, strict=True):
        sides[prompt in chosen].append(record)
    train, held_out = sides
    if len(held_out) > MOST_HELD_OUT * len(records):
        warnings.warn(
            f"{len(held_out)} of {len(records)} rows are held out ({key}: {num_held_out} prompts with all their rows); "
            "lower it to train on more of them",
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
