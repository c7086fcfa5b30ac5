"""Where a step's time goes: components mark their methods, a clock listens."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Clock:
    """Seconds per marked method since the last reset; `on_phase` hears each name as it begins."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.on_phase: Callable[[str], None] | None = None

    def reset(self) -> None:
        self.seconds = {}


class HasClock(Protocol):
    clock: Clock


C = TypeVar("C", bound=HasClock)


def timed(method: Callable[Concatenate[C, P], R]) -> Callable[Concatenate[C, P], R]:
    """Adds a method's time to its object's clock, under the method's name."""
    name: str = method.__name__

    @functools.wraps(method)
    def wrapper(self: C, *args: Any, **kwargs: Any) -> R:
        if self.clock.on_phase:
            self.clock.on_phase(name)
        start = time.perf_counter()
        try:
            return method(self, *args, **kwargs)
        finally:
            self.clock.seconds[name] = self.clock.seconds.get(name, 0.0) + time.perf_counter() - start

    return wrapper
