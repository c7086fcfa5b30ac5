"""The learned judge: one score for a prompt and its response, read off the last token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from burnish.decoder.decoder import context_length
from burnish.decoder.shared_base import SharedBase
from burnish.errors import InputError
from burnish.models.adapter_files import load_adapter
from burnish.models.role import ScalarModel
from burnish.sa_pairs.table import SAPairs

Encode = Callable[[Sequence[str]], list[list[int]]]


SCORED_AT_ONCE = 16  # responses, which bounds the memory for keys and values


class RewardModel(ScalarModel):
    """Adapter and scalar head. A head that nobody trained gives noise, so scoring with one is refused."""

    def __init__(self, base: SharedBase, encode: Encode, adapter: str = "reward") -> None:
        """`encode` turns prompts into token ids: PromptEncoder.encode, so that texts read as in training."""
        super().__init__(base, adapter)
        self.encode = encode
        self.trained = False
        nn.init.normal_(self.head.weight, std=(base.hidden_size + 1) ** -0.5)
        nn.init.zeros_(self.head.bias)

    @property
    def models(self) -> list[RewardModel]:
        """Itself: what a reward of several models is asked too."""
        return [self]

    def mark_trained(self) -> None:
        """Says that the head has learned something; whoever trained it calls this."""
        self.trained = True

    @torch.no_grad()
    def compute_rewards(self, prompts: Sequence[str], responses: Sequence[str]) -> list[float]:
        """Scores of texts: the prompts encoded as in training, each response taken as finished."""
        base, encoded = self.base, self.encode(prompts)
        answers = [[*base.tokenizer(r, add_special_tokens=False)["input_ids"], base.stop_id] for r in responses]
        room = context_length(base.model.config)
        for number, (prompt, answer) in enumerate(zip(encoded, answers, strict=True)):
            if len(prompt) + len(answer) > room:
                raise InputError(
                    f"prompt and response {number} have {len(prompt) + len(answer)} tokens; the reward model reads "
                    f"{room}. Shorten them"
                )
        return self.score(SAPairs.of_tokens(encoded, answers, base.device)).tolist()

    @torch.no_grad()
    def judge(self, sa_pairs: SAPairs) -> Tensor:
        """Scores without gradient.  -> [B]"""
        return self.score(sa_pairs)

    @torch.no_grad()
    def normalise(self, mean: float, std: float) -> None:
        """From now on what scored `mean` scores 0, and a spread of `std` is 1: the head's own weights are changed."""
        self.head.weight /= std
        self.head.bias.copy_((self.head.bias - mean) / std)

    def score(self, sa_pairs: SAPairs) -> Tensor:
        """One score per response, with gradient unless that is switched off.  -> [B]"""
        if not self.trained:
            raise InputError(
                "this reward model's head is untrained: its scores would be noise. Load a trained one (in a config: "
                "reward: FOLDER), or train it and call mark_trained()"
            )
        if torch.is_grad_enabled():
            return self.raw_score(sa_pairs)
        bare = replace(sa_pairs, context=None)  # it is read another way, and would only be copied along
        parts = torch.arange(len(sa_pairs.mask)).split(SCORED_AT_ONCE)
        return torch.cat([self.raw_score(bare.select(part)) for part in parts])

    def raw_score(self, sa_pairs: SAPairs) -> Tensor:
        """The same, trained or not: what training looks at.

        A score is read off the state after the last token, as if one more token were to come.
        """
        if sa_pairs.prompt_ids is None or sa_pairs.prompt_mask is None:
            raise InputError("these SA pairs carry no 'state', so the reward model cannot read them")
        response = F.pad(self._ended_as_in_training(sa_pairs["action"], sa_pairs.mask), (0, 1))  # [B, T + 1]
        context = self.base.build_context(sa_pairs.prompt_ids, sa_pairs.prompt_mask, response)
        hidden = self.base.state_hidden(self.adapter, context)  # [B, T + 1, H]
        return self.read(hidden[torch.arange(len(hidden), device=hidden.device), sa_pairs.lengths])

    def _ended_as_in_training(self, response: Tensor, mask: Tensor) -> Tensor:
        """A score is read off the last token. A model may stop in several ways, and only one of them was trained on."""
        last = (mask.sum(1, keepdim=True) - 1).clamp(min=0)  # [B, 1]
        token = response.gather(1, last)
        stopped = torch.isin(token, torch.tensor(self.base.stop_ids, device=token.device))
        return response.scatter(1, last, token.masked_fill(stopped, self.base.stop_id))

    def load(self, folder: str | Path) -> RewardModel:
        """Takes adapter and head from a folder that `save_adapter` wrote."""
        assert self.adapter is not None
        load_adapter(self.base, self.adapter, Path(folder))
        self.load_head(Path(folder))
        self.trained = True
        return self
