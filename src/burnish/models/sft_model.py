"""The reference: the supervised model that the policy must not leave too far behind."""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.decoder.shared_base import SharedBase
from burnish.models.role import LanguageModel
from burnish.sa_pairs.table import SAPairs


class SFTModel(LanguageModel):
    """The frozen base with every adapter off, or with the SFT stage's adapter, which nothing trains any more. It never
    changes, to the bit, however long the policy trains.
    """

    def __init__(self, base: SharedBase, temperature: float = 1.0, adapter: str | None = None) -> None:
        super().__init__(base, adapter, temperature)

    @torch.no_grad()
    def states(self, sa_pairs: SAPairs) -> Tensor:
        return super().states(sa_pairs)
