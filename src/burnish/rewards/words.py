"""Counting words: what the rules are made of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

# Words that carry no topic. Short on purpose: what is missing here costs a little precision, nothing more.
STOP_WORDS = frozenset(
    """a about after again all also am an and any are as at be because been before being but by can could did do does
    doing done don down each even every few for from get gets getting go goes going got had has have having he her here
    hers him his how i if in into is it its itself just know let like made make makes me mine more most much must my no
    nor not now of off on once one only or other our out over own really said say says she should so some still such
    than that the their them then there these they thing things this those though through to too under until up us very
    was way we were what when where which while who whom why will with would yes yet you your subreddit title post tl dr
    tldr""".split()
)


# Letters and digits of any script; where words are written without spaces, each character is one.
_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]|[^\W_\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+(?:'[^\W\d_]+)?"
)


def words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def ngrams(said: Sequence[str], size: int) -> list[tuple[str, ...]]:
    return [tuple(said[n : n + size]) for n in range(len(said) - size + 1)]


def stem(word: str) -> str:
    """Enough to let "moving" meet "moved": the common endings off, four letters stay."""
    word = word.removesuffix("'s")
    for ending in ("ing", "ies", "ed", "es", "ly", "s", "y", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


def band(x: float, zero_below: float, low: float, high: float, zero_above: float) -> float:
    """1 between low and high, falling linearly to 0 at the outer bounds."""
    if x < low:
        return max((x - zero_below) / (low - zero_below), 0.0)
    return 1.0 if x <= high else max((zero_above - x) / (zero_above - high), 0.0)


def repetition(words: Sequence[str]) -> float:
    pairs = list(pairwise(words))
    return 1 - len(set(pairs)) / len(pairs) if pairs else 0.0


def longest_shared_run(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest run of words that stands in both."""
    longest, previous = 0, [0] * (len(b) + 1)
    for word in a:
        current = [0] * (len(b) + 1)
        for j, other in enumerate(b, 1):
            if word == other:
                current[j] = previous[j - 1] + 1
        longest = max(longest, *current)
        previous = current
    return longest


def rouge_l(reference: str, response: str) -> float:
    """F1 of the longest common subsequence of words: a measure beside the reward, against a human's summary."""
    a, b = words(reference), words(response)
    if not a or not b:
        return 0.0
    row = [0] * (len(b) + 1)
    for word in a:
        diagonal = 0
        for j, other in enumerate(b, 1):
            diagonal, row[j] = row[j], diagonal + 1 if word == other else max(row[j], row[j - 1])
    return 2 * row[-1] / (len(a) + len(b))
