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

    def __call__(self, logits: Tensor, generator: torch.Generator | None = None) -> Sampled:
        z = logits.float() / self.temperature  # [n, V]
        if not torch.isfinite(z.amax(-1)).all():
            raise DivergedError(
                "the policy's logits are not finite; its last update ruined it. Lower the learning rate"
            )
        kept = None
        if self.top_k or self.top_p < 1.0:
            z, kept = self._truncate(z)  # [n, k] each
        if self.greedy:
            choice = z.argmax(-1, keepdim=True)
        else:
            choice = torch.multinomial(z.softmax(-1), 1, generator=generator)  # [n, 1]
        action = choice if kept is None else kept.gather(1, choice)
        return Sampled(
            action=action.squeeze(1).long(),
            logprob=z.log_softmax(-1).gather(1, choice).squeeze(1),
            entropy=entropy(z),
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


class _WholeVocabulary(torch.autograd.Function):
    """log softmax(hidden @ head.T / temperature) at the actions, in chunks.

    The gradient of a row is known as soon as its softmax is: W[action] - sum_v p_v W[v]. So the forward pass computes
    both while a chunk's logits are at hand, nothing of size [N, V] survives it, and nothing is computed twice.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, action: Tensor, temperature: float) -> Tensor:
        wants_gradient = ctx.needs_input_grad[0]
        logprobs, gradients = [], []
        for h, a in zip(hidden.split(LOGITS_CHUNK), action.split(LOGITS_CHUNK), strict=True):
            z = (h @ head.T).float().div_(temperature)  # [n, V]
            highest = z.amax(-1, keepdim=True)
            chosen = z.gather(1, a[:, None]) - highest
            z.sub_(highest).exp_()
            total = z.sum(-1, keepdim=True)
            logprobs.append((chosen - total.log()).squeeze(1))
            if wants_gradient:
                expected = (z.to(head.dtype) @ head).float() / total  # [n, H]
                gradients.append((head[a].float() - expected) / temperature)
        if wants_gradient:
            ctx.save_for_backward(torch.cat(gradients).to(hidden.dtype))
        return torch.cat(logprobs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return grad[:, None].to(gradient.dtype) * gradient, None, None, None


def selected_logprobs(
    hidden: Tensor, head: Tensor, action: Tensor, kept: Tensor | None, temperature: float = 1.0
) -> Tensor:
    """log pi(action) over the kept set (or the whole vocabulary), differentiable in `hidden`.

    hidden [N, H], head [V, H], action [N], kept [N, k] or None  ->  [N]. No [N, V] tensor is ever kept.
    """
    if kept is None:
        return _WholeVocabulary.apply(hidden, head, action, temperature)
    if kept.shape[1] <= MAX_GATHERED_ROWS:
        kept = kept.long()
        z = (head[kept.clamp(min=0)] @ hidden[:, :, None]).squeeze(2)  # [N, k]
    else:
        chunks = zip(hidden.split(LOGITS_CHUNK), kept.clamp(min=0).split(LOGITS_CHUNK), strict=True)
        z = torch.cat([(h @ head.T).gather(1, ids.long()) for h, ids in chunks])  # [N, k]
    z = (z.float() / temperature).masked_fill(kept < 0, -torch.inf)
    chosen = (kept == action[:, None]).long().argmax(1, keepdim=True)
    return z.log_softmax(-1).gather(1, chosen).squeeze(1)
