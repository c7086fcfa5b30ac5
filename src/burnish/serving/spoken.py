"""Tokens become text as they come: no half character is given out, and nothing of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

REPLACED = "\ufffd"  # what bytes that are no character, or not yet one, are decoded to
CHARACTER_BYTES = 4  # at most; so many tokens may stand for one character
WINDOW, OVERLAP = 64, 8  # tokens that are decoded together, and that are decoded again when the window moves on


class Spoken:
    """The text of one answer. `whole` is what is certain of it so far."""

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        self.whole = ""
        self.is_stopped = False  # by a stop string, which `whole` ends before
        self.num_given = 0  # letters of `whole` that were given out
        self._tokenizer = tokenizer
        self._stop = [text for text in stop if text]
        self._ids: list[int] = []
        self._first = 0  # token of the window
        self._known = 0  # letters of the window's text that are in `whole`
        self._waits = 0  # tokens since all of the text was certain

    def hear(self, token: int) -> None:
        """One more token."""
        self._ids.append(token)
        text = self._decoded()
        self._waits = self._waits + 1 if text.endswith(REPLACED) else 0
        self._take(text, self._certain(text))
        if self._known == len(text) and len(self._ids) - self._first > WINDOW:
            self._first = len(self._ids) - OVERLAP
            self._known = len(self._decoded())

    def end(self) -> None:
        """No token comes any more: what was half a character stays one."""
        if not self.is_stopped:
            text = self._decoded()
            self._take(text, len(text))

    def give(self, is_ended: bool) -> str:
        """What can be given out now: what may be the beginning of a stop string waits."""
        end = len(self.whole) if is_ended else len(self.whole) - self._waiting()
        piece = self.whole[self.num_given : end]
        self.num_given = max(self.num_given, end)
        return piece

    def _decoded(self) -> str:
        return self._tokenizer.decode(self._ids[self._first :], skip_special_tokens=True)

    def _certain(self, text: str) -> int:
        """Letters of the window's text that later tokens leave as they are."""
        if self._waits == 0:
            return len(text)
        if self._waits < CHARACTER_BYTES:
            return self._known
        waiting = min(len(text) - len(text.rstrip(REPLACED)), CHARACTER_BYTES - 1)
        return max(len(text) - waiting, self._known)

    def _take(self, text: str, end: int) -> None:
        before = len(self.whole)
        self.whole += text[self._known : end]
        self._known = max(self._known, end)
        found = [self.whole.find(stop, max(before - len(stop) + 1, 0)) for stop in self._stop]
        if any(place >= 0 for place in found):
            self.whole = self.whole[: min(place for place in found if place >= 0)]
            self.is_stopped = True

    def _waiting(self) -> int:
        """Letters at the end that a stop string may begin with."""
        lengths = (n for stop in self._stop for n in range(1, len(stop)) if self.whole.endswith(stop[:n]))
        return max(lengths, default=0)
