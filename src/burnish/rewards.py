"""Named reward rules, and how a config's `reward` becomes something that scores.

A rule is a function f(prompts, responses) -> list of floats. docs/rewards.md explains each and how to bring your own.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from burnish.errors import InputError, nearest

Rule = Callable[[list[str], list[str]], list[float]]

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


# ------------------------------------------------------------------------------------------------------ TL;DR rule

TLDR_WEIGHTS = {"on_topic": 0.3, "coverage": 0.3, "brevity": 0.2, "complete": 0.2, "repetition": -0.5, "copying": -0.5}
"""What each part is worth. The best possible TL;DR scores 1, a blank one -1."""


def tldr(prompts: list[str], responses: list[str]) -> list[float]:
    """How good a TL;DR the response is of the post in the prompt, from -1 to 1: the weighted parts of `tldr_parts`."""
    scores = []
    for prompt, response in zip(prompts, responses, strict=True):
        parts = tldr_parts(prompt, response)
        scores.append(sum(TLDR_WEIGHTS[name] * part for name, part in parts.items()) if response.strip() else -1.0)
    return scores


def tldr_parts(prompt: str, response: str) -> dict[str, float]:
    """Each part from 0 to 1.

    on_topic    share of the response's content words that stand in the post
    coverage    share of the post's key words (title, words used twice or more) that it takes up; six count as all
    brevity     1 for 8-30 words, falling to 0 at no words and at 50
    complete    1 if it ends like a sentence
    repetition  share of word pairs that were there before
    copying     0 while at most 6 words in a row are the post's own, 1 from 14 on
    """
    title, post = _title_and_post(prompt)
    said = _words(response)
    content = [_stem(w) for w in said if w not in STOP_WORDS]
    source = {_stem(w) for w in _words(f"{title} {post}")}
    return {
        "on_topic": sum(w in source for w in content) / len(content) if content else 0.0,
        "coverage": _coverage(title, post, set(content)),
        "brevity": _band(len(said), 0, 8, 30, 50),
        "complete": float(bool(re.search(r"[.!?][\"')]*$", response.strip()))),
        "repetition": _repetition(said),
        "copying": min(max(_longest_shared_run(said, _words(f"{title} . {post}")) - 6, 0) / 8, 1.0),
    }


def _title_and_post(prompt: str) -> tuple[str, str]:
    """The parts of the form "SUBREDDIT: ... TITLE: ... POST: ... TL;DR:"; a prompt without it is all post."""
    match = re.search(r"TITLE:(?P<title>.*?)POST:(?P<post>.*?)(?:TL;DR:\s*)?$", prompt, re.DOTALL)
    return (match["title"].strip(), match["post"].strip()) if match else ("", prompt)


def _coverage(title: str, post: str, content: set[str]) -> float:
    counts = Counter(_stem(w) for w in _words(f"{title} {post}") if w not in STOP_WORDS)
    keys = {_stem(w) for w in _words(title) if w not in STOP_WORDS} | {w for w, n in counts.items() if n > 1}
    return min(len(keys & content) / min(len(keys), 6), 1.0) if keys else 0.0


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+(?:'[a-z]+)?", text.lower())


def _stem(word: str) -> str:
    """Enough to let "moving" meet "moved": the common endings off, four letters stay."""
    word = word.removesuffix("'s")
    for ending in ("ing", "ies", "ed", "es", "ly", "s", "y", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


def _band(x: float, zero_below: float, low: float, high: float, zero_above: float) -> float:
    """1 between low and high, falling linearly to 0 at the outer bounds."""
    if x < low:
        return max((x - zero_below) / (low - zero_below), 0.0)
    return 1.0 if x <= high else max((zero_above - x) / (zero_above - high), 0.0)


def _repetition(words: Sequence[str]) -> float:
    pairs = list(pairwise(words))
    return 1 - len(set(pairs)) / len(pairs) if pairs else 0.0


def _longest_shared_run(a: Sequence[str], b: Sequence[str]) -> int:
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
    a, b = _words(reference), _words(response)
    if not a or not b:
        return 0.0
    row = [0] * (len(b) + 1)
    for word in a:
        diagonal = 0
        for j, other in enumerate(b, 1):
            diagonal, row[j] = row[j], diagonal + 1 if word == other else max(row[j], row[j - 1])
    return 2 * row[-1] / (len(a) + len(b))


# -------------------------------------------------------------------------------------------------- sentiment rule


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


# ------------------------------------------------------------------------------------------------------ resolution

RULES: dict[str, Rule] = {"tldr": tldr, "sentiment": sentiment}


def resolve_reward(reward: str) -> Rule | str:
    """A rule by its name, a function by `file.py:name`, or the folder of a reward model (given back as it is)."""
    if reward in RULES:
        return RULES[reward]
    file, colon, name = reward.rpartition(":")
    if colon and file.endswith(".py"):
        return _function_in(Path(file), name)
    if Path(reward).is_dir():
        return reward
    raise InputError(
        f"reward {reward!r} is not a rule ({', '.join(RULES)}), a function `file.py:name` or the folder of a reward "
        f"model{nearest(reward, RULES)}"
    )


def _function_in(file: Path, name: str) -> Rule:
    """Runs the file as a module of its own, which may import its neighbours, and takes the function from it."""
    if not file.is_file():
        raise InputError(f"reward file {file} does not exist")
    module_name = f"burnish_reward_{file.stem}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    sys.path.insert(0, str(file.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"reward file {file} cannot be run: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    functions = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
    if name not in functions:
        raise InputError(f"{file} has no function {name!r}{nearest(name, functions)}")
    return getattr(module, name)
