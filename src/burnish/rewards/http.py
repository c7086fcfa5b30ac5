"""A service on the network as a reward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from burnish.errors import RewardFailedError
from burnish.rewards.part import RewardFunction, RewardPart, Workshop
from burnish.services.service import Address, Service

RETRY_SECONDS = 2.0


class HttpPart(RewardPart):
    """A service that scores: it is sent {"prompts": [...], "responses": [...]} and answers {"rewards": [...]}."""

    kind: Literal["http"] = "http"
    url: Address
    """Where to send the texts."""
    timeout: float = Field(30.0, gt=0, le=600)
    """Seconds for one whole request."""
    token_env: str | None = None
    """Name of the environment variable whose value is sent as bearer token; a token itself has no place in a config."""

    def make(self, workshop: Workshop) -> RewardFunction:
        return HttpReward(self.url, self.timeout, self.token_env)

    def deeds(self) -> Iterator[str]:
        token = f", with the token in your environment variable {self.token_env}" if self.token_env else ""
        yield f"send prompts and answers to {self.url}{token}"


class HttpReward:
    """Asks a service about a whole batch."""

    __name__ = "http"
    asked_by_one = True  # a service has one limit, whoever asks
    retry_seconds = RETRY_SECONDS  # a service that was away may be back

    def __init__(self, url: str, seconds: float = 30.0, token_env: str | None = None) -> None:
        self.service = Service(url, seconds, token_env)

    def __call__(self, prompts: list[str], responses: list[str]) -> list[float]:
        answer = self.service.ask({"prompts": prompts, "responses": responses})
        rewards = answer.get("rewards") if isinstance(answer, dict) else None
        if not isinstance(rewards, list):
            raise RewardFailedError(
                f'the reward service {self.service.url} must answer {{"rewards": [...]}}, one for each response'
            )
        return rewards
