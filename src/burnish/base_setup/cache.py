"""Where converted models and fingerprints are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """$BURNISH_CACHE, or burnish/ in the user's cache folder."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "burnish"
    return Path(os.environ.get("BURNISH_CACHE") or default)
