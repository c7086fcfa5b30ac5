"""Fingerprints of files, kept in burnish's cache: one takes a pass over every byte, so files are not hashed twice."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from burnish.base_setup.cache import cache_dir
from burnish.system.files import replace

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
        return kept(self._key, compute)

    def _key_of_files(self) -> str | None:
        folder = self._find()
        if folder is None:
            return None
        files = sorted([*folder.glob("*.safetensors"), folder / "config.json"])
        return key_of(files, importlib.metadata.version("transformers"), self._dtype)


def kept(key: str | None, compute: Callable[[], str]) -> str:
    """The fingerprint that is kept under a key, or what `compute` gives, which is kept then. Without a key it is
    computed each time.
    """
    if key is None:
        return compute()
    file = cache_dir() / "fingerprints" / key
    with suppress(OSError, UnicodeDecodeError):
        found = file.read_text(encoding="utf-8")
        if re.fullmatch("[0-9a-f]{32}", found):
            return found
    fingerprint = compute()
    with suppress(OSError):  # without a cache it is computed each time
        file.parent.mkdir(parents=True, exist_ok=True)
        scratch = file.with_name(f".writing-{file.name}-{os.getpid()}")
        scratch.write_text(fingerprint, encoding="utf-8")
        replace(scratch, file)
    return fingerprint


def key_of(files: Iterable[Path], *read_by: str) -> str | None:
    """By everything about the files that no change of what is in them leaves as it was; None while they change."""
    facts: list[object] = [*read_by]
    newest = 0.0
    try:
        for file in files:
            stat = file.stat()
            facts.append([str(file.resolve()), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino])
            newest = max(newest, stat.st_ctime)
    except OSError:
        return None
    settled = time.time() - newest > SETTLED_SECONDS
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32] if settled else None
