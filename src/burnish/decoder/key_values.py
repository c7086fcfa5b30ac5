"""Keys and values: small caches, one for each way in which a pass meets them.

A decoder layer calls `update(keys, values, layer)` and attends to what it gets back, and to the prefix that the cache
shares, if it has one. All caches here have one layout, `[layers, 2, B, key_heads, S, D]` (2: keys, values), so that a
batch is one tensor and a row is one slice. `seen` is how many tokens stand before those that come next.

Layers that are not attention keep states instead: the last inputs of a convolution, what a recurrence has come to.
They stand for the whole text before, so they have one size whatever its length, and nothing can be cut off them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from burnish.decoder.base_identity import BaseIdentity
from burnish.decoder.shared_prefix import SharedPrefix
from burnish.errors import InputError

Place = tuple[str, int, int]
"""Of a state: `conv` or `recurrent`, the layer, and which of the layer's states of that kind."""
States = Mapping[Place, Tensor]
"""[B, ...] each, or [...] of a single text. Empty: attention alone, or nothing read yet."""


@dataclass(frozen=True, eq=False)
class Reading:
    """What the base keeps of one text that it has read."""

    keys: Tensor
    """[layers, 2, key_heads, S, D] keys and values."""
    states: States
    """[...] after its last token."""

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + nbytes_of(self.states)


def nbytes_of(states: States) -> int:
    return sum(state.nbytes for state in states.values())


def side_by_side(readings: Sequence[Reading], room: Tensor, start: int) -> States:
    """Writes the keys and values of texts into the rows of `room`, up to column `start`; gives their states."""
    for row, reading in enumerate(readings):
        room[:, :, row, :, start - reading.keys.shape[3] : start] = reading.keys
    places = readings[0].states if readings else {}
    return {place: torch.stack([reading.states[place] for reading in readings]) for place in places}


class Recorder:
    """Keeps what each layer computes: the first pass over prompts. They may share a beginning that was read before."""

    shared: SharedPrefix | None = None
    keeps_states = True

    def __init__(self, beginning: Reading | None = None, batch: int = 1) -> None:
        """`batch` texts come behind the beginning."""
        self.beginning = beginning
        self.seen = 0 if beginning is None else beginning.keys.shape[3]
        self.layers: list[Tensor] = []
        begun = {} if beginning is None else beginning.states
        self.states = {place: state.repeat(batch, *[1] * state.dim()) for place, state in begun.items()}

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any) -> tuple[Tensor, Tensor]:
        self.layers.append(torch.stack([keys, values]))
        if self.beginning is None:
            return keys, values
        before = self.beginning.keys[layer][:, None].expand(-1, len(keys), -1, -1, -1)  # [2, B, key_heads, S, D]
        return torch.cat([before[0], keys], dim=2), torch.cat([before[1], values], dim=2)

    def row(self, row: int, width: int) -> Reading:
        """One sequence: its beginning and the first `width` tokens recorded. Its states are those after the last token
        of the pass, so where there are some it must have no padding behind it.
        """
        keys = torch.stack([layer[:, row, :, :width] for layer in self.layers])
        keys = keys if self.beginning is None else torch.cat([self.beginning.keys, keys], dim=3)
        return Reading(keys, {place: state[row].clone() for place, state in self.states.items()})


class FixedPrefix:
    """A prefix that every pass reads and none changes: scoring and training."""

    shared: SharedPrefix | None = None
    keeps_states = False

    def __init__(self, prefix: Tensor, first_layer: int, states: States | None = None) -> None:
        self.prefix = prefix
        self.seen = prefix.shape[4]
        self.first_layer = first_layer
        self.states = states or {}

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any) -> tuple[Tensor, Tensor]:
        if self.prefix.shape[4] == 0:
            return keys, values
        prefix_keys, prefix_values = self.prefix[layer - self.first_layer]
        return torch.cat([prefix_keys, keys], dim=2), torch.cat([prefix_values, values], dim=2)


class OwnKeys:
    """Behind a prefix that several sequences share, each has only its own keys: scoring and training."""

    def __init__(self, shared: SharedPrefix) -> None:
        self.shared = shared

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any) -> tuple[Tensor, Tensor]:
        return keys, values


