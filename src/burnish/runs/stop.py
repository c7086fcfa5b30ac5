"""Requests to stop: Ctrl-C and SIGTERM."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, ClassVar

from rich.console import Console

from burnish.processes import world
from burnish.runs.journal import Journal

SIGNALS = (signal.SIGINT, signal.SIGTERM)
ONE_REQUEST_SECONDS = 2.0


class StopSignals:
    """Ctrl-C and SIGTERM wait until the step is done. A second one ends the process at once.

    A pipeline and the stage it runs each hold one of these; a signal stops both.
    """

    _held: ClassVar[list[StopSignals]] = []

    def __init__(self, on_request: Callable[[int], None] = lambda number: None) -> None:
        self.exit_code: int | None = None
        self._on_request = on_request
        self._asked = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        self.exit_code = self._held[-1].exit_code if self._held else None
        self._held.append(self)
        if threading.current_thread() is threading.main_thread() and self.exit_code is None:
            self._before = {number: signal.signal(number, self._remember) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        self._held.remove(self)
        if self._held:
            self._held[-1].exit_code = self._held[-1].exit_code or self.exit_code
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.exit_code = 128 + number
        for each in SIGNALS:
            signal.signal(each, self._again if world.are_to_come() else signal.SIG_DFL)
        self._asked = time.monotonic()
        self._on_request(number)

    def _again(self, number: int, frame: FrameType | None) -> None:
        """One request reaches each of several processes more than once: from the terminal, and from their launcher."""
        if time.monotonic() - self._asked > ONE_REQUEST_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


def stop_signals(console: Console, journal: Journal | None = None) -> StopSignals:
    """A request to stop is announced, noted in the run's journal if there is one, and waits."""

    def announce(number: int) -> None:
        name = signal.Signals(number).name
        console.print(f"{name}: this step is finished and saved first; once more ends it at once.", highlight=False)
        console.show_cursor(True)
        if journal is not None:
            journal.told_to_stop(request_name(number))

    return StopSignals(announce)


def request_name(number: int) -> str:
    return "Ctrl-C in its terminal" if number == signal.SIGINT else signal.Signals(number).name
