"""Text of unknown origin: prompts and answers are data, wherever they are shown."""

from __future__ import annotations

import re

# Control characters (line feeds stay), and marks that reverse the direction of what follows.
_INVISIBLE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """The text without anything that acts instead of being read."""
    return _INVISIBLE.sub("", text)


def headline(prompt: str, longest: int) -> str:
    """A long prompt's title, or its beginning."""
    title = re.search(r"TITLE:\s*(.+)", prompt)
    text = title[1] if title else prompt
    return text if len(text) <= longest else text[: longest - 3] + "..."
