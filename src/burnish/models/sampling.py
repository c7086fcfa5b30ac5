"""Sampling a token, and scoring it later under the very distribution that it was sampled from.

Top-k and top-p keep a set of tokens at each position. That set is stored, and whoever scores the token afterwards
(the old policy, the new one, the reference) is renormalised over the same set. So the first ratio is 1, the KL is a
true KL between two distributions over one set, and the head needs only the kept rows of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from burnish.errors import DivergedError
from burnish.maths import entropy

# Up to this many kept tokens it is cheaper to gather their rows of the head than to multiply with all of it.
MAX_GATHERED_ROWS = 512
LOGITS_CHUNK = 256  # positions whose full-vocabulary logits exist at the same time


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
        if self.top_k or self.top_p < 1.0:
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

    def _truncate(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The kept logits in falling order (-inf where fewer) and their ids (-1 where fewer)."""
        vocabulary = z.shape[1]
        z, ids = z.topk(min(self.top_k or vocabulary, vocabulary))
        p = z.softmax(-1)
        # A token stays while the mass before it is below top_p; the first always does.
        stays = p.cumsum(-1) - p < self.top_p
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
        logprobs, gradients = [], []
        for first in range(0, len(hidden), LOGITS_CHUNK):
            chunk = slice(first, first + LOGITS_CHUNK)
            h, a = hidden[chunk], action[chunk, None]
            ids = None if kept is None else kept[chunk].long().clamp(min=0)  # [n, k]
            rows = None if ids is None or ids.shape[1] > MAX_GATHERED_ROWS else head[ids]  # [n, k, H]
            z = h @ head.T if rows is None else (rows @ h[:, :, None]).squeeze(2)
            z = z if ids is None or rows is not None else z.gather(1, ids)
            z = z.float().div_(temperature)  # [n, V or k]
            if kept is not None:
                z.masked_fill_(kept[chunk] < 0, -torch.inf)
                a = (kept[chunk] == a).long().argmax(1, keepdim=True)
            logprob = z.log_softmax(-1)
            logprobs.append(logprob.gather(1, a).squeeze(1))
            if ctx.needs_input_grad[0]:
                p = logprob.exp_().to(head.dtype)
                if rows is not None:
                    expected = (p[:, None] @ rows).squeeze(1)  # [n, H]
                else:
                    p = p if ids is None else p.new_zeros(len(p), len(head)).scatter_add_(1, ids, p)
                    expected = p @ head
                gradients.append((head[action[chunk]] - expected).div_(temperature))
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(torch.cat(gradients))
        return torch.cat(logprobs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return grad[:, None].to(gradient.dtype) * gradient, None, None, None, None
