"""Answers of one speaker, decoded together. Others join between two tokens, and those that have ended leave."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from burnish.decoder.key_values import GrowingCache
from burnish.decoder.model_cache import OwnState
from burnish.decoder.shared_base import SharedBase
from burnish.rollout.step import step
from burnish.serving.answer import Answer

GROWS_BY = 64  # tokens of room that are taken at a time: each time copies the cache once
DROP_WHEN_ENDED = 0.25  # answers that have ended leave when they are this share: each departure copies it too


class Batch:
    """Sequences stand right-aligned: all of them write their next token into the same column of the cache. A newcomer's
    prompt is read by itself, so what it says does not depend on who joins beside it.
    """

    def __init__(self, base: SharedBase, adapter: str | None) -> None:
        self.base = base
        self.adapter = adapter
        self.answers: list[Answer] = []
        self._cache: GrowingCache | OwnState | None = None
        self._key_mask = torch.zeros(0, 0, dtype=torch.bool, device=base.device)  # [n, S] without the inputs
        self._inputs: list[int] = []  # the last token of each answer

    @property
    def can_be_joined(self) -> bool:
        """What a model keeps in a form of its own stays alone."""
        return not self.answers or self.base.decoder.shares_prompts

    @property
    def live(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.is_live]

    def join(self, answers: Sequence[Answer]) -> None:
        """Answers to one question: its prompt is read once, and each draws its first token."""
        base, prompt = self.base, answers[0].question.prompt
        ids = torch.tensor([prompt], device=base.device)
        mask = torch.ones_like(ids, dtype=torch.bool)
        start = base.suffix_start(len(prompt))
        cache = base.read_prompts(ids, mask, room=len(prompt) - start)
        base.take_role(self.adapter)
        _, state = step(base, ids[:, start:], mask, cache)
        tokens = self._draw(answers, state.expand(len(answers), -1))
        live = [row for row, answer in enumerate(answers) if answer.is_live]
        if not live:
            return
        if len(answers) > 1:
            cache.keep_rows(torch.zeros(len(live), dtype=torch.long, device=base.device))
        newcomers = cache, mask.expand(len(live), -1)
        self.drop_ended()
        if isinstance(cache, OwnState):
            self._cache, self._key_mask = newcomers
        else:
            self._lay_out([*self._parts(), (cache, newcomers[1])])
        self.answers += [answers[row] for row in live]
        self._inputs += [tokens[row] for row in live]

    def step(self) -> None:
        """One more token of each answer."""
        if not self.answers or self._cache is None:
            return
        base, cache = self.base, self._cache
        if isinstance(cache, GrowingCache) and cache.filled == cache.room.shape[4]:
            self.drop_ended()
            self._lay_out(self._parts())
            cache = self._cache
        inputs = torch.tensor(self._inputs, device=base.device)[:, None]
        self._key_mask = torch.cat([self._key_mask, torch.ones_like(inputs, dtype=torch.bool)], dim=1)
        base.take_role(self.adapter)
        _, states = step(base, inputs, self._key_mask, cache)
        self._inputs = self._draw(self.answers, states)
        if len(self.live) <= (1 - DROP_WHEN_ENDED) * len(self.answers):
            self.drop_ended()

    def drop_ended(self) -> None:
        """Only those that still speak stay."""
        live = [row for row, answer in enumerate(self.answers) if answer.is_live]
        if len(live) == len(self.answers):
            return
        self.answers = [self.answers[row] for row in live]
        self._inputs = [self._inputs[row] for row in live]
        if not live or self._cache is None:
            self._cache = None
            return
        rows = torch.tensor(live, device=self.base.device)
        self._cache.keep_rows(rows)
        self._key_mask = self._key_mask[rows]

    def _draw(self, answers: Sequence[Answer], states: Tensor) -> list[int]:
        """[n, H] -> n tokens; of an answer that has ended, its last one again"""
        logits = self.base.decoder.logits(states).contiguous()  # [n, V]
        before = self._inputs if answers is self.answers else [0] * len(answers)
        return [
            answer.draw(logits[row : row + 1]) if answer.is_live else before[row] for row, answer in enumerate(answers)
        ]

    def _parts(self) -> list[tuple[GrowingCache, Tensor]]:
        return [(self._cache, self._key_mask)] if isinstance(self._cache, GrowingCache) else []

    def _lay_out(self, parts: Sequence[tuple[GrowingCache, Tensor]]) -> None:
        """Caches with their masks [n, S] as one, without columns that only those needed who have left."""
        paddings = [int((~mask).all(0).sum()) for _, mask in parts]  # padding is on the left
        self._cache = GrowingCache.joined(
            [(cache, padding) for (cache, _), padding in zip(parts, paddings, strict=True)], GROWS_BY
        )
        masks = [mask[:, padding:] for (_, mask), padding in zip(parts, paddings, strict=True)]
        width = max(mask.shape[1] for mask in masks)
        padded = [torch.nn.functional.pad(mask, (width - mask.shape[1], 0)) for mask in masks]
        self._key_mask = torch.cat(padded)
