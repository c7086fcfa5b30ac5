"""Sampling a token, and scoring it later under the very distribution that it was sampled from.

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

from burnish.errors import DivergedError
from burnish.maths import entropy, exact_kl

# Up to this many kept tokens it is cheaper to gather their rows of the head than to multiply with all of it.
MAX_GATHERED_ROWS = 512
CHUNK_BYTES = 48 * 2**20  # of logits, or of gathered rows of the head, that exist at the same time


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

    def __call__(
        self, logits: Tensor, generator: torch.Generator | None = None, numbers: Tensor | None = None
    ) -> Sampled:
        """`numbers` [n] are the responses that the rows belong to."""
        z = logits.float() / self.temperature  # [n, V]
        finite = torch.isfinite(z.amax(-1))
        if not finite.all():
            row = int((~finite).nonzero()[0])
            raise DivergedError(
                f"the policy's logits are not finite (response {row if numbers is None else int(numbers[row])}); its "
                "last update ruined it. Lower the learning rate"
            )
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
        width = int(stays.sum(1).max())
        z, ids, stays = z[:, :width], ids[:, :width], stays[:, :width]
        return z.masked_fill(~stays, -torch.inf), ids.masked_fill(~stays, -1).int()


def draw(p: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One index a row, by its probability: where the running sum passes a uniform number.  [n, V] -> [n, 1]

    One random number a row; torch.multinomial takes one for every entry, which on a CPU costs more than the logits.
    """
    running = p.cumsum(-1, dtype=torch.float64)
    u = torch.rand(len(p), 1, dtype=torch.float64, device=p.device, generator=generator)
    return torch.searchsorted(running, u * running[:, -1:], right=True).clamp(max=p.shape[1] - 1)


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


class _SelectedLogprobs(torch.autograd.Function):
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
                p = logprob.exp_().to(head.dtype)
                if rows is not None:
                    expected = (p[:, None] @ rows).squeeze(1)  # [n, H]
                else:
                    if kept is not None:
                        p = p.new_zeros(len(p), len(head)).scatter_add_(1, _ids(kept[chunk]), p)
                    expected = p @ head
                gradient[chunk] = (head[action[chunk]] - expected).div_(temperature)
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return selected

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return grad[:, None].to(gradient.dtype) * gradient, None, None, None, None


class _KLOfStates(torch.autograd.Function):
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

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return grad[:, None].to(gradient.dtype) * gradient, None, None, None
