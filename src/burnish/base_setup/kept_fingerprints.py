"""Fingerprints of weights, kept in burnish's cache: one takes a pass over every byte, so files are not hashed twice."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import transformers

from burnish.base_setup.embedded import cache_dir

SETTLED_SECONDS = 2.0  # a file that changed just now may change again within one tick of its clock


class KeptFingerprint:
    """Of the weights that are loaded from a folder. It is made before they are read, and told when they have been."""

    def __init__(self, find: Callable[[], Path | None], dtype: str) -> None:
        """`find` gives the folder; a hub may bring another one when the weights are loaded."""
        self._find = find
        self._dtype = dtype
        self._key = self._key_of_files()

    def loaded(self) -> None:
        """What was read while it changed is not known by its files."""
        if self._key_of_files() != self._key:
            self._key = None

    def __call__(self, compute: Callable[[], str]) -> str:
        """The fingerprint of these very files in this format, or what `compute` gives, which is kept."""
        if self._key is None:
            return compute()
        file = cache_dir() / "fingerprints" / self._key
        with suppress(OSError, UnicodeDecodeError):
            kept = file.read_text(encoding="utf-8")
            if re.fullmatch("[0-9a-f]{32}", kept):
                return kept
        fingerprint = compute()
        with suppress(OSError):  # without a cache it is computed each time
            file.parent.mkdir(parents=True, exist_ok=True)
            scratch = file.with_name(f".writing-{file.name}-{os.getpid()}")
            scratch.write_text(fingerprint, encoding="utf-8")
            scratch.replace(file)
        return fingerprint

    def _key_of_files(self) -> str | None:
        """By everything about the files that no change of what is in them leaves as it was."""
        folder = self._find()
        if folder is None:
            return None
        facts: list[object] = [transformers.__version__, self._dtype]
        newest = 0.0
        try:
            for file in sorted([*folder.glob("*.safetensors"), folder / "config.json"]):
                stat = file.stat()
                facts.append([str(file.resolve()), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino])
                newest = max(newest, stat.st_ctime)
        except OSError:
            return None
        settled = time.time() - newest > SETTLED_SECONDS
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32] if settled else None
