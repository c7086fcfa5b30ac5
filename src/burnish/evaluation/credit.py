"""Is the credit that tokens get true? The value of a state, found out by continuing from it many times.

From a prefix of a held-out response the policy continues again and again; the mean of what these continuations earn is
the state's value, whatever a value model says. The difference between the states before and after a token is what the
token was worth. The shared prefix makes that cheap: a prompt is read once for all its continuations.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import torch

from burnish.errors import InputError, RewardFailedError
from burnish.evaluation.intervals import correlation
from burnish.evaluation.measure import EVAL_SEED
from burnish.maths import reward_to_go
from burnish.ppo.ppo_trainer import PPOTrainer
from burnish.ppo.reward_computer import only_scored
from burnish.ppo.token_attribution import SAPairBuilder
from burnish.rollout.sampling import Begun
from burnish.sa_pairs.padding import right_padded
from burnish.sa_pairs.table import SAPairs

RESAMPLES = 1000  # of the bootstrap
AT_ONCE = 64  # continuations that are decoded together


@dataclass(frozen=True)
class State:
    """A prefix of a response: which response, and how many of its tokens."""

    response: int
    position: int


@dataclass(frozen=True)
class Agreement:
    """How well predictions of something fit what continuations say of it."""

    count: int
    correlation: float
    low: float
    high: float
    """95 % interval of the correlation, by resampling whole responses."""
    best: float
    """The largest correlation that even perfect predictions could show: the continuations are a sample too."""
    slope: float
    """By how much the truth changes where the prediction changes by one; 1 is calibrated, 0 is noise."""
    predicted: float
    found: float
    """Means."""


@dataclass(frozen=True)
class Share:
    """With its 95 % interval, by resampling whole responses."""

    share: float
    low: float
    high: float


@dataclass(frozen=True)
class Credit:
    """What was found, by column of the SA pairs: `value` of states, `td_error` and `advantage` of tokens."""

    agreements: dict[str, Agreement]
    responses: int
    continuations: int
    """From each state."""
    foreseeable: Share
    """How much of the returns' variance the states decide: no value model can explain more."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure_credit(trainer: PPOTrainer, prompts: Sequence[str], positions: int = 4, continuations: int = 16) -> Credit:
    """Of one response to each prompt, at `positions` of its tokens, by continuations of the state before and after.

    Everything is as in a training step: sampling, reward, KL charge, discount.
    """
    if trainer.config.whiten_rewards:
        raise InputError("credit is measured in the reward's units, which whiten_rewards changes from batch to batch")
    generator = torch.Generator(trainer.base.device).manual_seed(EVAL_SEED)
    each = trainer.config.responses_per_prompt
    repeated = [prompt for prompt in prompts for _ in range(each)]
    pairs = _credited(trainer, repeated, generator)
    repeated = [repeated[number] for number in pairs.numbers]  # those that could be scored
    first = [row for row, number in enumerate(pairs.numbers) if number % each == 0]  # the others are its baseline
    tokens = [State(row, place) for row in first for place in _spread(int(pairs.lengths[row]), positions)]
    after = {token: State(token.response, token.position + 1) for token in tokens}
    states = list(dict.fromkeys([*tokens, *(s for s in after.values() if s.position < pairs.lengths[s.response])]))
    earned = _earned(trainer, repeated, pairs, states, continuations, generator)
    states = [s for s in states if s in earned]
    ends = {t for t in tokens if t.position + 1 == pairs.lengths[t.response]}  # nothing is earned after them
    tokens = [t for t in tokens if t in earned and (t in ends or after[t] in earned)]
    if not tokens:
        raise RewardFailedError("too few continuations could be scored: of no token both sides are known")
    worth = {state: fmean(returns) for state, returns in earned.items()}
    error = {state: _squared_error(returns) for state, returns in earned.items()}

    agreements = {}
    owners = [state.response for state in states]
    if pairs.has("value"):
        predicted = [float(pairs["value"][s.response, s.position]) for s in states]
        agreements["value"] = agreement(predicted, [worth[s] for s in states], [error[s] for s in states], owners)
    gamma = trainer.config.gamma
    brought = [
        float(pairs["reward"][t.response, t.position]) + gamma * worth.get(after[t], 0.0) - worth[t] for t in tokens
    ]
    noise = [error[t] + gamma**2 * error.get(after[t], 0.0) for t in tokens]
    for column in ("td_error", "advantage"):
        if pairs.has(column):
            predicted = [float(pairs[column][t.response, t.position]) for t in tokens]
            agreements[column] = agreement(predicted, brought, noise, [t.response for t in tokens])
    known = foreseeable([earned[s] for s in states], owners)
    return Credit(agreements, len(prompts), continuations, known)


def agreement(
    predicted: Sequence[float], found: Sequence[float], noise: Sequence[float], owners: Sequence[int]
) -> Agreement:
    """`noise` are the squared standard errors of what was found, `owners` the responses that cases belong to."""

    def correlated(cases: Sequence[int]) -> float:
        return correlation([predicted[c] for c in cases], [found[c] for c in cases])

    low, high = _resampled_interval(correlated, owners)
    spread, own = _variance(found), _variance(predicted)
    r = correlated(range(len(found)))
    signal = max(0.0, 1 - fmean(noise) / spread) if spread else 0.0
    slope = r * (spread / own) ** 0.5 if own else 0.0
    return Agreement(len(found), r, low, high, signal**0.5, slope, fmean(predicted), fmean(found))


