"""The experience buffer: whole sequences in, mini-batches out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from burnish.decoder.shared_context import SharedContext
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
        contexts = (context for t in self.tables for context in (t.context, t.critic_context) if context is not None)
        return sum(t.nbytes for t in self.tables) + sum(context.nbytes for context in contexts)

    def moments(self, column: str) -> tuple[Tensor, Tensor]:
        """Mean and variance of a column over all real tokens stored."""
        values = torch.cat([table[column][table.mask] for table in self.tables])
        everything = torch.ones_like(values, dtype=torch.bool)
        return masked_mean(values, everything), masked_var(values, everything)

    def mini_batches(
        self,
        mini_batch_size: int | None,
        generator: torch.Generator | None = None,
        prefix_cost: float = 0.0,
        responses_per_prompt: int = 1,
        weight_of: Callable[[Tensor], float] = lambda lengths: int(lengths.sum()),
        of_critic: bool = False,
        state_cost: float = 0.0,
    ) -> Iterator[Batch[SAPairs]]:
        """One epoch in mini-batches: every sequence once, in a fresh random order; those of one prompt together.

        A token of the prompt's shared prefix, which a pass reads but does not compute, counts as `prefix_cost` tokens,
        and what it reads of a prefix whatever its length as `state_cost`.
        `weight_of` says, by the lengths of a mini-batch's responses, what their summed loss is divided by. `of_critic`:
        the passes are a value model's, which may read more than the policy does.
        """
        if not self.tables:
            raise InputError("the experience buffer is empty; store a rollout first")
        prompts = self._prompts() if responses_per_prompt > 1 else [[n] for n in range(len(self))]
        order = torch.randperm(len(prompts), generator=generator)
        size = len(prompts) if mini_batch_size is None else max(1, mini_batch_size // responses_per_prompt)
        for chosen in order.split(size):
            parts = list(self._by_table(torch.tensor([n for prompt in chosen.tolist() for n in prompts[prompt]])))
            weight = weight_of(torch.cat([table.lengths[rows] for table, rows in parts]))  # of all processes' responses
            own = ((table, _own(table, rows)) for table, rows in parts)
            items = [_items(table, rows, prefix_cost, state_cost, of_critic) for table, rows in own if len(rows)]
            yield Batch(items, weight)

    def _prompts(self) -> list[list[int]]:
        """The sequences of each prompt."""
        prompts: dict[tuple[int, int], list[int]] = {}
        places = ((number, group) for number, table in enumerate(self.tables) for group in table.groups)
        for sequence, place in enumerate(places):
            prompts.setdefault(place, []).append(sequence)
        return list(prompts.values())

    def _by_table(self, sequences: Tensor) -> Iterator[tuple[SAPairs, Tensor]]:
        first = 0
        for table in self.tables:
            size = table.mask.shape[0]
            rows = sequences[(sequences >= first) & (sequences < first + size)] - first
            if len(rows):
                yield table, rows
            first += size


def _own(table: SAPairs, rows: Tensor) -> Tensor:
    """Those of the rows that this process works on."""
    if len(table.own_rows) == len(table.mask):
        return rows
    return rows[torch.isin(rows, torch.tensor(list(table.own_rows), dtype=torch.long))]


def _items(table: SAPairs, rows: Tensor, prefix_cost: float, state_cost: float, of_critic: bool) -> Items[SAPairs]:
    """Some sequences of a table. Each pass is cut out of it when it is asked for."""
    context = (table.critic_context if of_critic else None) or table.context
    held, _ = table.held(rows)  # where they are in the context
    prefix, prompt, response = (part.cpu() for part in pass_lengths(table, context))
    return Items(
        sizes=torch.stack([prefix[held] * prefix_cost + state_cost, prompt[held], response[rows]], dim=1).tolist(),
        shared=None if context is None or context.prefix_rows is None else context.prefix_rows.cpu()[held].tolist(),
        take=lambda chosen: table.select(rows[chosen]),
        name_of=lambda item: f"response {table.numbers[int(rows[item])]}",
    )


def pass_lengths(table: SAPairs, context: SharedContext | None) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens of each sequence in a training pass: of the prefix, the prompt's adapted end, the response.  [B] each; of
    the prompt only where the context is here.

    The last response token is not computed (no state comes after it).
    """
    if context is None:
        return torch.zeros_like(table.lengths), torch.zeros_like(table.lengths), table.lengths
    prompt_mask, start = context.prompt_mask, context.start
    return prompt_mask[:, :start].sum(1), prompt_mask[:, start:].sum(1), table.lengths - 1
