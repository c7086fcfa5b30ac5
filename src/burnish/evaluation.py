"""Held-out measurement: the same prompts and the same seed, before and after."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import torch

from burnish.maths import kl_per_token
from burnish.ppo_trainer import PPOTrainer
from burnish.reward_kl import scores_as_tensor
from burnish.rewards import rouge_l

EVAL_SEED = 20_000  # far from any training seed in use: held-out responses are drawn from a stream of their own


@dataclass(frozen=True)
class Evaluation:
    """Measured on held-out prompts, one value per prompt in each list."""

    prompts: list[str]
    texts: list[str]
    reward: list[float]
    kl: list[float]
    tokens: list[float]
    finished: list[float]
    rouge_l: list[float] | None

    def table(self) -> dict[str, tuple[float, float]]:
        """Mean and half the width of its 95 % interval, per measure."""
        measures = {"reward": self.reward, "kl": self.kl, "tokens": self.tokens, "finished": self.finished}
        if self.rouge_l is not None:
            measures["rouge_l"] = self.rouge_l
        return {name: (fmean(values), half_interval(values)) for name, values in measures.items()}

    def as_dict(self) -> dict[str, Any]:
        return {name: {"mean": mean, "half_interval_95": half} for name, (mean, half) in self.table().items()}


def half_interval(values: Sequence[float]) -> float:
    """Half the width of the normal 95 % interval of a mean."""
    return 1.96 * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf


def evaluate(
    trainer: PPOTrainer,
    prompts: Sequence[str],
    references: Sequence[str] | None = None,
) -> Evaluation:
    """Samples one response per prompt from the policy as it is now. The training's random stream is not touched."""
    generator = torch.Generator(trainer.base.device).manual_seed(EVAL_SEED)
    result = Evaluation([], [], [], [], [], [], None if references is None else [])
    for first in range(0, len(prompts), trainer.config.batch_size):
        batch = list(prompts[first : first + trainer.config.batch_size])
        pairs, texts = trainer.generator.generate_sequences(batch, generator)
        score = scores_as_tensor(trainer.reward_computer.compute_rewards(batch, texts, pairs), pairs.mask)
        kl = kl_per_token(pairs["logprob"], pairs["ref_logprob"]) * pairs.mask
        assert pairs.finished is not None
        result.prompts.extend(batch)
        result.texts.extend(texts)
        result.reward.extend((score.sum(1) if score.dim() == 2 else score).tolist())
        result.kl.extend(kl.sum(1).tolist())
        result.tokens.extend(pairs.lengths.float().tolist())
        result.finished.extend(pairs.finished.float().tolist())
        if references is not None and result.rouge_l is not None:
            result.rouge_l.extend(map(rouge_l, references[first : first + len(batch)], texts))
    return result