def foreseeable(returns: Sequence[Sequence[float]], owners: Sequence[int]) -> Share:
    """1 - E[Var(G | s)] / Var(G), from the returns of each state's continuations. `owners` as in `agreement`.

    The rest is decided by tokens that are still to be drawn.
    """
    drawn = [(own, owner) for own, owner in zip(returns, owners, strict=True) if len(own) > 1]
    if not drawn:
        return Share(0.0, 0.0, 1.0)
    means = [fmean(own) for own, _ in drawn]
    noise = [_squared_error(own) for own, _ in drawn]  # the means scatter by so much without any difference
    within = [_squared_error(own) * len(own) for own, _ in drawn]

    def share(cases: Sequence[int]) -> float:
        scatter = _variance([means[c] for c in cases]) * len(cases) / max(len(cases) - 1, 1)
        between = max(0.0, scatter - fmean(noise[c] for c in cases))
        return between / (between + fmean(within[c] for c in cases)) if between else 0.0

    return Share(share(range(len(drawn))), *_resampled_interval(share, [owner for _, owner in drawn]))


def _credited(trainer: PPOTrainer, prompts: Sequence[str], generator: torch.Generator) -> SAPairs:
    """Responses with all that a training step would say of their tokens."""
    pairs, texts = trainer.generator.generate_sequences(prompts, generator)
    pairs = _rewarded(trainer, prompts, texts, pairs)
    if trainer.value_adder is not None:
        pairs = trainer.value_adder.add_values_to_sa_pairs(pairs, prompts)
        pairs = trainer.td_error.compute_td_errors(pairs)
        pairs = trainer.gae_advantage.compute_gae_advantages(pairs)
        pairs = trainer.return_calculator.add_reward_to_go(pairs)
    return pairs if trainer.estimator is None else trainer.estimator.compute_advantages(pairs)


def _rewarded(trainer: PPOTrainer, prompts: Sequence[str], texts: list[str], pairs: SAPairs) -> SAPairs:
    rewards = trainer.reward_computer.compute_rewards(prompts, texts, pairs)
    prompts, texts, pairs, rewards = only_scored(prompts, texts, pairs, rewards)
    pairs = trainer.kl_divergence.add_kl_to_sa_pairs(pairs)
    return trainer.reward_adjuster.adjust_rewards_with_kl(
        pairs, rewards, trainer.charged_kl_coef, trainer.centre.of(prompts, rewards, trainer.reward_computer)
    )


def _earned(
    trainer: PPOTrainer,
    prompts: Sequence[str],
    pairs: SAPairs,
    states: Sequence[State],
    continuations: int,
    generator: torch.Generator,
) -> dict[State, list[float]]:
    """The returns of continuations, from each state on."""
    jobs = sorted((s for s in states for _ in range(continuations)), key=lambda s: (s.response, s.position))
    earned: dict[State, list[float]] = {state: [] for state in states}
    for first in range(0, len(jobs), AT_ONCE):
        batch = jobs[first : first + AT_ONCE]
        asked = [prompts[s.response] for s in batch]
        said = [pairs["action"][s.response, : s.position].tolist() for s in batch]
        continued = _continued(trainer, asked, said, generator)
        returns = reward_to_go(continued["reward"], trainer.config.gamma)
        for row, number in enumerate(continued.numbers):  # without those that no reward could be had for
            earned[batch[number]].append(float(returns[row, batch[number].position]))
    return {state: own for state, own in earned.items() if own}


def _continued(trainer: PPOTrainer, prompts: list[str], said: list[list[int]], generator: torch.Generator) -> SAPairs:
    """Responses that begin with what has been said, rewarded."""
    given, own = (t.to(trainer.base.device) for t in right_padded([tokens or [-1] for tokens in said]))
    sampler = trainer.generator.sampler
    begun = Begun(sampler.temperature, sampler.top_k, sampler.top_p, tokens=given.masked_fill(~own, -1))
    encoded = trainer.generator.encoder.encode(prompts)
    rollout = trainer.generator.engine.generate(
        trainer.policy, encoded, trainer.generator.max_new_tokens, begun, generator, trainer.generator.stop_ids
    )
    pairs = SAPairBuilder().build(rollout, trainer.policy, prompts)
    pairs = trainer.generator.extractor.extract(pairs, trainer.policy, rollout.states)
    return _rewarded(trainer, prompts, trainer.generator.decode(pairs), pairs)


def _spread(length: int, count: int) -> list[int]:
    """Up to `count` places among `length`, evenly."""
    return sorted({min(length - 1, int((k + 0.5) * length / count)) for k in range(count)})


def _squared_error(values: Sequence[float]) -> float:
    """Of their mean."""
    count = len(values)
    return _variance(values) / (count - 1) if count > 1 else 0.0


def _variance(values: Sequence[float]) -> float:
    mean = fmean(values)
    return fmean((value - mean) ** 2 for value in values)


def _resampled_interval(statistic: Callable[[Sequence[int]], float], owners: Sequence[int]) -> tuple[float, float]:
    """95 % of what other responses would have given, by the bootstrap. Tokens of one response go together: they are not
    independent."""
    by_owner: dict[int, list[int]] = {}
    for case, owner in enumerate(owners):
        by_owner.setdefault(owner, []).append(case)
    groups, draw = list(by_owner.values()), random.Random(0)
    found = sorted(
        statistic([case for group in draw.choices(groups, k=len(groups)) for case in group]) for _ in range(RESAMPLES)
    )
    return found[int(0.025 * RESAMPLES)], found[int(0.975 * RESAMPLES) - 1]
