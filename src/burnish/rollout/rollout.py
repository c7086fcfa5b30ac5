"""What generation gives, whichever engine did it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
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
    def of_tokens(
        cls, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], finished: Sequence[bool]
    ) -> Rollout:
        """From token ids alone, as a server gives them."""
        return cls(*left_padded(prompts), *right_padded(responses), torch.tensor(finished))


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
