"""The experience buffer: whole sequences in, mini-batches out."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from burnish.errors import InputError
from burnish.maths import masked_mean, masked_var
from burnish.models.updates import Batch, Items
from burnish.sa_pairs.table import Rows, SAPairs, as_sa_pairs


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
        self, mini_batch_size: int | None, generator: torch.Generator | None = None, prefix_cost: float = 0.0
    ) -> Iterator[Batch[SAPairs]]:
        """One epoch in mini-batches: every sequence once, in a fresh random order.

        A token of the prompt's shared prefix, which a pass reads but does not compute, counts as `prefix_cost` tokens.
        """
        if not self.tables:
            raise InputError("the experience buffer is empty; store a rollout first")
        order = torch.randperm(len(self), generator=generator)
        for chosen in order.split(mini_batch_size or len(self)):
            parts = list(self._by_table(chosen))
            num_tokens = sum(int(table.mask[rows].sum()) for table, rows in parts)
            yield Batch([_items(table, rows, prefix_cost) for table, rows in parts], num_tokens)

    def _by_table(self, sequences: Tensor) -> Iterator[tuple[SAPairs, Tensor]]:
        first = 0
        for table in self.tables:
            size = table.mask.shape[0]
            rows = sequences[(sequences >= first) & (sequences < first + size)] - first
            if len(rows):
                yield table, rows
            first += size


def _items(table: SAPairs, rows: Tensor, prefix_cost: float) -> Items[SAPairs]:
    """Some sequences of a table. Each pass is cut out of it when it is asked for."""
    prefix, prompt, response = (part.cpu()[rows] for part in pass_lengths(table))  # [n] each
    return Items(
        sizes=torch.stack([prefix * prefix_cost, prompt, response], dim=1).tolist(),
        take=lambda chosen: table.select(rows[chosen]),
        name_of=lambda item: f"response {table.numbers[int(rows[item])]}",
    )


def pass_lengths(table: SAPairs) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens of each sequence in a training pass: of the prefix, the prompt's adapted end, the response.  [B] each

    The last response token is not computed (no state comes after it).
    """
    if table.context is None or table.prompt_mask is None:
        return torch.zeros_like(table.lengths), torch.zeros_like(table.lengths), table.lengths
    start = table.context.start
    return table.prompt_mask[:, :start].sum(1), table.prompt_mask[:, start:].sum(1), table.lengths - 1
