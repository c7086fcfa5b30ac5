"""Texts that come with burnish, all written for it."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from burnish.data.records import Demonstration, Preference, Prompt
from burnish.data.splits import Split


def bundled_tldr() -> Split[str]:
    """Posts in the form that the TL;DR task is known by; the author's own summary is each prompt's reference."""
    return _split(_bundled("tldr.jsonl"), lambda post: Prompt(tldr_prompt(post), reference=post["tldr"]))


def bundled_demonstrations() -> Split[Demonstration]:
    """The posts with their authors' summaries."""
    return _split(_bundled("tldr.jsonl"), lambda post: Demonstration(tldr_prompt(post), post["tldr"]))


def bundled_preferences() -> Split[Preference]:
    """Two summaries of each post, and which of them a careful reader chose."""
    posts, pairs = _bundled("tldr.jsonl"), _bundled("preferences.jsonl")
    by_title = {post["title"]: post for post in posts}
    rows = [by_title[pair["title"]] | pair for pair in pairs]
    return _split(rows, lambda row: Preference(tldr_prompt(row), row["chosen"], row["rejected"]))


def bundled_sentiment() -> Split[str]:
    """Openings, to be continued."""
    return _split(_bundled("openings.jsonl"), lambda opening: Prompt(opening["prompt"]))


def tldr_prompt(post: dict[str, str]) -> str:
    return f"SUBREDDIT: {post['subreddit']}\nTITLE: {post['title']}\nPOST: {post['post']}\nTL;DR:"


def _split(rows: list[dict[str, Any]], record_of: Any) -> Split[Any]:
    train, held_out = ([record_of(r) for r in rows if r["split"] == name] for name in ("train", "held_out"))
    return Split(train, held_out)


def _bundled(name: str) -> list[dict[str, Any]]:
    text = (files("burnish.data") / "texts" / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]
