"""Is this reward model any good? Measured on held-out preferences, beside what costs nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F

from burnish.data import Preference, Scored
from burnish.evaluation.intervals import clustered_share_interval, correlation, correlation_interval
from burnish.rewards.words import words

SHOWN_MISTAKES = 10
CALIBRATION_BINS = 5
MIN_WORD_COUNT = 2  # a word that stands in one answer alone teaches the baseline nothing


@dataclass(frozen=True)
class Mistake:
    """A pair that the model gets wrong, and by how much."""

    prompt: str
    chosen: str
    rejected: str
    margin: float


@dataclass(frozen=True)
class Share:
    """Of so many pairs the share that the model gets right, and its 95 % interval; of pairs that share a prompt as in
    `accuracy_interval`.
    """

    count: int
    right: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class Bin(Share):
    """Pairs about which the model is about as sure."""

    sure: float
    """On average: sigmoid(margin as trained)."""


@dataclass(frozen=True)
class RewardReport:
    """All on held-out pairs; `margin` is the chosen answer's score minus the rejected one's."""

    num_pairs: int
    accuracy: float
    accuracy_interval: tuple[float, float]
    """95 %; pairs that share a prompt are not taken as independent."""
    margin: float
    calibration_error: float
    """Mean distance between how sure the model is, sigmoid(margin as trained), and how often it is right."""
    length_correlation: float
    """Of score with length in words, over all answers. Far from 0: the model likes or dislikes length as such."""
    longer_wins: float
    """Accuracy of choosing the longer answer."""
    bag_of_words: float
    """Accuracy of a logistic regression on word counts, trained on the same pairs."""
    mistakes: list[Mistake]
    calibration: list[Bin] = field(default_factory=list)
    """The pairs in bins of equal size, from those it is least sure about to those it is most sure about."""
    by_length: dict[str, Share] = field(default_factory=dict)
    """`longer`: on pairs in which people chose the longer answer; `shorter`: on the others that differ in length. Far
    apart: the model follows length where people do not.
    """

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def verdict(self) -> str:
        """One sentence for whoever must decide whether to train against it."""
        low, high = self.accuracy_interval
        best_name, best = max(
            (
                ("choosing the longer answer", self.longer_wins),
                ("choosing the shorter answer", 1 - self.longer_wins),
                ("a bag-of-words classifier", self.bag_of_words),
            ),
            key=lambda pair: pair[1],
        )
        said = (
            f"It agrees with people on {self.accuracy:.0%} of {self.num_pairs} held-out pairs ({low:.0%} to {high:.0%})"
        )
        if low <= 0.5:
            return (
                f"{said}: that may be chance. Hold out more (num_eval_prompts) to know better; more pairs, or a larger "
                "model, to learn more, before training against it."
            )
        if self.accuracy <= best:
            return f"{said}, no better than {best_name} ({best:.0%}): it has learned little that is worth optimising."
        if abs(self.length_correlation) > 0.5:
            longer = "long" if self.length_correlation > 0 else "short"
            return f"{said}, but its scores follow length ({self.length_correlation:+.2f}): expect {longer} answers."
        return f"{said}, against {best:.0%} for {best_name}: good enough to train against, with a KL price."


@dataclass(frozen=True)
class ScoreReport:
    """For human scores: how well the model's scores follow them on held-out answers."""

    num_scores: int
    score_correlation: float
    score_correlation_interval: tuple[float, float]
    length_baseline: float
    """Correlation of the human scores with length in words: what costs nothing."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def verdict(self) -> str:
        low, high = self.score_correlation_interval
        said = (
            f"Its scores follow {self.num_scores} held-out human scores with a correlation of "
            f"{self.score_correlation:.2f} ({low:.2f} to {high:.2f}; length alone: {self.length_baseline:.2f})"
        )
        if low <= 0:
            return (
                f"{said}: that may be chance. Hold out more (num_eval_prompts) to know better; more scores, or a "
                "larger model, to learn more, before training against it."
            )
        if self.score_correlation <= abs(self.length_baseline):
            return f"{said}: no better than the length of the answer."
        return f"{said}: good enough to train against, with a KL price."


def score_report(held_out: Sequence[Scored], given: Sequence[float]) -> ScoreReport:
    """`given` are the model's scores of the held-out answers."""
    wanted = [s.score for s in held_out]
    found = correlation(given, wanted)
    length = correlation([len(words(s.response)) for s in held_out], wanted)
    independent = len({s.prompt for s in held_out})  # answers to one prompt tend to go the same way
    return ScoreReport(len(held_out), found, correlation_interval(found, independent), length)


