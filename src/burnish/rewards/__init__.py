"""Rewards: named rules, your own functions, services and people, alone or as a weighted mix (docs/rewards.md).

A reward is a function f(prompts, responses) -> list of floats. Learned reward models live in `models/reward_model.py`;
`ppo_trainer/reward_computer.py` asks and adds up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from burnish.config.reward_parts import HttpPart, HumanPart, ModelPart, PythonPart, RewardPart, RulePart
from burnish.errors import InputError
from burnish.rewards.isolated import IsolatedFunction
from burnish.rewards.rules import RULES, rule
from burnish.rewards.sources import HttpReward, HumanReward
from burnish.rewards.words import rouge_l

__all__ = ["RULES", "check_parts", "function_of", "rouge_l", "rule"]


NonModelPart = RulePart | PythonPart | HttpPart | HumanPart


def function_of(part: NonModelPart, seconds: float = 60.0) -> Callable[..., Sequence[Any]]:
    """What asks a part of the config's reward. (Reward models need the shared base: the trainer makes them.)"""
    match part:
        case RulePart():
            return rule(part.name, part.options)
        case PythonPart():
            isolated = _isolated(part.function)
            isolated.seconds = seconds
            return isolated.start()
        case HttpPart():
            return HttpReward(part.url, part.timeout, part.token_env)
        case HumanPart():
            return HumanReward(part.path)


@cache
def _isolated(address: str) -> IsolatedFunction:
    """One process for a function, however often it is asked for."""
    return IsolatedFunction(address)


def check_parts(parts: Sequence[RewardPart], seconds: float = 60.0) -> list[Callable[..., Sequence[Any]]]:
    """Refuses a reward that does not exist; gives the functions of all parts that are no models."""
    for part in parts:
        if isinstance(part, ModelPart) and not Path(part.path).is_dir():
            raise InputError(f"the reward model's folder {part.path} does not exist; `burnish reward` makes one")
    return [function_of(part, seconds) for part in parts if not isinstance(part, ModelPart)]