class GrowingCache:
    """Room for the whole response, reserved once: decoding writes each new token in place and reads a view.

    The prompts' prefix stands at its beginning, unless several sequences share it.
    """

    keeps_states = True

    def __init__(
        self, room: Tensor, filled: int, shared: SharedPrefix | None = None, states: States | None = None
    ) -> None:
        self.room = room
        self.filled = filled
        self.shared = shared
        self.states = dict(states or {})

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any) -> tuple[Tensor, Tensor]:
        end = self.filled + keys.shape[2]
        self.room[layer, 0, :, :, self.filled : end] = keys
        self.room[layer, 1, :, :, self.filled : end] = values
        return self.room[layer, 0, :, :, :end], self.room[layer, 1, :, :, :end]

    @property
    def seen(self) -> int:
        return self.filled

    def advance(self, num_tokens: int) -> None:
        """After all layers have seen `num_tokens` new tokens."""
        self.filled += num_tokens

    def keep_rows(self, rows: Tensor) -> None:
        """Forgets all sequences but these.  rows [n]"""
        self.room = self.room[:, :, rows]
        self.shared = None if self.shared is None else self.shared.keep(rows)
        self.states = {place: state[rows] for place, state in self.states.items()}

    @classmethod
    def joined(cls, parts: Sequence[tuple[GrowingCache, int]], room: int) -> GrowingCache:
        """The sequences of several caches in one, with room for more tokens. Each comes with the number of its first
        columns that hold nothing but padding and are left out. All end in the same column, where the next tokens go.
        """
        filled = max(cache.filled - padding for cache, padding in parts)
        batch, like = sum(cache.room.shape[2] for cache, _ in parts), parts[0][0].room
        together = like.new_zeros(*like.shape[:2], batch, like.shape[3], filled + room, like.shape[5])
        first = 0
        for cache, padding in parts:
            last = first + cache.room.shape[2]
            width = cache.filled - padding
            together[:, :, first:last, :, filled - width : filled] = cache.room[..., padding : cache.filled, :]
            first = last
        states = {place: torch.cat([cache.states[place] for cache, _ in parts]) for place in parts[0][0].states}
        return cls(together, filled, states=states)


class PromptCache:
    """What the frozen base keeps of prompts that it has already read, by their tokens; the oldest leave first.

    The base never changes, so a prompt that comes back in a later step costs nothing. `beginning` is the part that many
    prompts share and that was read once. It is remembered because a prompt read after another beginning may differ in
    its last bits. A cache serves one base: it could not tell another's keys and values from its own.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._base: BaseIdentity | None = None
        self._entries: OrderedDict[tuple[tuple[int, ...], tuple[int, ...]], Reading] = OrderedDict()

    def belong_to(self, base: BaseIdentity) -> None:
        """The first base that takes it owns it; it serves others only if they compute the same."""
        if self._base is None:
            self._base = base
        elif self._base is not base and self._base.of_computation != base.of_computation:
            raise InputError(
                f"what {self._base.name} has read of the prompts cannot serve {base.name}: the two are different base "
                "models (weights, model config or device). Give each a PromptCache of its own"
            )

    @property
    def nbytes(self) -> int:
        return sum(reading.nbytes for reading in self._entries.values())

    def lookup(
        self,
        prompts: Sequence[tuple[int, ...]],
        compute: Callable[[list[tuple[int, ...]]], list[Reading]],
        beginning: tuple[int, ...] = (),
    ) -> list[Reading]:
        """One for each prompt; `compute` is asked for those not known yet, shortest first."""
        missing = sorted({p for p in prompts if (beginning, p) not in self._entries}, key=len)
        if missing:
            self._entries.update(zip([(beginning, p) for p in missing], compute(missing), strict=True))
        found = []
        for prompt in prompts:
            self._entries.move_to_end((beginning, prompt))
            found.append(self._entries[beginning, prompt])
        while self._entries and self.nbytes > self.max_bytes:
            self._entries.popitem(last=False)
        return found
