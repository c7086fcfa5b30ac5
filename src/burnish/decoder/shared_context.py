"""What the frozen base computes once for a batch of sequences, and every role and every epoch starts from."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from burnish.decoder.key_values import FixedPrefix, OwnKeys, States, nbytes_of
from burnish.decoder.shared_prefix import SharedPrefix


@dataclass(frozen=True, eq=False)
class SharedContext:
    """A batch as the adapters see it: a prefix that is the base's business alone, and a suffix that they act on.

    In response scope the prefix is the prompt without its invocation tokens; in sequence scope it is empty. The
    suffix is the rest of the prompt and all response tokens but the last (no state comes after it).
    """

    prompt_ids: Tensor
    """[B, P] left-padded."""
    prompt_mask: Tensor
    """[B, P] bool."""
    response: Tensor
    """[B, T] right-padded token ids."""
    start: int
    """First prompt column of the suffix."""
    prefix: Tensor
    """[layers above the trunk, 2, B, key_heads, start, D] keys and values; fewer rows where `prefix_rows` says so."""
    trunk: Tensor | None
    """[B, P - start + T - 1, H] hidden states after the adapter-free lower layers; None: there are none."""
    reference: Tensor | None = None
    """[B, T, H] the reference's state before each response token; None: nothing in training needs it."""
    prefix_rows: Tensor | None = None
    """[B] which row of `prefix` each sequence reads, where some read the same one; None: each its own."""
    states: States = field(default_factory=dict)
    """[B, ...] what layers that are not attention keep of the prefix."""

    @property
    def suffix_ids(self) -> Tensor:
        """[B, S] with S = P - start + T - 1."""
        return torch.cat([self.prompt_ids[:, self.start :], self.response[:, :-1]], dim=1)

    @property
    def key_mask(self) -> Tensor:
        """[B, P + T - 1] bool: what may be attended to. Response padding is on the right, so causality hides it."""
        tail = self.prompt_mask.new_ones(self.response.shape[0], self.response.shape[1] - 1)
        return torch.cat([self.prompt_mask, tail], dim=1)

    @property
    def nbytes(self) -> int:
        held = (self.prefix, self.trunk, self.reference)
        return sum(t.numel() * t.element_size() for t in held if t is not None) + nbytes_of(self.states)

    def on_its_own(self) -> SharedContext:
        """With a copy of the prefix: what it was cut from may change, or leave memory."""
        states = {place: state.clone() for place, state in self.states.items()}
        return replace(self, prefix=self.prefix.clone(), states=states)

    def rows(self, rows: Tensor, prompt_width: int | None, response_width: int) -> SharedContext:
        """Some sequences, cut to the widths they need: left columns of the prompt, right columns of the response."""
        prompt_width = int(self.prompt_mask[rows].sum(1).max()) if prompt_width is None else prompt_width
        cut = self.prompt_ids.shape[1] - prompt_width
        start = max(self.start - cut, 0)
        suffix_cut = max(cut - self.start, 0)  # only in sequence scope does the cut reach into the suffix
        suffix_width = prompt_width - start + response_width - 1
        used, prefix_rows = rows, None
        if self.prefix_rows is not None:
            used, prefix_rows = self.prefix_rows[rows].unique(return_inverse=True)
            if len(used) == len(rows) or start == 0:
                used, prefix_rows = self.prefix_rows[rows], None
        return SharedContext(
            prompt_ids=self.prompt_ids[rows, cut:],
            prompt_mask=self.prompt_mask[rows, cut:],
            response=self.response[rows, :response_width],
            start=start,
            prefix=self.prefix[:, :, used, :, self.start - start :],
            trunk=None if self.trunk is None else self.trunk[rows, suffix_cut : suffix_cut + suffix_width],
            reference=None if self.reference is None else self.reference[rows, :response_width],
            prefix_rows=prefix_rows,
            states={place: state[rows] for place, state in self.states.items()},
        )

    def cache(self, first_layer: int) -> FixedPrefix | OwnKeys:
        """The prefix as the layers from `first_layer` on read it."""
        if self.prefix_rows is None:
            return FixedPrefix(self.prefix, first_layer, self.states)
        masks = self.prompt_mask.new_zeros(self.prefix.shape[2], self.start)
        masks[self.prefix_rows] = self.prompt_mask[:, : self.start]
        return OwnKeys(SharedPrefix(self.prefix, self.prefix_rows, masks, first_layer))


def positions_of(key_mask: Tensor) -> Tensor:
    """Position ids from the mask, so that left padding moves nothing.  [B, S] -> [B, S]"""
    return (key_mask.long().cumsum(1) - 1).clamp(min=0)


def causal_mask(key_mask: Tensor, num_queries: int) -> Tensor:
    """The last `num_queries` positions see every real key up to themselves.  [B, S] -> [B, 1, Q, S]

    A position always sees itself, real or not: padding then computes something finite that nobody reads.
    """
    width = key_mask.shape[1]
    keys = torch.arange(width, device=key_mask.device)
    queries = keys[width - num_queries :, None]
    return ((key_mask[:, None, :] & (keys <= queries)) | (keys == queries))[:, None]


def seen_through_window(mask: Tensor, window: int) -> Tensor:
    """Of what each query sees, the last `window` columns, its own included.  [B, 1, Q, S] -> [B, 1, Q, S]"""
    num_queries, width = mask.shape[2:]
    keys = torch.arange(width, device=mask.device)
    queries = keys[width - num_queries :, None]
    return mask & (keys > queries - window)
