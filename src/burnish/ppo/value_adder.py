"""Values: what the critic expects before each token."""

from __future__ import annotations

import torch

from burnish.models.value_model import ValueModel
from burnish.ppo.clock import Clock, timed
from burnish.ppo.guards import check_finite
from burnish.sa_pairs.table import Rows, SAPairs, as_sa_pairs


class ValueAdder:
    """Adds `value`, V(s) of the state before each action: one pass for all sequences, none per pair."""

    def __init__(self, value_model: ValueModel, clock: Clock | None = None) -> None:
        self.value_model = value_model
        self.clock = clock or Clock()

    @timed
    @torch.no_grad()
    def add_values_to_sa_pairs(self, sa_pairs: Rows) -> SAPairs:
        pairs = self.value_model.adopt(as_sa_pairs(sa_pairs))
        values = self.value_model.values(pairs)
        check_finite("value", values, pairs)
        return pairs.with_columns(value=values)
