"""The learned judge: one score for a prompt and its response, read off the last token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from burnish.errors import InputError
from burnish.models.adapter_files import load_adapter
from burnish.models.base_model import ScalarModel
from burnish.models.key_values import FixedPrefix
from burnish.models.shared_base import SharedBase, context_length
from burnish.sa_pairs import SAPairs, left_padded, right_padded

Encode = Callable[[Sequence[str]], list[list[int]]]


class RewardModel(ScalarModel):
    """Adapter and scalar head. A head that nobody trained gives noise, so scoring with one is refused."""

    def __init__(self, base: SharedBase, encode: Encode, adapter: str = "reward") -> None:
        """`encode` turns prompts into token ids: PromptEncoder.encode, so that texts read as in training."""
        super().__init__(base, adapter)
        self.encode = encode
        self.trained = False
        nn.init.normal_(self.head.weight, std=(base.hidden_size + 1) ** -0.5)
        nn.init.zeros_(self.head.bias)

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
        return self.score_tokens(encoded, answers).tolist()

    def score_tokens(self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> Tensor:
        """One score per prompt and answer, given as token ids; with gradient unless that is switched off."""
        tensors = (*left_padded(prompts), *right_padded(answers))
        return self.scores(*(t.to(self.base.device) for t in tensors))

    @torch.no_grad()
    def normalise(self, mean: float, std: float) -> None:
        """From now on what scored `mean` scores 0, and a spread of `std` is 1: the head's own weights are changed."""
        self.head.weight /= std
        self.head.bias.copy_((self.head.bias - mean) / std)

    @torch.no_grad()
    def score_pairs(self, sa_pairs: SAPairs) -> list[float]:
        """Scores of sequences just generated: the very tokens, over the prompt that the base has already read."""
        if sa_pairs.prompt_ids is None or sa_pairs.prompt_mask is None:
            raise InputError("these SA pairs carry no 'state', so the reward model cannot read them")
        response = self._ended_as_in_training(sa_pairs["action"], sa_pairs.mask)
        return self.scores(sa_pairs.prompt_ids, sa_pairs.prompt_mask, response, sa_pairs.mask).tolist()

    def _ended_as_in_training(self, response: Tensor, mask: Tensor) -> Tensor:
        """A score is read off the last token. A model may stop in several ways, and only one of them was trained on."""
        last = (mask.sum(1, keepdim=True) - 1).clamp(min=0)  # [B, 1]
        token = response.gather(1, last)
        stopped = torch.isin(token, torch.tensor(self.base.stop_ids, device=token.device))
        return response.scatter(1, last, token.masked_fill(stopped, self.base.stop_id))

    def scores(self, prompt_ids: Tensor, prompt_mask: Tensor, response: Tensor, mask: Tensor) -> Tensor:
        """One score per sequence, with gradient.  prompt [B, P] left-padded, response [B, T] right-padded -> [B]"""
        if not (self.trained or torch.is_grad_enabled()):
            raise InputError(
                "this reward model's head is untrained: its scores would be noise. Load a trained one (in a config: "
                "reward: FOLDER), or train it and call mark_trained()"
            )
        base = self.base
        start = base.suffix_start(prompt_ids.shape[1])
        cache = base.read_prompts(prompt_ids, prompt_mask, room=0)
        suffix = torch.cat([prompt_ids[:, start:], response], dim=1)
        key_mask = torch.cat([prompt_mask, torch.ones_like(response, dtype=torch.bool)], dim=1)
        base.take_role(self.adapter)
        hidden = base.run_layers(base.embed(suffix), key_mask, FixedPrefix(cache.room, 0), range(base.num_layers))
        last = hidden.shape[1] - response.shape[1] + mask.sum(1) - 1  # [B]
        return self.read(base.norm(hidden[torch.arange(len(last), device=last.device), last]))

    def load(self, folder: str | Path) -> RewardModel:
        """Takes adapter and head from a folder that `save_adapter` wrote."""
        assert self.adapter is not None
        load_adapter(self.base, self.adapter, Path(folder))
        self.load_head(Path(folder))
        self.trained = True
        return self
