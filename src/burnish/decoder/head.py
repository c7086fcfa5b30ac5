"""The head: log-probabilities and KL of hidden states, without ever holding all logits.

Top-k and top-p keep a set of tokens at each position. That set is stored, and the policy, old and new, is renormalised
over it. So the first ratio is 1, and the policy's head needs only the kept rows of the vocabulary. The reference is not
renormalised: the KL is that of what is sampled to the reference's whole distribution. Over the kept set alone it would
vanish as the policy sharpens, because any two distributions over one token are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from burnish.maths import entropy, exact_kl

# Up to this many kept tokens it is cheaper to gather their rows of the head than to multiply with all of it.
MAX_GATHERED_ROWS = 512
CHUNK_BYTES = 48 * 2**20  # of logits, or of gathered rows of the head, that exist at the same time


def selected_logprobs(
    hidden: Tensor, head: Tensor, action: Tensor, kept: Tensor | None, temperature: float = 1.0
) -> Tensor:
    """log pi(action) over the kept set (or the whole vocabulary), differentiable in `hidden`.

    hidden [N, H], head [V, H], action [N], kept [N, k] or None  ->  [N]
    """
    return _SelectedLogprobs.apply(hidden, head, action, kept, temperature)


def kl_of_states(hidden: Tensor, ref_hidden: Tensor, head: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(policy || reference) over the whole vocabulary at each state, differentiable in `hidden`.

    hidden and ref_hidden [N, H], head [V, H]  ->  [N]
    """
    return _KLOfStates.apply(hidden, ref_hidden, head, temperature)


def entropy_of_states(hidden: Tensor, head: Tensor, kept: Tensor | None, temperature: float = 1.0) -> Tensor:
    """Entropy over the kept set (or the whole vocabulary) at each state, differentiable in `hidden`.

    hidden [N, H], head [V, H], kept [N, k] or None  ->  [N]
    """
    return _EntropyOfStates.apply(hidden, head, kept, temperature)


