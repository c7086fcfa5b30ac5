"""The critic: how much reward is still to come, read off the state before each token."""

from __future__ import annotations

from torch import Tensor, nn

from burnish.models.base_model import ScalarModel
from burnish.models.shared_base import SharedBase
from burnish.models.shared_context import SharedContext


class ValueModel(ScalarModel):
    """Adapter and scalar head. The head starts at zero, so the first advantages are the rewards themselves."""

    def __init__(self, base: SharedBase, adapter: str = "value") -> None:
        super().__init__(base, adapter)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def values(self, context: SharedContext, mask: Tensor) -> Tensor:
        """V(s) before every response token.  -> [B, T], zero outside the mask"""
        return self.read(self.base.state_hidden(self.adapter, context)) * mask
