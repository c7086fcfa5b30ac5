"""What was asked once and need not be asked again: answers by question, in memory and, in a run, in a file."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any

from burnish.system.files import open_no_link


class KeptAnswers:
    """A mapping that several threads may use. Of a question only its hash is kept."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}
        self._file: Path | None = None
        self._lock = threading.Lock()

    def keep_in(self, file: Path) -> None:
        """Takes over what the file knows, and writes new answers to it. A line that a kill has torn is none."""
        self._file = file
        for line in file.read_bytes().splitlines() if file.is_file() else ():
            try:
                row = json.loads(line)
                self._known[str(row["question"])] = row["answer"]
            except (ValueError, KeyError, TypeError, RecursionError):
                continue

    def get(self, question: Any) -> Any:
        """None if nobody has answered it yet."""
        return self._known.get(_hash(question))

    def put(self, question: Any, answer: Any) -> None:
        line = json.dumps({"question": _hash(question), "answer": answer}).encode()
        with self._lock:
            self._known[_hash(question)] = answer
            if self._file is not None:
                handle = open_no_link(str(self._file), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
                with os.fdopen(handle, "ab") as out:
                    out.write(b"\n" + line + b"\n")  # the first ends a torn line before it


def _hash(question: Any) -> str:
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()
