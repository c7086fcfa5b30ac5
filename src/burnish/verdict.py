"""Was the run worth it? Tuned against start on the same held-out prompts, and one sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from burnish.evaluation import Evaluation, distinct
from burnish.intervals import half_interval, share_interval

# Beyond these, better scores come with worse text.
MAX_PERPLEXITY_RATIO = 2.0
MIN_DISTINCT_RATIO = 0.7
MAX_LENGTH_RATIO = 2.0


@dataclass(frozen=True)
class WinRate:
    """How often the tuned answer was better; a tie counts half."""

    rate: float
    interval: tuple[float, float]
    num_prompts: int

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.rate:.0%} ({low:.0%} to {high:.0%})"


def win_rate(tuned: Sequence[float], start: Sequence[float]) -> WinRate:
    """By scores, prompt by prompt."""
    wins = sum((t > s) + 0.5 * (t == s) for t, s in zip(tuned, start, strict=True))
    return WinRate(wins / len(tuned), share_interval(wins, len(tuned)), len(tuned))


@dataclass(frozen=True)
class Verdict:
    """`outcome` is `worth it`, `over-optimised`, `undecided` or `failure`; `sentence` says it with its reason."""

    outcome: str
    sentence: str
    wins: WinRate
    second_wins: WinRate | None
    human_wins: WinRate | None
    best_of_n: dict[str, float] | None
    """n, mean reward of the start model's best of n answers, and how often the tuned answer beats it."""

    def as_dict(self) -> dict[str, Any]:
        def plain(w: WinRate | None) -> dict[str, Any] | None:
            return None if w is None else {"rate": w.rate, "interval": list(w.interval), "num_prompts": w.num_prompts}

        return {
            "outcome": self.outcome,
            "sentence": self.sentence,
            "win_rate": plain(self.wins),
            "win_rate_by_second_reward": plain(self.second_wins),
            "win_rate_by_people": plain(self.human_wins),
            "best_of_n": self.best_of_n,
        }


def judge(
    start: Evaluation,
    tuned: Evaluation,
    best_of_n: tuple[int, Evaluation] | None = None,
    human_wins: WinRate | None = None,
) -> Verdict:
    """People's word counts most, then the second reward, then the reward that was trained on."""
    wins = win_rate(tuned.reward, start.reward)
    second = win_rate(tuned.second_reward, start.second_reward) if start.second_reward else None
    opinion = _SecondOpinion(second, start.second_reward, tuned.second_reward) if second else None
    outcome, reason = _outcome(start, tuned, wins, opinion, human_wins)
    before, after = fmean(start.reward), fmean(tuned.reward)
    sentence = f"{_OPENING[outcome]}: reward {before:.2f} to {after:.2f}, better on {wins} of the prompts; {reason}"
    best = None
    if best_of_n is not None:
        n, answers = best_of_n
        against = win_rate(tuned.reward, answers.reward)
        best = {"n": n, "reward": fmean(answers.reward), "tuned_beats_it": against.rate}
        sentence += (
            f". Taking the best of {n} answers of the start model gives {fmean(answers.reward):.2f} "
            f"at {n} times the cost of an answer"
        )
    return Verdict(outcome, sentence + ".", wins, second, human_wins, best)


class _SecondOpinion:
    """A reward that was not trained on: it prefers a side if the tuned answers win clearly more or less often than a
    coin, or if their mean clearly rose or fell. Wins alone would not see answers that are rarely, but much, worse.
    """

    def __init__(self, wins: WinRate, start: Sequence[float], tuned: Sequence[float]) -> None:
        changes = [t - s for s, t in zip(start, tuned, strict=True)]
        change, half = fmean(changes), half_interval(changes)
        self.wins = wins
        self.prefers_start = wins.interval[1] < 0.5 or change + half < 0
        self.prefers_tuned = not self.prefers_start and (wins.interval[0] > 0.5 or change - half > 0)
        self.leans_to_start = wins.rate < 0.4 and change < 0
        self._means = fmean(start), fmean(tuned)

    def __str__(self) -> str:
        return f"{self._means[0]:.2f} to {self._means[1]:.2f}, better on {self.wins}"


_OPENING = {
    "worth it": "Worth it",
    "over-optimised": "Over-optimised",
    "undecided": "Undecided",
    "failure": "A failure",
}


def _outcome(
    start: Evaluation, tuned: Evaluation, wins: WinRate, second: _SecondOpinion | None, human: WinRate | None
) -> tuple[str, str]:
    if human is not None and human.interval[0] > 0.5:
        return "worth it", f"people find it better, {human} of {human.num_prompts} blind comparisons"
    if human is not None and human.interval[1] < 0.5:
        outcome = "over-optimised" if wins.interval[0] > 0.5 else "failure"
        return outcome, f"people prefer the start model ({human} for the tuned one). Raise kl_coef, or mend the reward"
    low, high = wins.interval
    if high < 0.5:
        return "failure", "the reward it was trained on went down. Lower the learning rate, or train longer"
    if len({*start.reward, *tuned.reward}) == 1:
        return "failure", "every answer gets the same reward, so there was nothing to learn. Try `burnish reward-test`"
    if wins.rate <= 0.5:
        return "failure", "it wins no more often than a coin. Train longer or at a higher rate, and look at the reward"
    if low <= 0.5:
        return "undecided", (
            "the interval includes a coin toss. More steps, a higher learning rate or a lower kl_coef would move it "
            "further; more held-out prompts would measure it better"
        )
    signs = signs_of_overoptimisation(start, tuned)
    if second is not None and second.prefers_start:
        return "over-optimised", (
            f"a reward that it was not trained on prefers the start model ({second}). Raise kl_coef, or stop earlier"
        )
    if signs:
        return "over-optimised", f"the text shows it: {'; '.join(signs)}. Raise kl_coef, or stop earlier"
    if second is not None and second.prefers_tuned:
        return "worth it", f"a reward that it was not trained on agrees ({second})"
    if second is not None:
        leans = "leans to the start model, though not clearly" if second.leans_to_start else "sees no clear difference"
        return "worth it", f"a reward that it was not trained on {leans} ({second})"
    return "worth it", "the text shows no sign of over-optimisation"


def signs_of_overoptimisation(start: Evaluation, tuned: Evaluation) -> list[str]:
    """What goes wrong in the text when a reward is squeezed too hard."""
    signs = []
    ratio = math.exp(fmean(tuned.surprise) - fmean(start.surprise))
    if ratio > MAX_PERPLEXITY_RATIO:
        signs.append(f"the base finds it {ratio:.1f} times as surprising")
    before, after = distinct(start.texts, 2), distinct(tuned.texts, 2)
    if before and after / before < MIN_DISTINCT_RATIO:
        signs.append(f"it repeats itself from answer to answer (distinct word pairs {before:.2f} to {after:.2f})")
    before, after = fmean(start.tokens), fmean(tuned.tokens)
    if not 1 / MAX_LENGTH_RATIO <= after / before <= MAX_LENGTH_RATIO:
        signs.append(f"its length went from {before:.0f} to {after:.0f} tokens")
    return signs
