"""Keys and values: small caches, one for each way in which a pass meets them.

A decoder layer calls `update(keys, values, layer)` and attends to what it gets back, and to the prefix that the cache
shares, if it has one. All caches here have one layout, `[layers, 2, B, key_heads, S, D]` (2: keys, values), so that a
batch is one tensor and a row is one slice. `seen` is how many tokens stand before those that come next.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from burnish.decoder.base_identity import BaseIdentity
from burnish.decoder.shared_prefix import SharedPrefix
from burnish.errors import InputError


class Recorder:
    """Keeps what each layer computes: the first pass over prompts. They may share a beginning that was read before."""

    shared: SharedPrefix | None = None

    def __init__(self, beginning: Tensor | None = None) -> None:
        self.beginning = beginning  # [layers, 2, key_heads, S, D]
        self.seen = 0 if beginning is None else beginning.shape[3]
        self.layers: list[Tensor] = []

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any) -> tuple[Tensor, Tensor]:
        self.layers.append(torch.stack([keys, values]))
        if self.beginning is None:
            return keys, values
        before = self.beginning[layer][:, None].expand(-1, len(keys), -1, -1, -1)  # [2, B, key_heads, S, D]
        return torch.cat([before[0], keys], dim=2), torch.cat([before[1], values], dim=2)

    def row(self, row: int, width: int) -> Tensor:
        """One sequence: its beginning and the first `width` tokens recorded.  -> [layers, 2, key_heads, S, D]"""
        recorded = torch.stack([layer[:, row, :, :width] for layer in self.layers])
        return recorded if self.beginning is None else torch.cat([self.beginning, recorded], dim=3)


class FixedPrefix:
    """A prefix that every pass reads and none changes: scoring and training."""

    shared: SharedPrefix | None = None

    def __init__(self, prefix: Tensor, first_layer: int) -> None:
        self.prefix = prefix
        self.seen = prefix.shape[4]
        self.first_layer = first_layer

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

    def __init__(self, room: Tensor, filled: int, shared: SharedPrefix | None = None) -> None:
        self.room = room
        self.filled = filled
        self.shared = shared

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


class PromptCache:
    """Keys and values of prompts that the frozen base has already read, by their tokens; the oldest leave first.

    The base never changes, so a prompt that comes back in a later step costs nothing. `beginning` is the part that many
    prompts share and that was read once. It is remembered because a prompt read after another beginning may differ in
    its last bits. A cache serves one base: it could not tell another's keys and values from its own.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._base: BaseIdentity | None = None
        self._entries: OrderedDict[tuple[tuple[int, ...], tuple[int, ...]], Tensor] = OrderedDict()

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
        return sum(e.numel() * e.element_size() for e in self._entries.values())

    def lookup(
        self,
        prompts: Sequence[tuple[int, ...]],
        compute: Callable[[list[tuple[int, ...]]], list[Tensor]],
        beginning: tuple[int, ...] = (),
    ) -> list[Tensor]:
        """One `[layers, 2, key_heads, S, D]` per prompt; `compute` is asked for those not known yet, shortest first."""
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
