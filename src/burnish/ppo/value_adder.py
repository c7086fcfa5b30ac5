"""Values: what the critic expects before each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from burnish.base_setup.tokenizer_setup import PromptEncoder
from burnish.decoder.shared_context import SharedContext
from burnish.models.value_model import ValueModel
from burnish.ppo.clock import Clock, timed
from burnish.ppo.guards import check_finite
from burnish.processes import world
from burnish.sa_pairs.padding import left_padded
from burnish.sa_pairs.shared import whole_column
from burnish.sa_pairs.table import Rows, SAPairs, as_sa_pairs


class ValueAdder:
    """Adds `value`, V(s) of the state before each action: one pass for all sequences, none per pair.

    With an `encoder` the value model reads each prompt's reference answer before the prompt.
    """

    def __init__(
        self, value_model: ValueModel, clock: Clock | None = None, encoder: PromptEncoder | None = None
    ) -> None:
        self.value_model = value_model
        self.clock = clock or Clock()
        self.encoder = encoder

    @timed
    @torch.no_grad()
    def add_values_to_sa_pairs(self, sa_pairs: Rows, prompts: Sequence[str] = ()) -> SAPairs:
        """`prompts`, one for each response, bring the references."""
        pairs = self.value_model.adopt(as_sa_pairs(sa_pairs))
        values = None
        with world.together():
            if self.encoder is not None and pairs.own_rows:
                pairs = replace(pairs, critic_context=self._beside_references(self.encoder, pairs, prompts))
            own = pairs.own()
            if own is not None:
                values = self.value_model.values(own)
                check_finite("value", values, own)
        return pairs.with_columns(value=whole_column(values, pairs))

    def _beside_references(self, encoder: PromptEncoder, pairs: SAPairs, prompts: Sequence[str]) -> SharedContext:
        """Of the responses whose context is here."""
        base = self.value_model.base
        if pairs.here is not None:
            prompts, pairs = [prompts[n] for n in pairs.here], pairs.select(pairs.here)
        prompt_ids, prompt_mask = (t.to(base.device) for t in left_padded(encoder.encode_beside_references(prompts)))
        return base.build_context(prompt_ids, prompt_mask, pairs["action"])
