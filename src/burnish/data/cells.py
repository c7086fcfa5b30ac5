"""Single values of a row: text, a number, a chat's messages. What cannot be used is refused with the reason."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from burnish.errors import InputError, nearest

ROLES = ("system", "user", "assistant", "tool")
SHAREGPT = {"human": "user", "gpt": "assistant"}
Messages = list[dict[str, str]]


def problem_with(text: str) -> str | None:
    """Why no model could read this text, or None."""
    if not text.strip():
        return "is empty; a model needs at least one word to continue"
    if any("\ud800" <= c <= "\udfff" for c in text):
        return "holds half of a character (a lone surrogate such as \\ud83d); cut it elsewhere"
    return None


def value_of(values: Mapping[str, Any], name: str) -> Any:
    if name not in values:
        hint = nearest(name, values) or f"; there is {', '.join(map(str, values)) or 'nothing':.80}"
        raise InputError(f"no key {name!r}{hint} (`fields` in the config maps other names)")
    return values[name]


def text_of(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{name!r} is of type {type(value).__name__}, not text")
    problem = problem_with(value)
    if problem:
        raise InputError(f"{name!r} {problem}")
    return value


def number_of(values: Mapping[str, Any], name: str) -> float:
    value = value_of(values, name)
    try:  # a CSV file knows text only
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{name!r} is {json.dumps(value, default=str)[:40]}, not a finite number")
    return number


def messages_in(value: Any, name: str) -> Messages:
    """{role, content}, or as ShareGPT writes it: {from, value}."""
    if not isinstance(value, list) or not value:
        raise InputError(f"{name!r} is not a list of chat messages")
    messages = []
    for number, message in enumerate(value, 1):
        if isinstance(message, Mapping) and {"from", "value"} <= set(message):
            role = SHAREGPT.get(str(message["from"]), message["from"])
            message = {"role": role, "content": message["value"]}
        if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
            raise InputError(f"message {number} of {name!r} is not of the form {{role: ..., content: ...}}")
        if message["role"] not in ROLES:
            raise InputError(
                f"message {number} of {name!r} has the role {message['role']!r:.40}, not {', '.join(ROLES)}"
            )
        content = _joined(message["content"])
        messages.append({"role": message["role"], "content": text_of(content, f"{name}: message {number}")})
    return messages


def _joined(content: Any) -> Any:
    """Of a content in parts the texts, if it is all text."""
    if isinstance(content, list) and all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        return "".join(str(part.get("text", "")) for part in content)
    return content


def as_text(messages: Messages) -> str:
    """A chat as a person reads it: one message needs no name."""
    if len(messages) == 1:
        return messages[0]["content"]
    return "\n".join(f"{m['role']}: {m['content']}" for m in messages)
