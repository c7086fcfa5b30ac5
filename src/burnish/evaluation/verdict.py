"""Was the run worth it? Tuned against start on the same held-out prompts, and one sentence."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from burnish.data.records import prompt_key
from burnish.drawing.notebook import html_of_verdict
from burnish.evaluation.evaluation import Evaluation, distinct
from burnish.evaluation.habits import Habit, new_habits
from burnish.evaluation.paired import ENOUGH, MIN_DECIDED, SMALL_GAIN, PairedComparison, compare

# Beyond these, better scores come with worse text.
MAX_PERPLEXITY_RATIO = 2.0
MIN_DISTINCT_RATIO = 0.7
MAX_LENGTH_RATIO = 2.0
MIN_FINISHED_RATIO = 0.7
# Of the gain in reward: so much KL saved by ending early is a reason to charge it elsewhere.
SAVED_SHARE = 0.25


@dataclass(frozen=True)
class Verdict:
    """`outcome` is `worth it`, `over-optimised`, `undecided`, `too few to tell` or `failure`; `sentence` says why."""

    outcome: str
    sentence: str
    wins: PairedComparison
    second_wins: PairedComparison | None
    human_wins: PairedComparison | None
    best_of_n: dict[str, float] | None
    """n, mean reward of the start model's best of n answers, and on which share of the prompts tuned is better."""
    habits: list[Habit] = field(default_factory=list)
    """What clearly more answers say than before."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "outcome": self.outcome,
            "sentence": self.sentence,
            "win_rate": self.wins.as_dict(),
            "win_rate_by_second_reward": self.second_wins and self.second_wins.as_dict(),
            "win_rate_by_people": self.human_wins and self.human_wins.as_dict(),
            "best_of_n": self.best_of_n,
            "habits": [asdict(habit) for habit in self.habits],
        }

    def _repr_html_(self) -> str:
        """In a notebook: the sentence, and who won how often."""
        return html_of_verdict(self.as_dict())


def judge(
    start: Evaluation,
    tuned: Evaluation,
    best_of_n: tuple[int, Evaluation] | None = None,
    human_wins: PairedComparison | None = None,
    kl_price: float = 0.0,
) -> Verdict:
    """People's word counts most, then the second reward, then the reward that was trained on. `kl_price` is what a nat
    cost in the reward; 0 where the KL was charged in the loss alone.
    """
    wins = _compared(start, tuned, "reward")
    second = _compared(start, tuned, "second_reward") if start.second_reward else None
    outcome, reason = _outcome(start, tuned, wins, second, human_wins, kl_price)
    sentence = f"{_OPENING[outcome]}: reward {wins} ({wins.share}); {reason}"
    finished = _compared(start, tuned, "finished")
    if finished.prefers_start and _fewer_finish(finished) not in reason:
        sentence += f". Mind that {_fewer_finish(finished)}"
    best = None
    if best_of_n is not None:
        n, answers = best_of_n
        against = _compared(answers, tuned, "reward")
        best = {"n": n, "reward": against.means[0], "tuned_beats_it": against.wins / against.num_prompts}
        sentence += (
            f". Taking the best of {n} answers of the start model gives {against.means[0]:.2f} "
            f"at {n} times the cost of an answer"
        )
    return Verdict(outcome, sentence + ".", wins, second, human_wins, best, _habits(start, tuned))


def _habits(start: Evaluation, tuned: Evaluation) -> list[Habit]:
    """From the last answer to each different prompt."""
    places = list({prompt_key(prompt): place for place, prompt in enumerate(start.prompts)}.values())
    return new_habits(start.at(places).texts, tuned.at(places).texts)


def _compared(start: Evaluation, tuned: Evaluation, measure: str) -> PairedComparison:
    before, after = (side.per_prompt(getattr(side, measure)) for side in (start, tuned))
    return compare(before, after)


_OPENING = {
    "worth it": "Worth it",
    "over-optimised": "Over-optimised",
    "undecided": "Undecided",
    "too few to tell": "Too few to tell",
    "failure": "A failure",
}


def _outcome(
    start: Evaluation,
    tuned: Evaluation,
    wins: PairedComparison,
    second: PairedComparison | None,
    people: PairedComparison | None,
    kl_price: float,
) -> tuple[str, str]:
    if people is not None and people.prefers_tuned:
        return "worth it", f"people who compared blindly say so: {people.tally} ({people.share})"
    if people is not None and people.prefers_start:
        outcome = "over-optimised" if wins.prefers_tuned else "failure"
        said = f"people prefer the start model: {people.tally} ({people.share})"
        return outcome, f"{said}. Raise kl_coef, or mend the reward"
    if len({*start.reward, *tuned.reward}) == 1:
        return "failure", "every answer gets the same reward, so there was nothing to learn. Try `burnish reward-test`"
    if not wins.prefers_tuned:
        return _without_a_clear_gain(wins)
    if second is not None and (second.prefers_start or second.at_odds):
        says = f"finds it {_at_odds(second)}" if second.at_odds else "prefers the start model"
        return (
            "over-optimised",
            f"a reward that it was not trained on {says} ({second}). {_advice(start, tuned, wins.change, kl_price)}",
        )
    if signs := signs_of_overoptimisation(start, tuned):
        return (
            "over-optimised",
            f"the text shows it: {'; '.join(signs)}. {_advice(start, tuned, wins.change, kl_price)}",
        )
    if second is not None and second.prefers_tuned:
        return "worth it", f"a reward that it was not trained on agrees ({second})"
    if second is not None:
        slightly = "slightly prefers the start model, but not significantly"
        says = slightly if second.leans_to_start else "sees no clear difference"
        return "worth it", f"a reward that it was not trained on {says} ({second})"
    return "worth it", "the text shows no sign of over-optimisation"


def _without_a_clear_gain(wins: PairedComparison) -> tuple[str, str]:
    """A failure needs evidence too: a clear loss, or enough prompts that show no gain worth having."""
    if wins.prefers_start:
        return "failure", "the reward it was trained on clearly speaks against it. Lower the learning rate"
    if wins.at_odds:
        return "undecided", f"it is {_at_odds(wins)}. Look at the answers, and at what the reward pays for"
    if wins.no_gain:
        return "failure", (
            f"if that is a gain at all, it is below {SMALL_GAIN:.0%} of the spread of the rewards. Train longer or at "
            "a higher rate, and look at the reward"
        )
    if wins.decided < MIN_DECIDED:
        if not wins.decided:
            return "too few to tell", (
                "no answer has another reward than before. Train longer or at a higher rate; and hold out more "
                f"prompts, {ENOUGH} at least (num_eval_prompts, or eval_prompts)"
            )
        needed = math.ceil(ENOUGH * wins.num_prompts / wins.decided)
        return "too few to tell", (
            f"fewer than {MIN_DECIDED} decided prompts cannot tell a gain from luck. Hold out more: about {needed} "
            "different prompts would do (num_eval_prompts, or eval_prompts)"
        )
    return "undecided", (
        "the interval includes a coin toss. More steps, a higher learning rate or a lower kl_coef would move it "
        "further; more held-out prompts would measure it better"
    )


def _at_odds(wins: PairedComparison) -> str:
    often, rarely = "better more often, but worse on average", "better on average, but worse more often"
    return often if wins.by_count > 0 else rarely


def _advice(start: Evaluation, tuned: Evaluation, gain: float, kl_price: float) -> str:
    """What to change after over-optimisation. Charging the KL in the reward makes every token cost something, most of
    all with top-k and top-p; answers that end early save it, and a higher price would shorten them further.
    """
    means = _means(start, tuned)
    before, after = (side["tokens"] for side in means)
    saved = kl_price * means[0].get("kl", 0.0) * (1 - after / before)
    if saved > SAVED_SHARE * max(gain, 0.0):  # better more often is no gain on average
        return (
            "Charge the KL in the loss (kl_in: loss, kl_estimator: exact): in the reward, ending early saves "
            f"{saved:.2f} in KL charges. Or stop earlier"
        )
    return "Raise kl_coef, or stop earlier"


def _means(start: Evaluation, tuned: Evaluation) -> list[dict[str, float]]:
    return [{name: mean for name, (mean, _) in side.table().items()} for side in (start, tuned)]


def _fewer_finish(finished: PairedComparison) -> str:
    return f"fewer answers come to an end ({finished.means[0]:.0%} to {finished.means[1]:.0%})"


def signs_of_overoptimisation(start: Evaluation, tuned: Evaluation) -> list[str]:
    """What goes wrong in the text when a reward is squeezed too hard."""
    signs = []
    means = _means(start, tuned)
    ratio = math.exp(means[1]["surprise"] - means[0]["surprise"])
    if ratio > MAX_PERPLEXITY_RATIO:
        signs.append(f"the base finds it {ratio:.1f} times as surprising")
    before, after = distinct(start.texts, 2), distinct(tuned.texts, 2)
    if before and after / before < MIN_DISTINCT_RATIO:
        signs.append(f"it repeats itself from answer to answer (distinct word pairs {before:.2f} to {after:.2f})")
    before, after = (side["tokens"] for side in means)
    if not 1 / MAX_LENGTH_RATIO <= after / before <= MAX_LENGTH_RATIO:
        signs.append(f"its length went from {before:.0f} to {after:.0f} tokens")
    finished = _compared(start, tuned, "finished")
    if finished.prefers_start and finished.means[1] < MIN_FINISHED_RATIO * finished.means[0]:
        signs.append(_fewer_finish(finished))
    return signs
