"""Credit over time: TD errors, GAE advantages and returns, as columns of the SA pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from burnish.errors import InputError
from burnish.maths import gae_advantages, reward_to_go, td_errors
from burnish.sa_pairs.table import Rows, SAPairs, as_sa_pairs


class Estimator(Protocol):
    """Advantages other than GAE's: those of baselines.py, or what `PPOTrainer(config, estimator=...)` is given, which
    needs no critic. `sa_pairs.groups` says which responses answer the same prompt.
    """

    def compute_advantages(self, sa_pairs: SAPairs) -> SAPairs:
        """Adds `advantage`, from `reward` and whatever else the table holds."""
        ...


@runtime_checkable
class StatefulEstimator(Estimator, Protocol):
    """One that carries something from batch to batch. Checkpoints keep it and the step's metrics show it, each by names
    that must be the estimator's own.
    """

    def state(self) -> dict[str, Any]:
        """What JSON can hold, by name."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state` gave."""
        ...

    def metrics(self) -> dict[str, float]:
        """Of the last batch. By the names of `state`, `burnish credit` finds it again in the log."""
        ...


def refuse_half_a_state(estimator: Estimator | None) -> None:
    """One with some of these methods, but not all, would be resumed without its state, and nobody would know."""
    methods = ("state", "restore", "metrics")
    missing = [name for name in methods if not hasattr(estimator, name)]
    if 0 < len(missing) < len(methods):
        raise InputError(
            f"{type(estimator).__name__} has no {' and no '.join(missing)}: an estimator that carries something from "
            f"batch to batch has all of {', '.join(methods)}, one that does not has none of them"
        )


class TDError:
    """Adds `td_error`: how much better a token turned out than the value model had predicted."""

    def __init__(self, gamma: float = 0.99) -> None:
        self.gamma = gamma

    def compute_td_errors(self, sa_pairs: Rows, gamma: float | None = None) -> SAPairs:
        pairs = as_sa_pairs(sa_pairs)
        gamma = self.gamma if gamma is None else gamma
        return pairs.with_columns(td_error=td_errors(pairs["reward"], pairs["value"], gamma))


class GAEAdvantage:
    """Adds `advantage`: TD errors, accumulated backwards along each response."""

    def __init__(self, gamma: float = 0.99, lam: float = 0.95) -> None:
        self.gamma = gamma
        self.lam = lam

    def compute_gae_advantages(self, sa_pairs: Rows, gamma: float | None = None, lam: float | None = None) -> SAPairs:
        pairs = as_sa_pairs(sa_pairs)
        gamma = self.gamma if gamma is None else gamma
        lam = self.lam if lam is None else lam
        return pairs.with_columns(advantage=gae_advantages(pairs["td_error"], gamma, lam))


class ReturnCalculator:
    """Adds `returns` (key `return` in a row): what the value model learns to predict."""

    def __init__(self, gamma: float = 0.99, value_target: str = "reward_to_go", value_lam: float | None = None) -> None:
        self.gamma = gamma
        self.value_target = value_target
        self.value_lam = value_lam

    def add_reward_to_go(self, sa_pairs: Rows, gamma: float | None = None) -> SAPairs:
        """The discounted rewards to come; or advantage + value, if the value target is `gae`: the policy's advantage,
        or one with a lambda of its own.
        """
        pairs = as_sa_pairs(sa_pairs)
        gamma = self.gamma if gamma is None else gamma
        if self.value_target != "gae":
            return pairs.with_columns(returns=reward_to_go(pairs["reward"], gamma))
        lam = self.value_lam
        advantage = pairs["advantage"] if lam is None else gae_advantages(pairs["td_error"], gamma, lam)
        return pairs.with_columns(returns=advantage + pairs["value"])
