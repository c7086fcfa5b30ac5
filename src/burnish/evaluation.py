"""Held-out measurement: the same prompts and the same seed, for whichever model speaks."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from statistics import fmean
from typing import Any

import torch

from burnish.errors import RewardFailedError
from burnish.intervals import by_group, half_interval
from burnish.models import PolicyModel
from burnish.models.base_model import LanguageModel
from burnish.ppo_trainer import PPOTrainer, RewardComputer
from burnish.ppo_trainer.reward_computer import MOSTLY_FAILED
from burnish.rewards import rouge_l
from burnish.rewards.words import words
from burnish.sa_pairs import SAPairs
from burnish.safe_text import visible

EVAL_SEED = 20_000  # far from any training seed in use: held-out responses are drawn from a stream of their own


@dataclass
class Evaluation:
    """Measured on held-out prompts, one value per prompt in each list."""

    prompts: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    """NaN where the reward could not score the answer."""
    second_reward: list[float] = field(default_factory=list)
    """By a reward that training did not see; empty where there is none."""
    rouge_l: list[float] = field(default_factory=list)
    """Against each prompt's reference; empty unless all have one."""
    kl: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    finished: list[float] = field(default_factory=list)
    surprise: list[float] = field(default_factory=list)
    """Nats per token that the bare base needs for the answer; exp of their mean is its perplexity."""

    def at(self, places: Sequence[int]) -> Evaluation:
        """The same for some of the prompts."""
        return Evaluation(**{f.name: [own[n] for n in places] for f in fields(self) if (own := getattr(self, f.name))})

    @property
    def num_prompts(self) -> int:
        """How many different prompts there are."""
        return len(set(map(_identity, self.prompts)))

    def per_prompt(self, values: Sequence[float]) -> list[float]:
        """One value for each different prompt. Answers to the same prompt are not independent: their mean counts."""
        return [fmean(group) for group in by_group(values, list(map(_identity, self.prompts)))]

    def table(self) -> dict[str, tuple[float, float]]:
        """Mean over the different prompts and half the width of its 95 % interval, per measure."""
        measures = {
            "reward": self.reward,
            "second_reward": self.second_reward,
            "rouge_l": self.rouge_l,
            "kl": self.kl,
            "tokens": self.tokens,
            "finished": self.finished,
            "surprise": self.surprise,
        }
        counted = {name: self.per_prompt(values) for name, values in measures.items() if values}
        return {name: (fmean(values), half_interval(values)) for name, values in counted.items()}

    def as_dict(self) -> dict[str, Any]:
        means = {name: {"mean": mean, "half_interval_95": half} for name, (mean, half) in self.table().items()}
        return means | {f"distinct_{n}": distinct(self.texts, n) for n in (1, 2)}


def _identity(prompt: str) -> tuple[str, str]:
    """What makes a prompt the same as another: its text, and its messages if it is a chat."""
    return str(prompt), json.dumps(getattr(prompt, "messages", None))


# `z`: no "-0.00" from rounding
MEASURES = {
    "reward": ("reward", "{:z.3f}"),
    "second_reward": ("a second reward, not trained on", "{:z.3f}"),
    "rouge_l": ("ROUGE-L to the reference answer", "{:.3f}"),
    "kl": ("KL to the reference (nats)", "{:z.2f}"),
    "tokens": ("length (tokens)", "{:.1f}"),
    "finished": ("finished", "{:.0%}"),
}


def comparison(start: dict[str, Any], tuned: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Measure, start and tuned, for a person to read; from two `Evaluation.as_dict`."""
    rows = []
    for name, (label, form) in MEASURES.items():
        if name in start:
            cells = [
                f"{form.format(s[name]['mean'])} ± {form.format(s[name]['half_interval_95'])}" for s in (start, tuned)
            ]
            rows.append((label, *cells))
    if "surprise" in start:
        rows.append(("perplexity of the base", _perplexity(start["surprise"]), _perplexity(tuned["surprise"])))
    for name, label in (("distinct_1", "distinct words"), ("distinct_2", "distinct word pairs")):
        rows.append((label, f"{start[name]:.2f}", f"{tuned[name]:.2f}"))
    return rows  # type: ignore[return-value]


def _perplexity(surprise: dict[str, float]) -> str:
    """Nats are averaged, so the interval is that of the mean, and not even around it."""
    mean, half = surprise["mean"], surprise["half_interval_95"]
    return f"{math.exp(mean):.1f} ({math.exp(mean - half):.1f} to {math.exp(min(mean + half, 700)):.1f})"


def both_scored(start: Evaluation, tuned: Evaluation) -> tuple[Evaluation, Evaluation]:
    """The prompts whose answers every reward could score, on both sides: only these can be compared."""
    scores = [own for e in (start, tuned) for own in (e.reward, e.second_reward) if own]
    kept = [n for n in range(len(start.prompts)) if all(math.isfinite(own[n]) for own in scores)]
    if not kept:
        raise RewardFailedError("no held-out prompt has an answer of both models that the reward could score")
    if len(kept) < len(start.prompts):
        left_out = len(start.prompts) - len(kept)
        warnings.warn(
            f"{left_out} held-out prompts are left out: the reward could not score their answers", stacklevel=2
        )
    return start.at(kept), tuned.at(kept)


def distinct(texts: Sequence[str], n: int) -> float:
    """Share of different n-grams of words among all of them: how varied the answers are together."""
    grams = [tuple(w[i : i + n]) for w in map(words, texts) for i in range(len(w) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 0.0


def evaluate(
    trainer: PPOTrainer,
    prompts: Sequence[str],
    speaker: PolicyModel | None = None,
    second_reward: RewardComputer | None = None,
    seed: int = EVAL_SEED,
) -> Evaluation:
    """One sampled answer per prompt, by the policy or another speaker. The training's random stream is not touched."""
    generator = torch.Generator(trainer.base.device).manual_seed(seed)
    result = Evaluation()
    base_model = LanguageModel(trainer.base, adapter=None)
    for first in range(0, len(prompts), trainer.config.batch_size):
        batch = list(prompts[first : first + trainer.config.batch_size])
        pairs, texts = trainer.generator.generate_sequences(batch, generator, speaker=speaker)
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
    references = [getattr(p, "reference", None) for p in result.prompts]
    if None not in references:
        result.rouge_l = [rouge_l(str(r), t) for r, t in zip(references, result.texts, strict=True)]
    return result


def _per_response(reward: RewardComputer, prompts: list[str], texts: list[str], pairs: SAPairs) -> list[float]:
    """NaN where there is none; a batch of which most have none has none at all."""
    try:
        rewards = reward.compute_rewards(prompts, texts, pairs)
    except RewardFailedError as error:
        warnings.warn(f"{len(prompts)} held-out answers have no reward: {visible(str(error))}", stacklevel=2)
        return [math.nan] * len(prompts)
    return [math.nan if r is None else float(sum(r)) if isinstance(r, Sequence) else float(r) for r in rewards]


def _refuse_most_failed(reward: RewardComputer, so_far: list[float], num_prompts: int) -> None:
    """As soon as it is certain: each failure may have taken the whole time limit."""
    if 2 * sum(map(math.isnan, so_far)) > num_prompts:
        raise RewardFailedError(f"{MOSTLY_FAILED}: {reward.first_failure}")


@torch.no_grad()
def _surprise(base_model: LanguageModel, pairs: SAPairs) -> list[float]:
    assert pairs.context is not None
    logprobs = base_model.logprobs(pairs.context, pairs.mask, kept=None)
    return (-logprobs.sum(1) / pairs.lengths.clamp(min=1)).tolist()
