"""What was measured on held-out prompts: a value for every prompt, means with their intervals."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from statistics import fmean
from typing import Any

from burnish.data.records import prompt_key
from burnish.errors import RewardFailedError
from burnish.evaluation.intervals import by_group, half_interval
from burnish.rewards.words import ngrams, words


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
        return len(set(map(prompt_key, self.prompts)))

    def per_prompt(self, values: Sequence[float]) -> list[float]:
        """One value for each different prompt. Answers to the same prompt are not independent: their mean counts."""
        return [fmean(group) for group in by_group(values, list(map(prompt_key, self.prompts)))]

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
    grams = [gram for text in texts for gram in ngrams(words(text), n)]
    return len(set(grams)) / len(grams) if grams else 0.0
