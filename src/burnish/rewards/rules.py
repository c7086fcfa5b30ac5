"""Named rules: small functions f(prompts, responses, **options) -> list of floats. docs/rewards.md lists them."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from burnish.data.records import named, reference_of, require_references, some_have
from burnish.errors import InputError, nearest
from burnish.rewards import words
from burnish.rewards.tldr import tldr

Rule = Callable[[list[str], list[str]], list[float]]


def sentiment(prompts: list[str], responses: list[str]) -> list[float]:
    """How positive the response sounds, from -1 to 1: VADER's compound score of the response alone."""
    analyser = _vader()
    return [float(analyser.polarity_scores(response)["compound"]) for response in responses]


@cache
def _vader() -> Any:
    try:
        from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer
    except ImportError:
        raise InputError("the sentiment rule needs VADER; get it with: pip install vaderSentiment") from None
    return SentimentIntensityAnalyzer()


def length_band(prompts: list[str], responses: list[str], low: float = 8, high: float = 30) -> list[float]:
    """1 for `low` to `high` words, falling to 0 at no words and at twice `high`."""
    if not 0 < low <= high:
        raise InputError(f"length_band: low {low} and high {high} are no band; it needs 0 < low <= high")
    return [words.band(len(words.words(r)), 0, low, high, 2 * high) for r in responses]


def repetition(prompts: list[str], responses: list[str]) -> list[float]:
    """0 for a text that never repeats itself, down to -1: minus the share of word pairs that were there before."""
    return [-words.repetition(words.words(r)) for r in responses]


def regex(prompts: list[str], responses: list[str], pattern: str = "") -> list[float]:
    """1 where the pattern is found in the response, else 0."""
    if not pattern:
        raise InputError('regex needs a pattern; write options: {pattern: "..."}')
    try:
        found = re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise InputError(f"regex: {pattern!r} is not a regular expression: {error}") from None
    return [float(bool(found.search(r))) for r in responses]


def json_valid(prompts: list[str], responses: list[str], keys: list[str] | None = None) -> list[float]:
    """1 for a response that is JSON; with `keys`, for a JSON object that has them all."""
    return [float(_is_json(r, keys or [])) for r in responses]


def _is_json(text: str, keys: list[str]) -> bool:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return not keys or (isinstance(value, dict) and set(keys) <= set(value))


def rouge_l(prompts: list[str], responses: list[str]) -> list[float]:
    """Overlap with the prompt's reference answer, from 0 to 1: F1 of the longest common subsequence of words."""
    check_references("rouge_l", prompts)
    return [words.rouge_l(str(reference_of(p)), r) for p, r in zip(prompts, responses, strict=True)]


def exact_number(prompts: list[str], responses: list[str]) -> list[float]:
    """1 where the last number in the response is the last number in the prompt's reference answer, else 0."""
    check_references("exact_number", prompts)
    wanted = [_last_number(str(reference_of(prompt))) for prompt in prompts]
    return [float(_last_number(r) == w) for r, w in zip(responses, wanted, strict=True)]


def _last_number(text: str) -> float | None:
    # A dash between two numbers is a range, not a minus.
    found = re.findall(r"(?:(?<![\w.,])-)?(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)", text)
    return float(found[-1].replace(",", "")) if found else None


NEED_REFERENCES = ("rouge_l", "exact_number")


def check_references(rule: str, prompts: Sequence[str]) -> None:
    """Every prompt has the reference that such a rule compares with."""
    require_references(prompts, rule)
    numberless = [named(p) for p in prompts if rule == "exact_number" and _last_number(str(reference_of(p))) is None]
    if numberless:
        raise InputError(f"exact_number: {some_have(numberless)} a reference without a number")


RULES: dict[str, Callable[..., list[float]]] = {
    "tldr": tldr,
    "sentiment": sentiment,
    "length_band": length_band,
    "repetition": repetition,
    "regex": regex,
    "json_valid": json_valid,
    "rouge_l": rouge_l,
    "exact_number": exact_number,
}


def rule(name: str, options: Mapping[str, Any] | None = None) -> Rule:
    """A rule by its name, with its options filled in."""
    if name not in RULES:
        raise InputError(
            f"reward {name!r} is not a rule ({', '.join(RULES)}), a function `file.py:name` or the folder of a reward "
            f"model{nearest(name, RULES)}"
        )
    if not options:
        return RULES[name]
    known = list(inspect.signature(RULES[name]).parameters)[2:]
    for option in options:
        if option not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise InputError(f"the rule {name} has no option {option!r}; {takes}{nearest(option, known)}")
    filled = partial(RULES[name], **options)
    filled.__name__ = name  # type: ignore[attr-defined]
    return filled
