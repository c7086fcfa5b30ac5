"""A rule that comes with burnish as a reward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic import Field

from burnish.rewards.part import RewardFunction, RewardPart, Workshop
from burnish.rewards.rules import NEED_REFERENCES, check_references, rule


class RulePart(RewardPart):
    """A rule that comes with burnish."""

    kind: Literal["rule"] = "rule"
    name: str
    """One of the rules in docs/rewards.md."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The rule's own settings, such as {low: 8, high: 30}."""

    @property
    def title(self) -> str:
        return self.name

    def make(self, workshop: Workshop) -> RewardFunction:
        return rule(self.name, self.options)

    def check_prompts(self, prompts: Sequence[str]) -> None:
        if self.name in NEED_REFERENCES:
            check_references(self.name, prompts)

    def deeds(self) -> Iterator[str]:
        return iter(())  # it comes with burnish
