"""Errors that cross from one process to another: told as JSON, and raised there as one's own."""

from __future__ import annotations

from typing import Any

from burnish import errors
from burnish.errors import BurnishError, StoppedError


def described(error: Exception | None) -> dict[str, Any] | None:
    """All that is needed to raise it elsewhere."""
    if error is None:
        return None
    kind, told = type(error).__name__, str(error)
    more = {name: getattr(error, name, None) for name in ("exit_code", "step", "errno", "strerror")}
    more["filename"] = str(error.filename) if isinstance(error, OSError) and error.filename is not None else None
    about = {"is_ours": isinstance(error, BurnishError), "is_memory": errors.is_out_of_memory(error)}
    return {"kind": kind, "kinds": [own.__name__ for own in type(error).__mro__], "told": told} | about | more


def error_of(described: dict[str, Any], where: int) -> Exception:
    """The error of another process, as one's own."""
    if not described["is_ours"] and described["errno"] is not None:
        return OSError(described["errno"], described["strerror"], described["filename"])
    if not described["is_ours"] and described["is_memory"]:
        return MemoryError(described["told"])
    if not described["is_ours"]:
        return BurnishError(f"process {where} failed with {described['kind']}: {described['told']}")
    kind = next(getattr(errors, name) for name in described["kinds"] if hasattr(errors, name))
    if issubclass(kind, StoppedError):
        return kind(described["told"], described["exit_code"])
    error = kind.__new__(kind)
    Exception.__init__(error, described["told"])
    error.__dict__ |= {"exit_code": described["exit_code"], "step": described["step"], "sa_pairs": None}
    return error
