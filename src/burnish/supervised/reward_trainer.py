"""The reward model learns what people prefer: from choices between two answers, from scores, or from both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.base_setup.base_setup import BaseSetup
from burnish.base_setup.invocation import Invocation
from burnish.base_setup.lora_files import adapter_folder
from burnish.base_setup.tokenizer_setup import PromptEncoder
from burnish.config import RewardModelConfig
from burnish.data import Preference, Scored, places_of, prompts_of
from burnish.models.adapter_files import load_adapter
from burnish.models.policy_model import PolicyModel
from burnish.models.reward_model import RewardModel
from burnish.models.updates import Sums
from burnish.processes import world
from burnish.rollout.local import LocalEngine
from burnish.rollout.sampling import Sampler
from burnish.sa_pairs.table import SAPairs
from burnish.supervised.epochs import Epochs, Learning, Statistics

Judgement = Preference | Scored


@dataclass(frozen=True)
class _Tokens:
    """A judgement as the model sees it: two answers of which the first was chosen, or one with its score."""

    prompt: list[int]
    answers: list[list[int]]
    score: float | None


class RewardTrainer:
    """Adapter and head, trained on judgements. Both answers of a pair go through the model over one read prompt."""

    def __init__(
        self,
        config: RewardModelConfig,
        model: Any = None,
        tokenizer: Any = None,
        encoder: PromptEncoder | None = None,
    ) -> None:
        self.config = config
        start = None if config.sft is None else adapter_folder(config.sft, "sft")
        setup = BaseSetup(config, model, tokenizer, encoder, start)
        setup.add_adapter("reward")
        self.base, self.encoder = setup.base, setup.encoder
        self.start: str | None = None  # the model whose answers are scored 0 on average
        if setup.start is not None:  # else the base itself is the start
            setup.add_adapter("sft")
            self.start = "sft"
            for name in ("sft", "reward"):
                load_adapter(self.base, name, setup.start)
        self.invocation = Invocation(self.base, self.encoder)
        self.model = RewardModel(self.base, self.encoder.encode, "reward")
        self.epochs = Epochs(self.model, config, Learning(self._loss_of, self._sizes_of, weight_of=lambda _: 1.0))
        self._score_mean, self._score_std = 0.0, 1.0
        self.spread = 1.0  # of the scores that the loss saw, in which a margin is a log-odds; normalising divides by it

    def train(
        self, judgements: Sequence[Judgement], on_update: Callable[[Statistics], None] | None = None
    ) -> list[Statistics]:
        """All epochs, then scores are normalised; gives the statistics of every update."""
        self.invocation.agree(prompts_of(judgements))
        scores = [j.score for j in judgements if isinstance(j, Scored)]
        if scores:
            self._score_mean, self._score_std = fmean(scores), pstdev(scores) or 1.0
        history = self.epochs.train(self._tokens(judgements), on_update, places_of(judgements))
        self.model.mark_trained()
        self._normalise(judgements)
        return history

    @torch.no_grad()
    def scores(self, prompts: Sequence[str], answers: Sequence[str]) -> list[float]:
        """What the model thinks of answers, cut as in training, in passes that fit the memory."""
        if not answers:
            return []
        size, own = self.config.batch_size, world.share(len(answers))
        encoded = self.encoder.encode(prompts), self.encoder.encode_answers(answers, self.base.stop_id)
        with world.together():
            scores = [
                score
                for first in range(own.start, own.stop, size)
                for score in self._raw_scores(*(p[first : min(first + size, own.stop)] for p in encoded)).tolist()
            ]
        return world.in_order(own, scores)

    def _normalise(self, judgements: Sequence[Judgement]) -> None:
        """The start model's answers get mean 0 and spread 1; without any, the answers trained on do."""
        prompts = list(dict.fromkeys(prompts_of(judgements)))[: self.config.num_centring_prompts]
        if prompts:
            answers = self._answers_of_start(prompts)
        else:
            prompts, answers = [], []
            for judgement in judgements:
                texts = judgement_answers(judgement)
                prompts += [judgement.prompt] * len(texts)
                answers += texts
        scores = self.scores(prompts, answers)
        self.spread = pstdev(scores) or 1.0
        self.model.normalise(fmean(scores), self.spread)

    def _answers_of_start(self, prompts: Sequence[str]) -> list[str]:
        speaker, engine = PolicyModel(self.base, self.start), LocalEngine()
        sampler = Sampler(self.config.temperature, self.config.top_k, self.config.top_p)
        generator = torch.Generator(self.base.device).manual_seed(self.config.seed)
        texts: list[str] = []
        for first in range(0, len(prompts), self.config.batch_size):
            encoded = self.encoder.encode(prompts[first : first + self.config.batch_size])
            own, most = world.share(len(encoded)), self.config.max_new_tokens
            with world.together():
                shared = own if world.size() > 1 else None
                rollout = engine.generate_own(speaker, encoded, shared, most, sampler, generator)
                spoken = [] if rollout is None else self.encoder.decode(rollout.action, rollout.mask)
            texts += world.in_order(own, spoken)
        return texts

    # ------------------------------------------------------------------------------------------------ the loss

    def _tokens(self, judgements: Sequence[Judgement]) -> list[_Tokens]:
        prompts = self.encoder.encode(prompts_of(judgements))
        return [
            _Tokens(
                prompt,
                self.encoder.encode_answers(judgement_answers(judgement), self.base.stop_id),
                judgement.score if isinstance(judgement, Scored) else None,
            )
            for prompt, judgement in zip(prompts, judgements, strict=True)
        ]

    def _sizes_of(self, tokens: _Tokens) -> list[float]:
        sizes = self.base.pass_sizes(len(tokens.prompt), max(map(len, tokens.answers)))
        return [len(tokens.answers) * size for size in sizes]

    def _raw_scores(self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> Tensor:
        return self.model.raw_score(SAPairs.of_tokens(prompts, answers, self.base.device))

    def _loss_of(self, batch: Sequence[_Tokens]) -> tuple[Tensor, Sums]:
        """-log sigmoid(chosen - rejected) for a pair, half the squared error to the standardised score for a score."""
        prompts = [t.prompt for t in batch for _ in t.answers]
        scores = self._raw_scores(prompts, [a for t in batch for a in t.answers])
        loss, differences = scores.sum() * 0.0, []
        for tokens, own in zip(batch, scores.split([len(t.answers) for t in batch]), strict=True):
            if tokens.score is not None:
                loss = loss + 0.5 * (own[0] - (tokens.score - self._score_mean) / self._score_std) ** 2
                continue
            difference = own[0] - own[1]
            loss = loss - F.logsigmoid(difference)
            differences.append(difference.detach())
        margins = torch.stack(differences).tolist() if differences else []
        count = len(margins)
        return loss, {
            "loss": (loss.detach(), len(batch)),
            "accuracy": (sum(m > 0 for m in margins), count),
            "margin": (sum(margins), count),
        }


def judgement_answers(judgement: Judgement) -> list[str]:
    """The answers that were judged; of a pair, the chosen one first."""
    return [judgement.response] if isinstance(judgement, Scored) else [judgement.chosen, judgement.rejected]