def reward_report(
    train: Sequence[Preference],
    held_out: Sequence[Preference],
    chosen: Sequence[float],
    rejected: Sequence[float],
    spread: float = 1.0,
) -> RewardReport:
    """`chosen` and `rejected` are the model's scores of the held-out answers, divided by `spread` after training."""
    margins = [c - r for c, r in zip(chosen, rejected, strict=True)]
    right = [m > 0 for m in margins]
    lengths = [[len(words(answer)) for answer in (p.chosen, p.rejected)] for p in held_out]
    bins = _calibration([m * spread for m in margins], held_out)
    chosen_by_length = {
        "longer": [n for n, (c, r) in enumerate(lengths) if c > r],
        "shorter": [n for n, (c, r) in enumerate(lengths) if c < r],
    }
    wrong = sorted((m, n) for n, m in enumerate(margins) if m <= 0)[:SHOWN_MISTAKES]
    return RewardReport(
        num_pairs=len(held_out),
        accuracy=fmean(right),
        accuracy_interval=clustered_share_interval(right, [p.prompt for p in held_out]),
        margin=fmean(margins),
        calibration_error=calibration_error(bins),
        length_correlation=correlation([*chosen, *rejected], [n for side in zip(*lengths, strict=True) for n in side]),
        longer_wins=fmean((c > r) + 0.5 * (c == r) for c, r in lengths),
        bag_of_words=bag_of_words_accuracy(train, held_out),
        mistakes=[Mistake(held_out[n].prompt, held_out[n].chosen, held_out[n].rejected, m) for m, n in wrong],
        calibration=bins,
        by_length={
            name: Share(len(own), fmean(right[n] for n in own), _interval(right, held_out, own))
            for name, own in chosen_by_length.items()
            if own
        },
    )


def _calibration(margins: Sequence[float], held_out: Sequence[Preference]) -> list[Bin]:
    """Pairs in bins of equal size by confidence."""
    right = [m > 0 for m in margins]
    sure = [1 / (1 + math.exp(-min(abs(m), 50))) for m in margins]
    order = sorted(range(len(margins)), key=lambda n: (sure[n], right[n]))
    cuts = [len(order) * k // CALIBRATION_BINS for k in range(CALIBRATION_BINS + 1)]
    return [
        Bin(len(own), fmean(right[n] for n in own), _interval(right, held_out, own), fmean(sure[n] for n in own))
        for own in (order[a:b] for a, b in pairwise(cuts))
        if own
    ]


def calibration_error(bins: Sequence[Bin]) -> float:
    """Confidence against accuracy in each bin."""
    return sum(b.count * abs(b.sure - b.right) for b in bins) / sum(b.count for b in bins)


def _interval(right: Sequence[bool], held_out: Sequence[Preference], places: Sequence[int]) -> tuple[float, float]:
    return clustered_share_interval([right[n] for n in places], [held_out[n].prompt for n in places])


def bag_of_words_accuracy(train: Sequence[Preference], held_out: Sequence[Preference]) -> float:
    """Logistic regression on the difference of word counts, with a little weight decay."""
    counts = Counter(w for p in train for answer in (p.chosen, p.rejected) for w in set(words(answer)))
    column = {w: i for i, w in enumerate(sorted(w for w, n in counts.items() if n >= MIN_WORD_COUNT))}

    def differences(pairs: Sequence[Preference]) -> torch.Tensor:
        table = torch.zeros(len(pairs), max(len(column), 1))
        for row, pair in enumerate(pairs):
            for sign, answer in ((1, pair.chosen), (-1, pair.rejected)):
                for word in words(answer):
                    if word in column:
                        table[row, column[word]] += sign
        return table

    features, weight = differences(train), torch.zeros(max(len(column), 1), requires_grad=True)
    optimizer = torch.optim.LBFGS([weight], max_iter=100)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = -F.logsigmoid(features @ weight).mean() + 0.01 * weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    margins = differences(held_out) @ weight.detach()
    return float(((margins > 0).float() + 0.5 * (margins == 0).float()).mean())
