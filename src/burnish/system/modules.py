"""Modules: those of Python's own that only some systems have, and where a process of ours gets its own from."""

from __future__ import annotations

import importlib
import sys
from typing import Any

OWN_PYTHON = (sys.executable, "-P")
"""What a process of ours is started with. -P: modules come from where Python is installed, not from the folder that
burnish happens to be called in, which may be somebody else's."""


def if_there(name: str) -> Any:
    """The module, or None on a system without it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
