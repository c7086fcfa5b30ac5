"""The parts that a reward can be made of, as a config writes them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

# Names under which secrets travel in an address.
SECRETS = {"key", "apikey", "accesskey", "token", "accesstoken", "authtoken", "secret", "clientsecret", "password"}
SECRETS |= {"passwd", "pwd", "auth", "authorization", "sig", "signature", "credential", "credentials", "code"}


class _Part(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=(), allow_inf_nan=False
    )

    weight: float = 1.0
    """What this part's score is multiplied with before the parts are added. May be negative."""


class ModelPart(_Part):
    """A reward model that `burnish reward` trained."""

    kind: Literal["model"]
    path: str
    """Folder of the reward run, or of its adapter."""

    @property
    def name(self) -> str:
        return "model"


class RulePart(_Part):
    """A rule that comes with burnish."""

    kind: Literal["rule"]
    name: str
    """One of the rules in docs/rewards.md."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The rule's own settings, such as {low: 8, high: 30}."""


class PythonPart(_Part):
    """Your own function f(prompts, responses) -> list of numbers."""

    kind: Literal["python"]
    function: str = Field(pattern=r"\.py:\w+$")
    """`file.py:name`."""

    @property
    def name(self) -> str:
        return self.function.rpartition(":")[2]


class HttpPart(_Part):
    """A service that scores: it is sent {"prompts": [...], "responses": [...]} and answers {"rewards": [...]}."""

    kind: Literal["http"]
    url: str
    """Where to send the texts."""
    timeout: float = Field(30.0, gt=0, le=600)
    """Seconds for one whole request."""
    token_env: str | None = None
    """Name of the environment variable whose value is sent as bearer token; a token itself has no place in a config."""

    @field_validator("url")
    @classmethod
    def _is_an_address_without_secrets(cls, url: str) -> str:
        keys = {re.sub(r"[-_]", "", name.lower()) for name, _ in parse_qsl(url.partition("?")[2])}
        if "@" in url or keys & SECRETS:  # not shown again in the error
            raise ValueError(
                "the address holds a password or key; configs are copied and shown, so keep it in an environment "
                "variable and name that: token_env: MY_TOKEN"
            )
        try:
            address = urlsplit(url)
            host, _ = address.hostname, address.port
        except ValueError as error:
            raise ValueError(f"{url!r} is not an address: {error}") from None
        if address.scheme not in ("http", "https") or not host:
            raise ValueError(f"{url!r} is no address such as https://host/path")
        return url

    @property
    def name(self) -> str:
        return "http"


class HumanPart(_Part):
    """Scores that people gave, by prompt and response; in a terminal, new responses are asked for and kept."""

    kind: Literal["human"]
    path: str = Field(pattern=r"\.jsonl$")
    """A .jsonl file of {"prompt": ..., "response": ..., "score": ...}; new scores are added to it."""

    @property
    def name(self) -> str:
        return "human"


RewardPart = Annotated[ModelPart | RulePart | PythonPart | HttpPart | HumanPart, Field(discriminator="kind")]


def part_of(reward: str) -> ModelPart | RulePart | PythonPart:
    """A reward written as one word: a function `file.py:name`, a rule, or a folder."""
    from burnish.rewards.rules import RULES  # which itself stands on this file's neighbours

    file, colon, _ = reward.rpartition(":")
    if colon and file.endswith(".py"):
        return PythonPart(kind="python", function=reward)
    if reward not in RULES and Path(reward).is_dir():
        return ModelPart(kind="model", path=reward)
    return RulePart(kind="rule", name=reward)


def parts_of(reward: str | list[RewardPart]) -> list[RewardPart]:
    """A reward as a list, however it was written."""
    return [part_of(reward)] if isinstance(reward, str) else list(reward)


def unique_names(names: list[str]) -> list[str]:
    """A second part of the same name gets a number: `model`, `model_2`."""
    return [
        name if names[:i].count(name) == 0 else f"{name}_{names[:i].count(name) + 1}" for i, name in enumerate(names)
    ]
