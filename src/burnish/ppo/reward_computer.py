"""Scores: asks the reward, and lets nothing into training that is not a finite number per response or token."""

from __future__ import annotations

import inspect
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from burnish.errors import BurnishError, InputError, RewardFailedError
from burnish.ppo.clock import Clock, timed
from burnish.ppo.scores import Scores, finite_score, total
from burnish.processes import world
from burnish.rewards.part import RewardFunction, RewardPart, TokenJudge, Workshop
from burnish.rewards.parts import labels_of
from burnish.text import visible

if TYPE_CHECKING:  # they bring torch, which a reward that is a function does without
    from burnish.sa_pairs.table import SAPairs

RETRIES = 1
MOSTLY_FAILED = "more than half of the responses could not be scored"


@dataclass(frozen=True)
class WeightedReward:
    """One part of a reward, and what its score is multiplied with."""

    name: str
    reward: RewardFunction | TokenJudge
    weight: float = 1.0


def weighted(parts: list[RewardPart], workshop: Workshop) -> list[WeightedReward]:
    """A reward as the config writes it."""
    return [
        WeightedReward(name, part.make(workshop), part.weight)
        for name, part in zip(labels_of(parts), parts, strict=True)
    ]


class RewardComputer:
    """Scores responses with a Python function, a RewardModel, or a weighted sum of several."""

    def __init__(
        self,
        reward: RewardFunction | TokenJudge | Sequence[WeightedReward],
        tokenizer: Any = None,
        clock: Clock | None = None,
        strict: bool = False,
    ) -> None:
        given: Any = reward
        parts = [WeightedReward(_name_of(given), given)] if isinstance(given, TokenJudge) or callable(given) else given
        if not all(isinstance(part, WeightedReward) for part in parts):
            raise InputError(
                f"a reward from Python is a function f(prompts, responses) or a RewardModel, not {reward!r:.60}; a "
                "rule, a path or a list of parts goes into the config: PPOConfig(reward=...)"
            )
        self.parts: list[WeightedReward] = list(parts)
        self.tokenizer = tokenizer
        self.clock = clock or Clock()
        self.strict = strict  # any failure is an error: for trying a reward out
        self.first_failure = ""

    @property
    def name(self) -> str:
        if len(self.parts) == 1 and self.parts[0].weight == 1:
            return self.parts[0].name
        return " + ".join(f"{p.weight:g} {p.name}" for p in self.parts)

    @property
    def models(self) -> list[Any]:
        """All reward models that it asks."""
        return [model for part in self.parts if isinstance(part.reward, TokenJudge) for model in part.reward.models]

    @timed
    def compute_rewards(
        self, prompts: Sequence[str], generated_texts: Sequence[str], sa_pairs: SAPairs | None = None
    ) -> Scores:
        """One reward per response. `sa_pairs` are the responses' own, for rewards that look at tokens.

        A response that a part could not score, asked again, has None: it is left out of training, not scored 0.
        """
        self.first_failure = ""
        by_part = self.compute_parts(prompts, generated_texts, sa_pairs)
        self.first_failure = next(filter(None, world.gather(self.first_failure)), "")
        scored = [n for n in range(len(prompts)) if all(scores[n] is not None for scores in by_part.values())]
        if 2 * len(scored) < len(prompts):
            raise RewardFailedError(f"{MOSTLY_FAILED}: {self.first_failure}")
        part_means = {name: fmean(Scores(own).at(scored).totals) for name, own in by_part.items() if scored}
        for part in self.parts:
            remarks = _over_all(getattr(part.reward, "remarks", {}), len(_own_rows(prompts, sa_pairs)))
            part_means |= {f"{part.name} {what}": n for what, n in remarks.items()}
        weights = [p.weight for p in self.parts]
        by_response = zip(*by_part.values(), strict=True)
        parts = {name: list(map(total, own)) for name, own in by_part.items()}
        return Scores((None if None in s else _weighted_sum(weights, s) for s in by_response), part_means, parts)

    def take_costs(self) -> dict[str, float]:
        """What asking has cost since this was asked last, by part: calls, tokens."""
        asked = {part.name: part.reward.take_costs() for part in self.parts if hasattr(part.reward, "take_costs")}
        costs = {f"{name} {what}": number for name, costs in asked.items() for what, number in costs.items()}
        if not costs:
            return costs
        by_process = world.gather(costs)
        return {name: sum(own[name] for own in by_process) for name in costs}

    def keep_answers(self, file: Path) -> None:
        """In a run: what need not be asked again after a resume is kept in this file."""
        for part in self.parts:
            if hasattr(part.reward, "keep_answers") and (world.is_first() or not _asked_by_one(part)):
                part.reward.keep_answers(file)

    def compute_parts(
        self, prompts: Sequence[str], generated_texts: Sequence[str], sa_pairs: SAPairs | None = None
    ) -> dict[str, list[Any]]:
        """What each part says of each response, before its weight; None where it says nothing that can be used."""
        if len(prompts) != len(generated_texts):
            raise InputError(f"{len(prompts)} prompts but {len(generated_texts)} responses; rewards need one for each")
        return {p.name: self._scores_of_all(p, list(prompts), list(generated_texts), sa_pairs) for p in self.parts}

    def _scores_of_all(
        self, part: WeightedReward, prompts: list[str], texts: list[str], sa_pairs: SAPairs | None
    ) -> list[Any]:
        """Each process asks about its own responses; a part with one limit or one person behind it is asked by one."""
        if _asked_by_one(part):
            return world.by_first(lambda: self._scores(part, prompts, texts, sa_pairs, len(prompts)))
        rows, own = _own_rows(prompts, sa_pairs), None if sa_pairs is None else sa_pairs.own()
        scores: list[Any] = []
        with world.together():
            if rows:
                given = [prompts[n] for n in rows], [texts[n] for n in rows]
                scores = self._scores(part, *given, own, len(prompts))
        return world.in_order(rows, scores)

    def _scores(
        self, part: WeightedReward, prompts: list[str], texts: list[str], sa_pairs: SAPairs | None, of: int
    ) -> list[Any]:
        """Asked once, asked again. A score that is no number is then None; a function that failed altogether is asked
        for one response at a time, so that a bad response costs only itself. `of` is how many responses there are in
        all processes.
        """
        scores: list[Any] | None = None
        for attempt in range(1 + RETRIES):
            if attempt:
                time.sleep(getattr(part.reward, "retry_seconds", 0.0))
            try:
                scores = self._listed(part, self._ask(part, prompts, texts, sa_pairs), len(prompts), sa_pairs)
            except RewardFailedError as error:
                failure, scores = error, None
                continue
            failures = [s for s in scores if isinstance(s, RewardFailedError)]
            if not failures:
                return scores
            failure = failures[0]
        self.first_failure = self.first_failure or str(failure)
        if self.strict or of == 1 or isinstance(part.reward, TokenJudge):
            raise failure
        if scores is None:
            warnings.warn(f"{visible(str(failure))}; it is asked for each response alone", stacklevel=2)
            scores = self._scores_alone(part, prompts, texts, sa_pairs, of)
        numbers = range(len(scores)) if sa_pairs is None else sa_pairs.numbers
        for number, score in zip(numbers, scores, strict=True):
            if isinstance(score, RewardFailedError):
                warnings.warn(f"response {number} is left out of this step: {visible(str(score))}", stacklevel=2)
        return [None if isinstance(score, RewardFailedError) else score for score in scores]

    def _scores_alone(
        self, part: WeightedReward, prompts: list[str], texts: list[str], sa_pairs: SAPairs | None, of: int
    ) -> list[Any]:
        """One response at a time, until more than half have failed: each of them may take the whole time limit."""
        scores: list[Any] = []
        for number, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
            scores.append(self._score_alone(part, prompt, text, sa_pairs, number))
            failures = [s for s in scores if isinstance(s, RewardFailedError)]
            if 2 * len(failures) > of:
                raise RewardFailedError(f"{MOSTLY_FAILED}: {self.first_failure}")
        return scores

    def _score_alone(self, part: WeightedReward, prompt: str, text: str, sa_pairs: SAPairs | None, n: int) -> Any:
        own = None if sa_pairs is None else sa_pairs.select([n])
        try:
            return self._listed(part, self._ask(part, [prompt], [text], own), 1, own)[0]
        except RewardFailedError as error:
            return error

    def _listed(self, part: WeightedReward, rewards: Any, count: int, sa_pairs: SAPairs | None) -> list[Any]:
        """One score per response, or the reason why it is none."""
        rewards = rewards.tolist() if hasattr(rewards, "tolist") else rewards  # a tensor or an array
        if isinstance(rewards, str) or not isinstance(rewards, Sequence):
            raise RewardFailedError(f"reward {part.name} returned {rewards!r:.60}; it must return a list")
        if len(rewards) != count:
            raise RewardFailedError(
                f"reward {part.name} returned {len(rewards)} values for {count} responses; it needs one each"
            )
        scores = [_score_or_reason(reward, f"reward {part.name}, response {n}") for n, reward in enumerate(rewards)]
        if sa_pairs is None or not any(isinstance(score, list) for score in scores):
            return scores
        lengths = sa_pairs.lengths.tolist()
        return [_one_per_token(score, int(lengths[n]), part.name, n) for n, score in enumerate(scores)]

    def _ask(self, part: WeightedReward, prompts: list[str], texts: list[str], sa_pairs: SAPairs | None) -> Any:
        reward: Any = part.reward
        if isinstance(reward, TokenJudge):
            return reward.compute_rewards(prompts, texts) if sa_pairs is None else reward.judge(sa_pairs)
        try:
            takes_tokens = getattr(reward, "takes_tokens", None)
            if takes_tokens is None:
                takes_tokens = "tokens" in inspect.signature(reward).parameters
            return reward(prompts, texts, *([self._tokens(texts, sa_pairs)] if takes_tokens else []))
        except BurnishError:
            raise
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{frame.filename}:{frame.lineno}"
            raise RewardFailedError(
                f"reward {part.name} failed with {type(error).__name__}: {error} ({where})"
            ) from error

    def _tokens(self, texts: list[str], sa_pairs: SAPairs | None) -> list[list[str]]:
        """The tokens of each response as text: those generated, or, for text from elsewhere, the tokenizer's."""
        if sa_pairs is not None:
            both = zip(sa_pairs["action"].tolist(), sa_pairs.mask.tolist(), strict=True)
            ids = [list(compress(action, real)) for action, real in both]
        elif self.tokenizer is not None:
            ids = [self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        else:
            return [text.split() for text in texts]
        return [[self.tokenizer.decode([i]) for i in response] for response in ids]


def only_scored(
    prompts: Sequence[str], texts: list[str], sa_pairs: SAPairs, rewards: Scores
) -> tuple[Sequence[str], list[str], SAPairs, Scores]:
    """Without the responses that no reward could be had for."""
    scored = [n for n, reward in enumerate(rewards) if reward is not None]
    if len(scored) == len(rewards):
        return prompts, texts, sa_pairs, rewards
    prompts, texts = ([column[n] for n in scored] for column in (prompts, texts))
    chosen = sa_pairs.select(scored)
    if sa_pairs.here is not None:  # each process keeps what is left of its own, though one may hold all of it
        own = {*sa_pairs.own_rows}
        chosen = replace(chosen, here=[n for n, row in enumerate(scored) if row in own])
    return prompts, texts, chosen, rewards.at(scored)


def _asked_by_one(part: WeightedReward) -> bool:
    return getattr(part.reward, "asked_by_one", False)


def _own_rows(prompts: Sequence[str], sa_pairs: SAPairs | None) -> Sequence[int]:
    """The responses that this process asks about."""
    return world.share(len(prompts)) if sa_pairs is None else sa_pairs.own_rows


def _over_all(remarks: dict[str, float], count: int) -> dict[str, float]:
    """Means over the responses of this process, `count` of them, as means over those of all."""
    if not remarks:
        return remarks
    known = [(own, n) for own, n in world.gather([remarks, count]) if n]
    return {what: sum(own[what] * n for own, n in known) / sum(n for _, n in known) for what in remarks}


def _name_of(reward: Any) -> str:
    return getattr(reward, "__name__", type(reward).__name__)


def _score_or_reason(reward: Any, what: str) -> Any:
    if isinstance(reward, RewardFailedError):  # it says itself why there is none
        return reward
    try:
        return finite_score(reward, what)
    except InputError as error:
        return RewardFailedError(str(error))


def _one_per_token(score: Any, num_tokens: int, name: str, number: int) -> Any:
    """A score among others that are lists is one too, as long as its response."""
    if isinstance(score, RewardFailedError) or (isinstance(score, list) and len(score) == num_tokens):
        return score
    found = f"{len(score)} rewards" if isinstance(score, list) else f"the single reward {score!r}"
    return RewardFailedError(
        f"reward {name}, response {number} has {num_tokens} tokens but {found}; per-token rewards need one each"
    )


def _weighted_sum(weights: Sequence[float], scores: Sequence[Any]) -> Any:
    """One number; or, if a part scores token by token, one per token, and the other parts on the last."""
    per_token = [(w, s) for w, s in zip(weights, scores, strict=True) if isinstance(s, list)]
    whole = sum(w * s for w, s in zip(weights, scores, strict=True) if not isinstance(s, list))
    if not per_token:
        return whole
    if len({len(s) for _, s in per_token}) > 1:
        raise InputError("two parts of the reward give different numbers of rewards for the tokens of one response")
    columns = zip(*(s for _, s in per_token), strict=True)
    tokens = [sum(w * v for (w, _), v in zip(per_token, column, strict=True)) for column in columns]
    tokens[-1] += whole
    return tokens
