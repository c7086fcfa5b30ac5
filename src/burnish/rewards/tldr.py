"""The TL;DR rule: how good a summary is of the post in its prompt."""

from __future__ import annotations

import re
from collections import Counter

from burnish.rewards.words import STOP_WORDS, band, longest_shared_run, repetition, stem, words

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
    said = words(response)
    content = [stem(w) for w in said if w not in STOP_WORDS]
    source = {stem(w) for w in words(f"{title} {post}")}
    return {
        "on_topic": sum(w in source for w in content) / len(content) if content else 0.0,
        "coverage": _coverage(title, post, set(content)),
        "brevity": band(len(said), 0, 8, 30, 50),
        "complete": float(bool(re.search(r"[.!?][\"')]*$", response.strip()))),
        "repetition": repetition(said),
        "copying": min(max(longest_shared_run(said, words(f"{title} . {post}")) - 6, 0) / 8, 1.0),
    }


def _title_and_post(prompt: str) -> tuple[str, str]:
    """The parts of the form "SUBREDDIT: ... TITLE: ... POST: ... TL;DR:"; a prompt without it is all post."""
    match = re.search(r"TITLE:(?P<title>.*?)POST:(?P<post>.*?)(?:TL;DR:\s*)?$", prompt, re.DOTALL)
    return (match["title"].strip(), match["post"].strip()) if match else ("", prompt)


def _coverage(title: str, post: str, content: set[str]) -> float:
    counts = Counter(stem(w) for w in words(f"{title} {post}") if w not in STOP_WORDS)
    keys = {stem(w) for w in words(title) if w not in STOP_WORDS} | {w for w, n in counts.items() if n > 1}
    return min(len(keys & content) / min(len(keys), 6), 1.0) if keys else 0.0
