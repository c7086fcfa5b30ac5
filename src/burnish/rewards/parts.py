"""All kinds of reward, and a reward as a config writes it: one word, or a list of weighted parts."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny, ValidationError

from burnish.rewards.classifier import ClassifierPart
from burnish.rewards.code import CodePart
from burnish.rewards.ensemble import EnsemblePart
from burnish.rewards.exact_match import ExactMatchPart
from burnish.rewards.http import HttpPart
from burnish.rewards.human import HumanPart
from burnish.rewards.judge import JudgePart
from burnish.rewards.math import MathPart
from burnish.rewards.model import ModelPart
from burnish.rewards.part import RewardPart
from burnish.rewards.python import PythonPart
from burnish.rewards.rule import RulePart
from burnish.rewards.rules import RULES

KINDS: dict[str, type[RewardPart]] = {
    "model": ModelPart,
    "ensemble": EnsemblePart,
    "rule": RulePart,
    "python": PythonPart,
    "http": HttpPart,
    "human": HumanPart,
    "classifier": ClassifierPart,
    "exact_match": ExactMatchPart,
    "math": MathPart,
    "code": CodePart,
    "judge": JudgePart,
}


def _part_of_kind(given: Any) -> Any:
    """A mapping as the class that its `kind` names; everything that is wrong with it in one sentence."""
    if not isinstance(given, dict):
        return given
    kind = KINDS.get(str(given.get("kind")))
    if kind is None:
        raise ValueError(f"kind is one of {', '.join(KINDS)} (got {given.get('kind')!r})")
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise ValueError("; ".join(dict.fromkeys(map(_problem, error.errors())))) from None


def _problem(item: Any) -> str:
    sentence = item["msg"].removeprefix("Value error, ")
    if not item["loc"]:  # keys that do not go together
        return sentence
    key = str(item["loc"][-1])
    if item["type"] == "extra_forbidden":
        return f"unknown key {key!r}"
    if item["type"] == "missing":
        return f"{key} is missing"
    if item["type"] == "value_error":  # in our own words, which show what may be shown
        return f"{key}: {sentence}"
    return f"{key}: {sentence} (got {item['input']!r:.80})"


AnyPart = Annotated[SerializeAsAny[RewardPart], BeforeValidator(_part_of_kind)]
"""A part in a config: a mapping with its `kind`, or an instance of any class of parts."""


def part_of(reward: str) -> RewardPart:
    """A reward written as one word: a function `file.py:name`, a path, which is a reward model's folder, or a rule."""
    file, colon, _ = reward.rpartition(":")
    if colon and file.endswith(".py"):
        return PythonPart(function=reward)
    if reward not in RULES and ("/" in reward or reward.startswith(("~", "."))):
        return ModelPart(path=reward)
    return RulePart(name=reward)


def parts_of(reward: str | list[RewardPart]) -> list[RewardPart]:
    """A reward as a list, however it was written."""
    return [part_of(reward)] if isinstance(reward, str) else list(reward)


def labels_of(parts: list[RewardPart]) -> list[str]:
    """The parts' names; a second one of the same name gets a number: `model`, `model_2`."""
    names = [part.title for part in parts]
    seen = [names[:i].count(name) for i, name in enumerate(names)]
    return [f"{name}_{count + 1}" if count else name for name, count in zip(names, seen, strict=True)]
