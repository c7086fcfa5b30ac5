"""A service that is busy or away is asked again, by many at once, who give up together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from burnish.services.service import ServiceError

FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0  # seconds between two tries
Answer = TypeVar("Answer")


class Patience:
    """How often a question is repeated: after 1, 2, 4 ... seconds, at most 60, or when the service says."""

    def __init__(self, retries: int) -> None:
        self.retries = retries
        self._why: BaseException | None = None
        self._given_up = threading.Event()

    def ask(self, question: Callable[[int], Answer]) -> Answer:
        """What `question` gives, which is told how often it was asked before. The last failure is raised."""
        attempt = 0
        while True:
            if self._why is not None:
                raise self._why
            try:
                return question(attempt)
            except ServiceError as error:
                if not error.may_pass or attempt == self.retries:
                    raise
                self._wait(min(error.retry_after or FIRST_WAIT * 2**attempt, LONGEST_WAIT))
            attempt += 1

    def give_up(self, why: BaseException) -> None:
        """Nobody waits any longer: whoever asks next is told why."""
        self._why = self._why or why
        self._given_up.set()

    def _wait(self, seconds: float) -> None:
        self._given_up.wait(seconds)
