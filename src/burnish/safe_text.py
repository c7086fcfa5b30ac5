"""Text of unknown origin: prompts and answers are data, wherever they are shown."""

from __future__ import annotations

import os
import re

SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_KEY", re.IGNORECASE)
SHORTEST_SECRET = 8  # shorter ones would take ordinary words out of texts

# Control characters (line feeds stay), and marks that reverse the direction of what follows.
_INVISIBLE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """The text without anything that acts instead of being read."""
    return _INVISIBLE.sub("", text)


def without_secrets(text: str) -> str:
    """Without the values of environment variables that hold a token, key or password, however they got into it."""
    for name, value in os.environ.items():
        if len(value) >= SHORTEST_SECRET and SECRET_NAME.search(name):
            text = text.replace(value, f"[{name}]")
    return text


def headline(prompt: str, longest: int) -> str:
    """A long prompt's title, or its beginning."""
    title = re.search(r"TITLE:\s*(.+)", prompt)
    text = title[1] if title else prompt
    return text if len(text) <= longest else text[: longest - 3] + "..."