@torch.no_grad()
def against_reference(
    hidden: Tensor, ref_hidden: Tensor, head: Tensor, action: Tensor, kept: Tensor | None, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """log pi_ref(action) over the whole vocabulary, and KL(what is sampled || reference) of each position.

    hidden and ref_hidden [N, H], head [V, H], action [N], kept [N, k] or None  ->  [N], [N]
    """
    ref_logprob, kl = (hidden.new_empty(len(hidden), dtype=torch.float32) for _ in range(2))
    for chunk in _chunks(len(hidden), head, kept, whole=True):
        ref = _logits(ref_hidden[chunk], head, temperature).log_softmax(-1)  # [n, V]
        ref_logprob[chunk] = ref.gather(1, action[chunk, None]).squeeze(1)
        if kept is None:
            logprobs = _logits(hidden[chunk], head, temperature).log_softmax(-1)
        else:
            logprobs = _kept_logits(hidden[chunk], head, kept[chunk], temperature)[0].log_softmax(-1)
            ref = ref.gather(1, _ids(kept[chunk]))
        kl[chunk] = exact_kl(logprobs, ref)
    return ref_logprob, kl


def _chunks(count: int, head: Tensor, kept: Tensor | None, whole: bool) -> Iterator[slice]:
    """Positions that are computed together: as many as CHUNK_BYTES hold of `whole` logits, and of gathered rows.

    Results go into tensors that are there before the first chunk. Small ones made between two chunks would settle in
    the room that a chunk leaves, and the next would have to take new memory, chunk after chunk.
    """
    gathered = kept.shape[1] * head.shape[1] if kept is not None and kept.shape[1] <= MAX_GATHERED_ROWS else 0
    numbers_each = max(gathered, head.shape[0] if whole or not gathered else 0)
    size = max(1, CHUNK_BYTES // (4 * numbers_each))
    return (slice(first, first + size) for first in range(0, count, size))


def _ids(kept: Tensor) -> Tensor:
    return kept.long().clamp(min=0)


def _logits(hidden: Tensor, head: Tensor, temperature: float) -> Tensor:
    return (hidden @ head.T).float().div_(temperature)  # [n, V]


def _kept_logits(hidden: Tensor, head: Tensor, kept: Tensor, temperature: float) -> tuple[Tensor, Tensor | None]:
    """Logits of the kept tokens [n, k], -inf where fewer; and their rows of the head, where only these were read."""
    ids = _ids(kept)
    rows = head[ids] if kept.shape[1] <= MAX_GATHERED_ROWS else None  # [n, k, H]
    z = (hidden @ head.T).gather(1, ids) if rows is None else (rows @ hidden[:, :, None]).squeeze(2)
    return z.float().div_(temperature).masked_fill_(kept < 0, -torch.inf), rows


def _summed_rows(weights: Tensor, head: Tensor, rows: Tensor | None, kept: Tensor | None) -> Tensor:
    """Rows of the head, each times its weight: those gathered, or those of the kept set or the whole vocabulary.

    weights [n, k or V], rows [n, k, H] or None, kept [n, k] or None  ->  [n, H]
    """
    weights = weights.to(head.dtype)
    if rows is not None:
        return (weights[:, None] @ rows).squeeze(1)
    if kept is not None:
        weights = weights.new_zeros(len(weights), len(head)).scatter_add_(1, _ids(kept), weights)
    return weights @ head


class _OfStates(torch.autograd.Function):
    """Something of each state, whose gradient in the state was formed in the forward pass and saved."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return grad[:, None].to(gradient.dtype) * gradient, *[None] * (len(ctx.needs_input_grad) - 1)


class _SelectedLogprobs(_OfStates):
    """log softmax(head @ hidden / temperature) at the actions, in chunks of states.

    The gradient of a state is known as soon as its softmax p is: (head[action] - sum_v p_v head[v]) / temperature. So
    the forward pass computes both while a chunk's logits are at hand: nothing of their size survives it, and nothing
    is computed twice.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, action: Tensor, kept: Tensor | None, temperature: float
    ) -> Tensor:
        selected = hidden.new_empty(len(hidden), dtype=torch.float32)
        gradient = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None  # [N, H]
        for chunk in _chunks(len(hidden), head, kept, whole=False):
            h, a, rows = hidden[chunk], action[chunk, None], None
            if kept is None:
                z = _logits(h, head, temperature)  # [n, V]
            else:
                z, rows = _kept_logits(h, head, kept[chunk], temperature)  # [n, k]
                a = (kept[chunk] == a).long().argmax(1, keepdim=True)
            logprob = z.log_softmax(-1)
            selected[chunk] = logprob.gather(1, a).squeeze(1)
            if gradient is not None:
                expected = _summed_rows(logprob.exp_(), head, rows, None if kept is None else kept[chunk])
                gradient[chunk] = (head[action[chunk]] - expected).div_(temperature)
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return selected


class _KLOfStates(_OfStates):
    """sum_v p_v (log p_v - log q_v), in chunks of states; d/dz_v = p_v (log p_v - log q_v - KL) / temperature."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, ref_hidden: Tensor, head: Tensor, temperature: float) -> Tensor:
        kl = hidden.new_empty(len(hidden), dtype=torch.float32)
        gradient = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None  # [N, H]
        for chunk in _chunks(len(hidden), head, None, whole=True):
            logprobs = _logits(hidden[chunk], head, temperature).log_softmax(-1)  # [n, V]
            difference = _logits(ref_hidden[chunk], head, temperature).log_softmax(-1).neg_().add_(logprobs)
            p = logprobs.exp_()
            kl[chunk] = (p[:, None] @ difference[:, :, None]).reshape(-1)  # [n]
            if gradient is not None:
                of_logits = difference.sub_(kl[chunk, None]).mul_(p).to(head.dtype)  # [n, V]
                gradient[chunk] = (of_logits @ head).div_(temperature)
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return kl


class _EntropyOfStates(_OfStates):
    """-sum_v p_v log p_v, in chunks of states; d/dz_v = -p_v (log p_v + entropy) / temperature."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, kept: Tensor | None, temperature: float) -> Tensor:
        result = hidden.new_empty(len(hidden), dtype=torch.float32)
        gradient = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None  # [N, H]
        for chunk in _chunks(len(hidden), head, kept, whole=False):
            own, rows = None if kept is None else kept[chunk], None
            if own is None:
                z = _logits(hidden[chunk], head, temperature)  # [n, V]
            else:
                z, rows = _kept_logits(hidden[chunk], head, own, temperature)  # [n, k]
            logprob = z.log_softmax(-1)
            result[chunk] = entropy(logprob)
            if gradient is not None:
                p = logprob.exp()
                of_logits = logprob.masked_fill_(p == 0, 0.0).add_(result[chunk, None]).mul_(p).neg_()
                gradient[chunk] = _summed_rows(of_logits, head, rows, own).div_(temperature)
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return result
