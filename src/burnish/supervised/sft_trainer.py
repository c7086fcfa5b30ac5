"""Supervised fine-tuning: the model learns to answer as the demonstrations do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from burnish.base_setup.base_setup import BaseSetup
from burnish.base_setup.invocation import Invocation
from burnish.base_setup.tokenizer_setup import PromptEncoder
from burnish.config import SFTConfig
from burnish.data import Demonstration, places_of, prompts_of
from burnish.models.policy_model import PolicyModel
from burnish.models.updates import Sums
from burnish.sa_pairs.table import SAPairs
from burnish.supervised.epochs import Epochs, Learning, Statistics


@dataclass(frozen=True)
class _Tokens:
    """A demonstration as the model sees it."""

    prompt: list[int]
    answer: list[int]


class SFTTrainer:
    """A LoRA adapter on demonstrations; the loss is on the completion's tokens alone."""

    def __init__(
        self, config: SFTConfig, model: Any = None, tokenizer: Any = None, encoder: PromptEncoder | None = None
    ) -> None:
        self.config = config
        setup = BaseSetup(config, model, tokenizer, encoder)
        setup.add_adapter("sft")
        self.base, self.encoder = setup.base, setup.encoder
        self.invocation = Invocation(self.base, self.encoder)
        self.model = PolicyModel(self.base, "sft")
        learning = Learning(
            self._loss_of,
            sizes_of=lambda tokens: self.base.pass_sizes(len(tokens.prompt), len(tokens.answer)),
            weight_of=lambda tokens: len(tokens.answer),
        )
        self.epochs = Epochs(self.model, config, learning)

    def train(
        self, demonstrations: Sequence[Demonstration], on_update: Callable[[Statistics], None] | None = None
    ) -> list[Statistics]:
        """All epochs; gives the statistics of every update."""
        self.invocation.agree(prompts_of(demonstrations))
        return self.epochs.train(self._tokens(demonstrations), on_update, places_of(demonstrations))

    def measure(self, demonstrations: Sequence[Demonstration]) -> Statistics:
        """Mean loss per token, in nats."""
        self.invocation.agree(prompts_of(demonstrations))
        return self.epochs.measure(self._tokens(demonstrations))

    def _tokens(self, demonstrations: Sequence[Demonstration]) -> list[_Tokens]:
        prompts = self.encoder.encode(prompts_of(demonstrations))
        answers = self.encoder.encode_answers([d.completion for d in demonstrations], self.base.stop_id)
        return [_Tokens(p, a) for p, a in zip(prompts, answers, strict=True)]

    def _loss_of(self, batch: Sequence[_Tokens]) -> tuple[Tensor, Sums]:
        pairs = SAPairs.of_tokens([t.prompt for t in batch], [t.answer for t in batch], self.base.device)
        loss = -self.model.logprobs(pairs).sum()
        return loss, {"loss": (loss.detach(), int(pairs.mask.sum()))}
