"""Text of unknown origin: prompts and answers are data, wherever they are shown."""

from __future__ import annotations

import os
import re
from typing import Any

SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_KEY", re.IGNORECASE)
secret_variables: set[str] = set()  # and those that a config names, however they are called
SHORTEST_SECRET = 8  # shorter ones would take ordinary words out of texts

# Control characters (line feeds stay), and marks that reverse the direction of what follows.
_INVISIBLE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """The text without anything that acts instead of being read."""
    return _INVISIBLE.sub("", text)


def without_secrets(value: Any) -> Any:
    """A text, or all texts in lists and mappings, without the values of environment variables that hold a token, key or
    password, however they got into it.
    """
    secrets = {
        secret.strip(): name
        for name, secret in os.environ.items()
        if len(secret.strip()) >= SHORTEST_SECRET and (name in secret_variables or SECRET_NAME.search(name))
    }
    return _redacted(value, secrets) if secrets else value


def _redacted(value: Any, secrets: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _redacted(own, secrets) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(own, secrets) for own in value]
    if isinstance(value, str):
        for secret, name in secrets.items():
            if secret in value:
                value = value.replace(secret, f"[{name}]")
    return value


def headline(prompt: str, longest: int) -> str:
    """A long prompt's title, or its beginning."""
    title = re.search(r"TITLE:\s*(.+)", prompt)
    text = title[1] if title else prompt
    return text if len(text) <= longest else text[: longest - 3] + "..."
