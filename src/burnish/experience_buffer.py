"""The experience buffer: whole sequences in, mini-batches out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.errors import InputError
from burnish.maths import masked_mean, masked_var
from burnish.reward_kl import Rows
from burnish.sa_pairs import SAPairs, as_sa_pairs


@dataclass(frozen=True, eq=False)
class MiniBatch:
    """The sequences of one optimizer step, as micro-batches. Each is cut out of its table when it is asked for."""

    parts: list[tuple[SAPairs, Tensor]]
    """Table and rows of every micro-batch."""

    @property
    def num_tokens(self) -> int:
        return sum(int(table.mask[rows].sum()) for table, rows in self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[SAPairs]:
        return (table.select(rows) for table, rows in self.parts)

    def halved(self) -> MiniBatch | None:
        """The same sequences in micro-batches of half the size; None if each holds one sequence already."""
        if all(len(rows) == 1 for _, rows in self.parts):
            return None
        return MiniBatch([(t, half) for t, rows in self.parts for half in rows.tensor_split(2) if len(half)])


class ExperienceBuffer:
    """Stores rollouts and deals them out again.

    A mini-batch (one optimizer step) is a random set of sequences, drawn without regard to length: which tokens share
    a gradient must not depend on padding. Inside it, sequences of similar length share a micro-batch (one forward and
    backward pass) under a token budget, so that little of the pass is padding.
    """

    def __init__(self) -> None:
        self.tables: list[SAPairs] = []

    def store(self, sa_pairs: Rows) -> None:
        self.tables.append(as_sa_pairs(sa_pairs))

    def clear(self) -> None:
        self.tables.clear()

    def __len__(self) -> int:
        """Number of sequences."""
        return sum(table.mask.shape[0] for table in self.tables)

    @property
    def nbytes(self) -> int:
        """Memory of the stored tables and of the context that the base computed for them."""
        return sum(t.nbytes + (0 if t.context is None else t.context.nbytes) for t in self.tables)

    def moments(self, column: str) -> tuple[Tensor, Tensor]:
        """Mean and variance of a column over all real tokens stored."""
        values = torch.cat([table[column][table.mask] for table in self.tables])
        everything = torch.ones_like(values, dtype=torch.bool)
        return masked_mean(values, everything), masked_var(values, everything)

    def mini_batches(
        self,
        mini_batch_size: int | None,
        max_tokens: int,
        micro_batch_size: int | None = None,
        generator: torch.Generator | None = None,
        prefix_cost: float = 0.0,
    ) -> Iterator[MiniBatch]:
        """One epoch: each mini-batch in micro-batches, every sequence once, in a fresh random order.

        A token of the prompt's shared prefix, which a pass reads but does not compute, counts as `prefix_cost` tokens.
        """
        if not self.tables:
            raise InputError("the experience buffer is empty; store a rollout first")
        order = torch.randperm(len(self), generator=generator)
        for chosen in order.split(mini_batch_size or len(self)):
            yield MiniBatch(
                [
                    (table, part)
                    for table, rows in self._by_table(chosen)
                    for part in _micro(table, rows, max_tokens, micro_batch_size, prefix_cost)
                ]
            )

    def _by_table(self, sequences: Tensor) -> Iterator[tuple[SAPairs, Tensor]]:
        first = 0
        for table in self.tables:
            size = table.mask.shape[0]
            rows = sequences[(sequences >= first) & (sequences < first + size)] - first
            if len(rows):
                yield table, rows
            first += size


def _micro(
    table: SAPairs, rows: Tensor, max_tokens: int, micro_batch_size: int | None, prefix_cost: float
) -> Iterator[Tensor]:
    """Neighbours in length share a micro-batch; its padded size stays within the budget (or it is one sequence).

    The longest come first: what follows fits into the memory that they leave.
    """
    prefix, prompt, response = (part.cpu()[rows] for part in pass_lengths(table))  # [n] each
    order = (prompt + response).argsort(stable=True, descending=True)
    rows = rows[order]
    parts = torch.stack([prefix * prefix_cost, prompt, response], dim=1)[order]  # [n, 3]
    start = 0
    for end in range(1, len(rows) + 1):
        grown = parts[start : end + 1].amax(0).sum()  # the widths, if the next sequence joined
        too_large = (end + 1 - start) * grown > max_tokens
        if end == len(rows) or too_large or end - start == micro_batch_size:
            yield rows[start:end]
            start = end


def pass_lengths(table: SAPairs) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens of each sequence in a training pass: of the prefix, the prompt's adapted end, the response.  [B] each

    The last response token is not computed (no state comes after it).
    """
    if table.context is None or table.prompt_mask is None:
        return torch.zeros_like(table.lengths), torch.zeros_like(table.lengths), table.lengths
    start = table.context.start
    return table.prompt_mask[:, :start].sum(1), table.prompt_mask[:, start:].sum(1), table.lengths - 1
