"""The head: log-probabilities and KL of hidden states, without ever holding all logits.

Top-k and top-p keep a set of tokens at each position. That set is stored, and the policy, old and new, is renormalised
over it. So the first ratio is 1, and the policy's head needs only the kept rows of the vocabulary. The reference is not
renormalised: the KL is that of what is sampled to the reference's whole distribution. Over the kept set alone it would
vanish as the policy sharpens, because any two distributions over one token are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from burnish.maths import entropy, exact_kl

# Up to this many kept tokens it is cheaper to gather their rows of the head than to multiply with all of it.
MAX_GATHERED_ROWS = 512
CHUNK_BYTES = 48 * 2**20  # of logits, or of gathered rows of the head, that exist at the same time


@dataclass(frozen=True, eq=False)
class Head:
    """How logits come from states: z = h W^T + b, and where there is a cap, cap * tanh(z / cap)."""

    weight: Tensor
    """[V, H]"""
    bias: Tensor | None = None
    """[V]"""
    cap: float | None = None

    @property
    def like(self) -> Tensor:
        """What has the weight's shape, format and device."""
        return self.weight

    def formed(self, products: Tensor, ids: Tensor | None = None) -> Tensor:
        """Logits from the states' products with all rows of the weight, or with those of `ids` [n, k].  [n, V or k]"""
        if self.bias is not None:
            products = products + (self.bias if ids is None else self.bias[ids])
        return products if self.cap is None else torch.tanh(products / self.cap) * self.cap

    def slopes(self, logits: Tensor, temperature: float) -> Tensor | None:
        """d z / d products = 1 - (z / cap)^2, from z / temperature; None: 1 everywhere.  [n, V or k]"""
        if self.cap is None:
            return None
        slopes = 1 - (logits * (temperature / self.cap)).square()
        return slopes.clamp_(min=0.0)  # of a token that is not kept, z is minus infinity


def selected_logprobs(
    hidden: Tensor, head: Head, action: Tensor, kept: Tensor | None, temperature: float = 1.0
) -> Tensor:
    """log pi(action) over the kept set (or the whole vocabulary), differentiable in `hidden`.

    hidden [N, H], action [N], kept [N, k] or None  ->  [N]
    """
    return _SelectedLogprobs.apply(hidden, head, action, kept, temperature)


def kl_of_states(hidden: Tensor, ref_hidden: Tensor, head: Head, temperature: float = 1.0) -> Tensor:
    """KL(policy || reference) over the whole vocabulary at each state, differentiable in `hidden`.

    hidden and ref_hidden [N, H]  ->  [N]
    """
    return _KLOfStates.apply(hidden, ref_hidden, head, temperature)


def kl_from_states(hidden: Tensor, teacher_hidden: Tensor, head: Head, temperature: float = 1.0) -> Tensor:
    """KL(teacher || student) over the whole vocabulary at each state, differentiable in the student's `hidden`.

    hidden and teacher_hidden [N, H]  ->  [N]
    """
    return _KLFromStates.apply(hidden, teacher_hidden, head, temperature)


def entropy_of_states(hidden: Tensor, head: Head, kept: Tensor | None, temperature: float = 1.0) -> Tensor:
    """Entropy over the kept set (or the whole vocabulary) at each state, differentiable in `hidden`.

    hidden [N, H], kept [N, k] or None  ->  [N]
    """
    return _EntropyOfStates.apply(hidden, head, kept, temperature)


