"""Modules of Python's own that only some systems have."""

from __future__ import annotations

import importlib
from typing import Any


def if_there(name: str) -> Any:
    """The module, or None on a system without it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
