"""Text of unknown origin: prompts and answers are data, wherever they are shown."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

from rich.markup import escape

SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_KEY", re.IGNORECASE)
secret_variables: set[str] = set()  # and those that a config names, however they are called
SHORTEST_SECRET = 8  # shorter ones would take ordinary words out of texts

# Control characters (line feeds and tabs stay), and marks that reverse the direction of what follows.
_INVISIBLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """The text without anything that acts instead of being read."""
    return _INVISIBLE.sub("", text)


def without_secrets(value: Any) -> Any:
    """A text, or all texts in lists and mappings, without the values of environment variables that hold a token, key or
    password, however they got into it.
    """
    return hider()(value)


def as_json(document: Any) -> str:
    """For every reader of JSON: a number that it does not have is null."""
    return json.dumps(_finite(document), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(own) for own in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def hider() -> Callable[[Any], Any]:
    """What takes out the secrets that the environment holds now; for many texts, it is looked through only once."""
    found = {
        form: name
        for name, secret in os.environ.items()
        if len(secret.strip()) >= SHORTEST_SECRET and (name in secret_variables or SECRET_NAME.search(name))
        for form in _written(secret.strip())
    }
    # The longest first: a secret that begins like another must not leave its end behind.
    secrets = sorted(found.items(), key=lambda item: len(item[0]), reverse=True)
    return (lambda value: _redacted(value, secrets)) if secrets else lambda value: value


def _written(secret: str) -> set[str]:
    """As it is, and as a message that quotes it in Python's or JSON's way has it."""
    return {secret, repr(secret)[1:-1], json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}


def _redacted(value: Any, secrets: Sequence[tuple[str, str]]) -> Any:
    if isinstance(value, dict):
        return {_redacted(key, secrets): _redacted(own, secrets) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(own, secrets) for own in value]
    if isinstance(value, str):
        for secret, name in secrets:
            if secret in value:
                value = value.replace(secret, f"[{name}]")
    return value


def headline(prompt: str, longest: int) -> str:
    """A long prompt's title, or its beginning."""
    title = re.search(r"TITLE:\s*(.+)", prompt)
    text = title[1] if title else prompt
    return text if len(text) <= longest else text[: longest - 3] + "..."


def plain(text: str) -> str:
    """Text of unknown origin, safe to print: no control characters, no markup, no secrets."""
    return escape(visible(without_secrets(text)))


def minutes(seconds: int) -> str:
    """As one reads it off a clock: 65 is 1:05."""
    return f"{seconds // 60}:{seconds % 60:02d}"
