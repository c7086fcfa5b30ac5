"""The critic: how much reward is still to come, read off the state before each token."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from burnish.decoder.shared_base import SharedBase
from burnish.maths import bounded
from burnish.models.adapter_files import load_adapter
from burnish.models.role import ScalarModel
from burnish.sa_pairs.table import SAPairs


class ValueModel(ScalarModel):
    """Adapter and scalar head. The head starts at zero, so the first advantages are the rewards themselves.

    `bounds` keep its values within a range; it then starts in the middle of it.
    """

    def __init__(self, base: SharedBase, adapter: str = "value", bounds: tuple[float, float] | None = None) -> None:
        super().__init__(base, adapter)
        self.bounds = bounds
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def start_from(self, folder: Path, weight: float = 1.0) -> None:
        """Takes adapter and head of a reward model: what it says of an unfinished response is a first guess.

        `weight` is what its scores are multiplied with in the reward.
        """
        assert self.adapter is not None
        load_adapter(self.base, self.adapter, folder)
        self.load_head(folder)
        with torch.no_grad():
            for parameter in self.head.parameters():
                parameter.mul_(weight)

    def values(self, sa_pairs: SAPairs) -> Tensor:
        """V(s) before every response token.  -> [B, T], zero outside the mask"""
        context = sa_pairs.critic_context or self.base.context_of(sa_pairs)
        value = self.read(self.base.state_hidden(self.adapter, context))
        return (value if self.bounds is None else bounded(value, *self.bounds)) * sa_pairs.mask
