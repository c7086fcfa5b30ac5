"""What can go wrong, and the exit code that the command line gives it.

Every message says what was found, where, what is needed and the way out.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SHOWN_ERRORS = 3


class BurnishError(Exception):
    """Root of all errors that a user can meet. `exit_code` is what the command line returns for it."""

    exit_code = 1


class InputError(BurnishError, ValueError):
    """A config, a file, a prompt or a reward that cannot be used."""

    exit_code = 2


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a config, and the key it is about, if it is about one."""

    sentence: str
    key: str | None = None


class ConfigError(InputError):
    """Everything that is wrong with a config, in one error. `lines` says where in its file the keys stand."""

    def __init__(
        self, problems: Sequence[Problem], source: str = "the config", lines: Mapping[str, int] | None = None
    ) -> None:
        self.problems = list(problems)
        count = "1 error" if len(problems) == 1 else f"{len(problems)} errors"
        found = {p: (lines or {}).get(p.key or "") for p in problems}
        told = [f"line {line}: {p.sentence}" if line else p.sentence for p, line in found.items()]
        super().__init__(f"{count} in {source}:\n" + "\n".join(f"  - {line}" for line in told))


class RewardFailedError(InputError):
    """A reward that could not be asked this time: it raised, hung, or its service was away."""


class LockedError(BurnishError):
    """Another process is at work in the run folder."""

    exit_code = 3


class NoCheckpointError(BurnishError):
    """There is nothing to resume from."""

    exit_code = 4


class DivergedError(BurnishError, RuntimeError):
    """The training left the region in which its numbers mean anything. `sa_pairs` are those it happened with, and
    `step` the step, where it is not the one that was under way.
    """

    exit_code = 5

    def __init__(self, message: str, sa_pairs: Any = None, step: int | None = None) -> None:
        super().__init__(message)
        self.sa_pairs = sa_pairs
        self.step = step


class ResourceError(BurnishError):
    """Memory, disk space or a rollout server that is not there."""

    exit_code = 6


class LostProcessError(BurnishError):
    """One of the processes that make a run together is gone, or no longer answers."""

    exit_code = 7


class WrongExportError(BurnishError):
    """An export that does not say what the run says: it is not kept."""

    exit_code = 8


class StoppedError(BurnishError):
    """Someone asked the run to stop; it is saved. 130 for Ctrl-C, 143 for SIGTERM."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def all_of(*loads: Callable[[], Any]) -> list[Any]:
    """What each gives; or, if some cannot be done, all that is wrong in one error."""
    results, problems = [], []
    for load in loads:
        try:
            results.append(load())
        except InputError as error:
            problems.append(str(error))
    if problems:
        raise InputError("\n".join(dict.fromkeys(problems)))  # several may fail for the same reason
    return results


def is_disk_full(error: Exception) -> bool:
    """Whether a write failed for want of space (safetensors says so in words only)."""
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)


def is_out_of_memory(error: BaseException) -> bool:
    """A GPU's, Python's, or that of torch's allocator on the CPU, which has no type of its own."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's, without importing it
        return True
    return isinstance(error, RuntimeError) and ("allocate memory" in str(error) or "not enough memory" in str(error))


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint ("; did you mean 'x'?") for a misspelt name, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def some_of(lines: Sequence[str]) -> str:
    """The first three, and how many more there are."""
    more = f"\n  ... and {len(lines) - SHOWN_ERRORS} more" if len(lines) > SHOWN_ERRORS else ""
    return "\n".join(f"  {line}" for line in lines[:SHOWN_ERRORS]) + more


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