@torch.no_grad()
def against_reference(
    hidden: Tensor, ref_hidden: Tensor, head: Head, action: Tensor, kept: Tensor | None, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """log pi_ref(action) over the whole vocabulary, and KL(what is sampled || reference) of each position.

    hidden and ref_hidden [N, H], action [N], kept [N, k] or None  ->  [N], [N]
    """
    ref_logprob, kl = (hidden.new_empty(len(hidden), dtype=torch.float32) for _ in range(2))
    for chunk in _chunks(len(hidden), head.weight, kept, whole=True):
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


def _logits(hidden: Tensor, head: Head, temperature: float) -> Tensor:
    return head.formed(hidden @ head.weight.T).float().div_(temperature)  # [n, V]


def _kept_logits(hidden: Tensor, head: Head, kept: Tensor, temperature: float) -> tuple[Tensor, Tensor | None]:
    """Logits of the kept tokens [n, k], -inf where fewer; and their rows of the head, where only these were read."""
    ids = _ids(kept)
    rows = head.weight[ids] if kept.shape[1] <= MAX_GATHERED_ROWS else None  # [n, k, H]
    z = (hidden @ head.weight.T).gather(1, ids) if rows is None else (rows @ hidden[:, :, None]).squeeze(2)
    return head.formed(z, ids).float().div_(temperature).masked_fill_(kept < 0, -torch.inf), rows


def _of_states(
    of_logits: Tensor, slopes: Tensor | None, head: Head, rows: Tensor | None, kept: Tensor | None, temperature: float
) -> Tensor:
    """What a gradient in logits / temperature is in the states: rows of the head, each times its weight.

    of_logits and slopes [n, k or V], rows [n, k, H] or None, kept [n, k] or None  ->  [n, H]
    """
    weights = (of_logits if slopes is None else of_logits * slopes).to(head.weight.dtype)
    if rows is not None:
        return (weights[:, None] @ rows).squeeze(1).div_(temperature)
    if kept is not None:
        weights = weights.new_zeros(len(weights), len(head.weight)).scatter_add_(1, _ids(kept), weights)
    return (weights @ head.weight).div_(temperature)


class _OfStates(torch.autograd.Function):
    """Something of each state, whose gradient in the state was formed in the forward pass and saved."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return grad[:, None].to(gradient.dtype) * gradient, *[None] * (len(ctx.needs_input_grad) - 1)


class _SelectedLogprobs(_OfStates):
    """log softmax(logits / temperature) at the actions, in chunks of states; d/dz_v = [v = action] - p_v.

    The gradient of a state is known as soon as its softmax is. So the forward pass computes both while a chunk's logits
    are at hand: nothing of their size survives it, and nothing is computed twice.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Head, action: Tensor, kept: Tensor | None, temperature: float
    ) -> Tensor:
        selected = hidden.new_empty(len(hidden), dtype=torch.float32)
        gradient = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None  # [N, H]
        for chunk in _chunks(len(hidden), head.weight, kept, whole=False):
            own, a, rows = None if kept is None else kept[chunk], action[chunk, None], None
            if own is None:
                z = _logits(hidden[chunk], head, temperature)  # [n, V]
            else:
                z, rows = _kept_logits(hidden[chunk], head, own, temperature)  # [n, k]
                a = (own == a).long().argmax(1, keepdim=True)
            slopes, logprob = head.slopes(z, temperature), z.log_softmax(-1)
            selected[chunk] = logprob.gather(1, a).squeeze(1)
            if gradient is not None:
                of_logits = logprob.exp_().neg_()
                of_logits.scatter_add_(1, a, torch.ones_like(a, dtype=of_logits.dtype))
                gradient[chunk] = _of_states(of_logits, slopes, head, rows, own, temperature)
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return selected


class _KLOfStates(_OfStates):
    """sum_v p_v (log p_v - log q_v), in chunks of states; d/dz_v = p_v (log p_v - log q_v - KL)."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, ref_hidden: Tensor, head: Head, temperature: float) -> Tensor:
        kl = hidden.new_empty(len(hidden), dtype=torch.float32)
        gradient = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None  # [N, H]
        for chunk in _chunks(len(hidden), head.weight, None, whole=True):
            z = _logits(hidden[chunk], head, temperature)  # [n, V]
            slopes, logprobs = head.slopes(z, temperature), z.log_softmax(-1)
            del z  # its room is for the reference's
            difference = _logits(ref_hidden[chunk], head, temperature).log_softmax(-1).neg_().add_(logprobs)
            p = logprobs.exp_()
            kl[chunk] = (p[:, None] @ difference[:, :, None]).reshape(-1)  # [n]
            if gradient is not None:
                of_logits = difference.sub_(kl[chunk, None]).mul_(p)  # [n, V]
                gradient[chunk] = _of_states(of_logits, slopes, head, None, None, temperature)
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return kl


class _KLFromStates(_OfStates):
    """sum_v q_v (log q_v - log p_v) with the teacher's q, in chunks of states; d/dz_v = p_v - q_v."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, teacher_hidden: Tensor, head: Head, temperature: float) -> Tensor:
        kl = hidden.new_empty(len(hidden), dtype=torch.float32)
        gradient = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None  # [N, H]
        for chunk in _chunks(len(hidden), head.weight, None, whole=True):
            z = _logits(hidden[chunk], head, temperature)  # [n, V]
            slopes, logprobs = head.slopes(z, temperature), z.log_softmax(-1)
            del z  # its room is for the teacher's
            taught = _logits(teacher_hidden[chunk], head, temperature).log_softmax(-1)
            kl[chunk] = exact_kl(taught, logprobs)
            if gradient is not None:
                of_logits = logprobs.exp_().sub_(taught.exp_())  # [n, V]
                gradient[chunk] = _of_states(of_logits, slopes, head, None, None, temperature)
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return kl


class _EntropyOfStates(_OfStates):
    """-sum_v p_v log p_v, in chunks of states; d/dz_v = -p_v (log p_v + entropy)."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Head, kept: Tensor | None, temperature: float) -> Tensor:
        result = hidden.new_empty(len(hidden), dtype=torch.float32)
        gradient = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None  # [N, H]
        for chunk in _chunks(len(hidden), head.weight, kept, whole=False):
            own, rows = None if kept is None else kept[chunk], None
            if own is None:
                z = _logits(hidden[chunk], head, temperature)  # [n, V]
            else:
                z, rows = _kept_logits(hidden[chunk], head, own, temperature)  # [n, k]
            slopes, logprob = head.slopes(z, temperature), z.log_softmax(-1)
            result[chunk] = entropy(logprob)
            if gradient is not None:
                p = logprob.exp()
                of_logits = logprob.masked_fill_(p == 0, 0.0).add_(result[chunk, None]).mul_(p).neg_()
                gradient[chunk] = _of_states(of_logits, slopes, head, rows, own, temperature)
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return result
