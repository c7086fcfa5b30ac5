"""Sampling a token: temperature, top-k, top-p, and one random number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import torch
from torch import Tensor

from burnish.maths import entropy


@dataclass(frozen=True)
class Among:
    """Random numbers for a batch that several processes decode: where the rows of this one begin, and how many there
    are in all.

    Each process draws those of all rows and takes its own: what a response draws does not depend on which process
    decodes it, nor on how many there are.
    """

    before: int
    total: int
    generator: torch.Generator | None = None

    def uniform(self, device: torch.device) -> Tensor:
        """[total, 1]"""
        return torch.rand(self.total, 1, dtype=torch.float64, device=device, generator=self.generator)


Draws = torch.Generator | Among | None


@dataclass(frozen=True)
class Sampled:
    """One token for each of n sequences."""

    action: Tensor  # [n]
    logprob: Tensor  # [n]
    entropy: Tensor  # [n]
    kept: Tensor | None  # [n, k] ids, -1 where fewer were kept; None: the whole vocabulary


@dataclass(frozen=True)
class Sampler:
    """Temperature, then top-k, then top-p, then a draw (or the most likely token, if `greedy`)."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    greedy: bool = False

    def __call__(self, logits: Tensor, generator: Draws = None, numbers: Tensor | None = None) -> Sampled:
        """`numbers` [n] are the responses that the rows belong to. Where logits are not finite, the log-probability is
        not a number.
        """
        z = logits.float() / self.temperature  # [n, V]
        kept = None
        if self.truncates:
            z, kept = self._truncate(z)  # [n, k] each
        logprob = z.log_softmax(-1)
        choice = z.argmax(-1, keepdim=True) if self.greedy else draw(logprob.exp(), generator)  # [n, 1]
        action = choice if kept is None else kept.gather(1, choice)
        return Sampled(
            action=action.squeeze(1).long(),
            logprob=logprob.gather(1, choice).squeeze(1),
            entropy=entropy(logprob),
            kept=kept,
        )

    def of_rows(self, rows: Sequence[int]) -> Sampler:
        """For some responses of a batch by themselves."""
        return self

    @property
    def truncates(self) -> bool:
        return self.top_k > 0 or self.top_p < 1.0

    def _truncate(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The kept logits in falling order (-inf where fewer) and their ids (-1 where fewer)."""
        vocabulary = z.shape[1]
        z, ids = z.topk(min(self.top_k or vocabulary, vocabulary))
        p = z.softmax(-1)
        # A token stays while the mass before it is below top_p; the first always does.
        stays = p.cumsum(-1) - p < self.top_p
        stays[:, 0] = True
        if z.device.type == "cpu":  # another device would have to be waited for, token by token
            width = int(stays.sum(1).max())
            z, ids, stays = z[:, :width], ids[:, :width], stays[:, :width]
        return z.masked_fill(~stays, -torch.inf), ids.masked_fill(~stays, -1).int()


@dataclass(frozen=True)
class Begun(Sampler):
    """A sampler for one batch whose responses begin with given tokens; what comes after them is drawn."""

    tokens: Tensor | None = None
    """[B, T] -1 where nothing is given."""
    _calls: Iterator[int] = field(default_factory=count)

    def of_rows(self, rows: Sequence[int]) -> Sampler:
        return self if self.tokens is None else replace(self, tokens=self.tokens[list(rows)], _calls=count())

    def __call__(self, logits: Tensor, generator: Draws = None, numbers: Tensor | None = None) -> Sampled:
        sampled = super().__call__(logits, generator, numbers)
        position = next(self._calls)
        if self.tokens is None or numbers is None or position >= self.tokens.shape[1]:
            return sampled
        given = self.tokens[numbers, position]
        return replace(sampled, action=torch.where(given >= 0, given, sampled.action))


def draw(p: Tensor, generator: Draws = None) -> Tensor:
    """One index a row, by its probability: where the running sum passes a uniform number.  [n, V] -> [n, 1]

    One random number a row; torch.multinomial takes one for every entry, which on a CPU costs more than the logits.
    """
    running = p.cumsum(-1, dtype=torch.float64)
    if isinstance(generator, Among):
        u = generator.uniform(p.device)[generator.before : generator.before + len(p)]
    else:
        u = torch.rand(len(p), 1, dtype=torch.float64, device=p.device, generator=generator)
    return torch.searchsorted(running, u * running[:, -1:], right=True).clamp(max=p.shape[1] - 1)
