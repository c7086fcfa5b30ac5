"""What people said of answers, as files. Every word of theirs is on the disk when it is said, however many write.

choices.jsonl         all of it, in its order: choices, scores, corrections, what was skipped; by whom and when
preferences.jsonl     the choices that are no ties, as `burnish reward` reads them
scores.jsonl          the scores, as `burnish reward` reads them
demonstrations.jsonl  the better answers that people wrote, as `burnish sft` reads them
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from burnish.runs.disk import inside, is_whole_line, json_lines, without_links, write_whole
from burnish.runs.run import lines_of
from burnish.system.locks import alone_in
from burnish.text import without_secrets

Row = dict[str, Any]
SIDES = (("start", "tuned"), ("first", "second"))
"""What the two answers of a choice are called: those of one run's verdict, and any others."""


def sides_of(row: Row) -> tuple[str, str] | None:
    """Under which keys a row has two answers; None where it is no choice."""
    return next((both for both in SIDES if both[0] in row and both[1] in row), None)


def learned_from(row: Row) -> tuple[str, Row] | None:
    """The file that a stage learns from, and its line; None where there is nothing to learn. A question that was asked
    again was learned from already.
    """
    who = {key: row[key] for key in ("judge", "strength") if key in row}
    prompt = {"prompt": row.get("messages") or row["prompt"]}
    if "completion" in row:
        return "demonstrations", prompt | {"completion": row["completion"]} | who
    if "score" in row:
        return "scores", prompt | {"response": row["response"], "score": row["score"]} | who
    both = sides_of(row)
    if both is None or row["better"] not in both or row.get("again"):
        return None
    worse = both[row["better"] == both[0]]
    return "preferences", prompt | {"chosen": row[row["better"]], "rejected": row[worse]} | who


class Said:
    """The files in a folder; their names begin with `prefix`."""

    def __init__(self, folder: Path, prefix: str = "") -> None:
        self.folder = folder
        self.prefix = prefix

    def path(self, kind: str) -> Path:
        return inside(self.folder, f"{self.prefix}{kind}.jsonl")

    def rows(self, kind: str = "choices") -> list[Row]:
        return json_lines(self.path(kind))

    def keep(self, row: Row) -> None:
        """Appends it, and what is learned from it."""
        self.keep_after(lambda rows: row)

    def keep_after(self, row_of: Callable[[list[Row]], Row | None]) -> bool:
        """The same for a row that depends on those before it; whether there was one."""
        with alone_in(self.folder):
            row = without_secrets(row_of(self.rows()))
            if row is None:
                return False
            before = _append(self.path("choices"), row)
            if learned := learned_from(row):
                try:
                    _append(self.path(learned[0]), learned[1])
                except OSError:  # all of it is kept, or nothing
                    os.truncate(self.path("choices"), before)
                    raise
        return True

    def take_back(
        self, which: Callable[[Row], bool], only_if: Callable[[list[Row]], bool] = lambda rows: True
    ) -> Row | None:
        """The last row of that kind, and what was learned from it, as if it had never been said."""
        with alone_in(self.folder):
            rows = self.rows()
            if not only_if(rows):
                return None
            row = self._without_last("choices", rows, which)
            if row is not None and (learned := learned_from(row)):
                self._without_last(learned[0], self.rows(learned[0]), lambda own: own == learned[1])
        return row

    def _without_last(self, kind: str, rows: list[Row], which: Callable[[Row], bool]) -> Row | None:
        for place in reversed(range(len(rows))):
            if which(rows[place]):
                write_whole(self.path(kind), lines_of(rows[:place] + rows[place + 1 :]))
                return rows[place]
        return None


def _append(path: Path, row: Row) -> int:
    """How long the file was before; so long it is again if there is no room for the whole row."""
    handle = without_links(str(path), os.O_RDWR | os.O_CREAT | os.O_APPEND)
    with open(handle, "rb+", buffering=0) as file:
        last = file.readall().rpartition(b"\n")[2]
        before = file.tell()
        line = json.dumps(row).encode() + b"\n"
        if last and is_whole_line(last):  # somebody's editor ends a file without a line feed
            line = b"\n" + line
        elif last:  # cut by a kill
            before -= len(last)
            file.truncate(before)
        if file.write(line) != len(line):
            file.truncate(before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(handle)
    return before
