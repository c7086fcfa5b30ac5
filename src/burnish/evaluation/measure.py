"""Held-out measurement: a model answers prompts that it was not trained on."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from burnish.data.records import reference_of
from burnish.errors import RewardFailedError
from burnish.evaluation.evaluation import Evaluation
from burnish.models.policy_model import PolicyModel
from burnish.models.role import LanguageModel
from burnish.ppo.ppo_trainer import PPOTrainer
from burnish.ppo.reward_computer import MOSTLY_FAILED, RewardComputer
from burnish.processes import world
from burnish.rewards.words import rouge_l
from burnish.rollout.rollout import Engine
from burnish.sa_pairs.table import SAPairs
from burnish.text import visible

EVAL_SEED = 20_000  # far from any training seed in use: held-out responses are drawn from a stream of their own


def evaluate(
    trainer: PPOTrainer,
    prompts: Sequence[str],
    speaker: PolicyModel | None = None,
    second_reward: RewardComputer | None = None,
    seed: int = EVAL_SEED,
    engine: Engine | None = None,
) -> Evaluation:
    """One sampled answer per prompt, by the policy or another speaker (and engine). The training's random stream is not
    touched.
    """
    generator = torch.Generator(trainer.base.device).manual_seed(seed)
    result = Evaluation()
    base_model = LanguageModel(trainer.base, adapter=None)
    for first in range(0, len(prompts), trainer.config.batch_size):
        batch = list(prompts[first : first + trainer.config.batch_size])
        pairs, texts = trainer.generator.generate_sequences(batch, generator, speaker=speaker, engine=engine)
        assert pairs.finished is not None
        result.prompts += batch
        result.texts += texts
        result.reward += _per_response(trainer.reward_computer, batch, texts, pairs)
        _refuse_most_failed(trainer.reward_computer, result.reward, len(prompts))
        if second_reward is not None:
            result.second_reward += _per_response(second_reward, batch, texts, pairs)
            _refuse_most_failed(second_reward, result.second_reward, len(prompts))
        result.kl += pairs["exact_kl"].sum(1).tolist()
        result.tokens += pairs.lengths.float().tolist()
        result.finished += pairs.finished.float().tolist()
        result.surprise += _surprise(base_model, pairs)
    references = [reference_of(p) for p in result.prompts]
    if None not in references:
        result.rouge_l = [rouge_l(str(r), t) for r, t in zip(references, result.texts, strict=True)]
    return result


def most_likely_answers(
    trainer: PPOTrainer, prompts: Sequence[str], speakers: Mapping[str, PolicyModel]
) -> list[dict[str, str]]:
    """What asking each speaker gives: for each prompt its most likely answers. No random number is drawn."""
    greedy = replace(trainer.generator.sampler, greedy=True)
    texts = {
        name: trainer.generator.generate_sequences(prompts, sampler=greedy, speaker=speaker)[1]
        for name, speaker in speakers.items()
    }
    return [{"prompt": p} | {name: own[n] for name, own in texts.items()} for n, p in enumerate(prompts)]


def _per_response(reward: RewardComputer, prompts: list[str], texts: list[str], pairs: SAPairs) -> list[float]:
    """NaN where there is none; a batch of which most have none has none at all."""
    try:
        rewards = reward.compute_rewards(prompts, texts, pairs)
    except RewardFailedError as error:
        warnings.warn(f"{len(prompts)} held-out answers have no reward: {visible(str(error))}", stacklevel=2)
        return [math.nan] * len(prompts)
    return [math.nan if total is None else float(total) for total in rewards.totals]


def _refuse_most_failed(reward: RewardComputer, so_far: list[float], num_prompts: int) -> None:
    """As soon as it is certain: each failure may have taken the whole time limit."""
    if 2 * sum(map(math.isnan, so_far)) > num_prompts:
        raise RewardFailedError(f"{MOSTLY_FAILED}: {reward.first_failure}")


@torch.no_grad()
def _surprise(base_model: LanguageModel, pairs: SAPairs) -> list[float]:
    own = pairs.own()
    surprise: list[float] = []
    with world.together():
        if own is not None:
            logprobs = base_model.logprobs(replace(own, kept=None))
            surprise = (-logprobs.sum(1) / own.lengths.clamp(min=1)).tolist()
    return world.in_order(pairs.own_rows, surprise)
