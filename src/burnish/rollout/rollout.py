"""What generation gives, whichever engine did it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.decoder.shared_context import SharedContext
from burnish.models.policy_model import PolicyModel
from burnish.rollout.sampling import Sampler
from burnish.sa_pairs.padding import left_padded, right_padded


@dataclass(frozen=True, eq=False)
class Rollout:
    """B responses of up to T tokens. The tokens are all that an engine must give; what it does not know is None, and
    is computed by a pass over the finished responses.
    """

    prompt_ids: Tensor
    """[B, P] left-padded."""
    prompt_mask: Tensor
    """[B, P] bool."""
    action: Tensor
    """[B, T] the generated tokens, right-padded."""
    mask: Tensor
    """[B, T] bool: True on generated tokens, the stop token included."""
    finished: Tensor
    """[B] bool: ended in a stop token."""
    logprob: Tensor | None = None
    """[B, T] log-probability of each token under what it was sampled from."""
    entropy: Tensor | None = None
    """[B, T] entropy of what it was sampled from."""
    kept: Tensor | None = None
    """[B, T, k] ids that top-k and top-p kept, -1 where fewer; None: the whole vocabulary."""
    states: Tensor | None = None
    """[B, T, H] what each token was sampled from, ready for the head."""
    context: SharedContext | None = None
    """What the frozen base computed on the way."""

    @classmethod
    def joined(cls, parts: Sequence[Rollout], places: Sequence[Sequence[int]]) -> Rollout:
        """Several as one, each with the places of its responses in the whole. Their contexts are not kept: each was
        computed for its own widths.
        """
        order = torch.tensor([place for own in places for place in own]).argsort()

        def column(tensors: Sequence[Tensor | None], left: bool = False, fill: int = 0) -> Any:
            known = [t for t in tensors if t is not None]
            return _beside(known, left, fill)[order] if len(known) == len(tensors) else None

        return cls(
            prompt_ids=column([p.prompt_ids for p in parts], left=True),
            prompt_mask=column([p.prompt_mask for p in parts], left=True),
            action=column([p.action for p in parts]),
            mask=column([p.mask for p in parts]),
            finished=torch.cat([p.finished for p in parts])[order],
            logprob=column([p.logprob for p in parts]),
            entropy=column([p.entropy for p in parts]),
            kept=column([p.kept for p in parts], fill=-1),
            states=column([p.states for p in parts]),
        )

    @classmethod
    def of_tokens(
        cls, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], finished: Sequence[bool]
    ) -> Rollout:
        """From token ids alone, as a server gives them."""
        return cls(*left_padded(prompts), *right_padded(responses), torch.tensor(finished))


def _beside(tensors: Sequence[Tensor], left: bool, fill: int) -> Tensor:
    """Batches under each other, padded to one width (and depth).  [B, T, ...] each"""
    widest = [max(t.shape[d] for t in tensors) for d in range(tensors[0].dim())]
    padded = []
    for t in tensors:
        missing = [most - size for most, size in zip(widest, t.shape, strict=True)]
        sides = [(0, m) for m in reversed(missing[2:])] + [(missing[1], 0) if left else (0, missing[1])]
        padded.append(F.pad(t, [n for side in sides for n in side], value=fill))  # torch begins with the last dimension
    return torch.cat(padded)


@runtime_checkable
class EngineOfSeveral(Protocol):
    """One that several processes ask for their shares, and that gives them what one process would get."""

    def generate_own(
        self,
        speaker: PolicyModel,
        prompts: Sequence[Sequence[int]],
        own: range,
        max_new_tokens: int,
        sampler: Sampler,
        generator: torch.Generator | None = None,
        stop_ids: Sequence[int] | None = None,
    ) -> Rollout | None:
        """Continues the prompts in `own`, and draws random numbers for all of them; None, if `own` is empty."""
        ...


class Engine(Protocol):
    """Something that generates. `LocalEngine` decodes with the shared base."""

    def generate(
        self,
        speaker: PolicyModel,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        sampler: Sampler,
        generator: torch.Generator | None = None,
        stop_ids: Sequence[int] | None = None,
    ) -> Rollout:
        """Continues every prompt as `speaker` until a stop token (the base's own unless given) or `max_new_tokens`."""
        ...
