"""A response token by token: the numbers of each, and how strongly they colour it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

COLUMN_NAMES = {
    "logprob_policy": "log-probability",
    "logprob_ref": "... of the reference",
    "exact_kl": "KL",
    "kl": "KL charged",
    "reward": "reward",
    "value": "value",
    "td_error": "TD error",
    "advantage": "advantage",
    "return": "return",
}
SHADES = {
    "advantage": (
        "how much better the response went from there than the value model expected; under the default settings less "
        "the step's mean, which the update subtracts too",
        "made more likely",
        "made less likely",
    ),
    "td_error": (
        "what this one token brought: its reward, and how it changed what the value model expects",
        "better than expected",
        "worse than expected",
    ),
    "kl": (
        "where the policy speaks unlike its reference",
        "more likely than the reference finds it",
        "less likely",
    ),
}
"""What tokens can be coloured by: the meaning, and what above and below 0 say."""
OF_THE_RESPONSE = (
    "how much more the response earned than what it was compared with, such as the prompt's other responses",
    "made more likely",
    "made less likely",
)


@dataclass(frozen=True)
class Token:
    """One generated token: its text, and all that is known of it."""

    text: str
    shades: dict[str, tuple[float, int]]
    """For each of SHADES its number, and how strongly that colours it, from 0 to 100."""
    numbers: list[tuple[str, str]]


def shades_of(known: set[str]) -> dict[str, tuple[str, str, str]]:
    """What tokens can be coloured by, of the columns there are. Without a value model KL first: the advantage is then
    the response's, and says nothing of a single token.
    """
    if "value" in known:
        return {key: texts for key, texts in SHADES.items() if key in known}
    return {key: texts for key, texts in (("kl", SHADES["kl"]), ("advantage", OF_THE_RESPONSE)) if key in known}


def signed_kl(sample: dict[str, Any]) -> list[float]:
    """k1 whatever kl_estimator was charged: only it has a sign."""
    return [a - b for a, b in zip(sample["logprob_policy"], sample["logprob_ref"], strict=True)]


def tokens_of(sample: dict[str, Any], subtracted: float = 0.0) -> list[Token]:
    """Of a line of samples.jsonl; `subtracted` is what the step's update takes off every advantage."""
    shown = {key: sample[key] for key in SHADES if key in sample and key != "kl"}
    if "logprob_policy" in sample and "logprob_ref" in sample:
        shown["kl"] = signed_kl(sample)
    if "advantage" in shown:
        shown["advantage"] = [own - subtracted for own in shown["advantage"]]
    largest = {key: max(map(abs, values), default=0.0) or 1.0 for key, values in shown.items()}
    tokens = []
    for position, text in enumerate(sample["tokens"]):
        numbers = [(label, f"{sample[key][position]:+.3f}") for key, label in COLUMN_NAMES.items() if key in sample]
        own = {key: values[position] for key, values in shown.items()}
        shades = {key: (value, round(100 * math.sqrt(abs(value) / largest[key]))) for key, value in own.items()}
        tokens.append(Token(text.replace("\n", "\u21b5"), shades, numbers))
    return tokens
