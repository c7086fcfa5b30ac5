"""Files that grow while they are looked at: only what is new is read, and of a long file only what is shown is kept."""

from __future__ import annotations

import json
import math
import os
import re
import threading
from array import array
from pathlib import Path
from typing import Any

from burnish.errors import InputError
from burnish.runs.disk import without_links
from burnish.runs.run import Run, step_of

CHUNK = 1 << 20
LONGEST_LINE = 64 << 20  # a file with a longer one is not a log
WINDOW = 8 << 10  # bytes in which a line of metrics surely ends
NESTED = ("reward_parts", "reward_costs")


class GrowingFile:
    """A JSONL file of a run. `update` hands every new whole line to `line`; a file that was cut or replaced, as a
    resumed run does, is read again from its start.
    """

    def __init__(self, run: Run, name: str) -> None:
        self._run, self._name = run, name
        self._place, self._inode = 0, 0
        self._lock = threading.Lock()

    def update(self) -> None:
        with self._lock:
            try:
                path = self._run.path(self._name)
                with open(path, "rb", opener=without_links) as file:
                    found = os.fstat(file.fileno())
                    if found.st_ino != self._inode or found.st_size < self._place:
                        self._place, self._inode = 0, found.st_ino
                        self.restart()
                    file.seek(self._place)
                    self._read(file)
            except FileNotFoundError:
                self._place, self._inode = 0, 0
                self.restart()
            except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
                if isinstance(error, InputError):
                    raise
                raise InputError(f"{self._name} of {self._run.name} is damaged: {error}") from None

    def _read(self, file: Any) -> None:
        rest = b""
        while chunk := file.read(CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            for text in lines:
                self.line(self._place, text)
                self._place += len(text) + 1
            if len(rest) > LONGEST_LINE:
                raise ValueError("a line has no end")

    def restart(self) -> None:
        """Forgets all."""
        raise NotImplementedError

    def line(self, place: int, text: bytes) -> None:
        """Takes in the line that begins at `place`."""
        raise NotImplementedError


class Metrics(GrowingFile):
    """metrics.jsonl as columns of numbers: 8 bytes a step for each metric."""

    def __init__(self, run: Run) -> None:
        super().__init__(run, "metrics.jsonl")
        self.restart()

    def restart(self) -> None:
        self.steps = array("d")
        self.columns: dict[str, array[float]] = {}
        """By metric, a number for each of `steps`, NaN where there is none. Parts of the reward: reward_parts/NAME."""

    def line(self, place: int, text: bytes) -> None:
        row = json.loads(text)
        step = float(step_of(row))
        for group in NESTED:
            row |= {f"{group}/{name}": value for name, value in (row.pop(group, None) or {}).items()}
        numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
        for name, value in numbers.items():
            if name not in self.columns:
                self.columns[name] = array("d", [math.nan]) * len(self.steps)
            self.columns[name].append(value)
        self.steps.append(step)
        for name in self.columns.keys() - numbers.keys():
            self.columns[name].append(math.nan)

    def series(self, name: str, last: int | None = None) -> list[tuple[float, float]]:
        """Step and value, where there is one; of the last steps alone, where that is enough."""
        column, first = self.columns.get(name, array("d")), 0 if last is None else max(0, len(self.steps) - last)
        pairs = zip(self.steps[first:], column[first:], strict=False)
        return [(step, value) for step, value in pairs if math.isfinite(value)]

    def last(self, name: str) -> float | None:
        points = self.columns.get(name)
        return points[-1] if points and math.isfinite(points[-1]) else None


def last_rows(path: Path, window: int = WINDOW) -> list[dict[str, Any]]:
    """The whole lines at the end of a JSONL file, as many as lie in so many bytes."""
    try:
        with open(path, "rb", opener=without_links) as file:
            start = max(0, os.fstat(file.fileno()).st_size - window)
            file.seek(start)
            texts = file.read().split(b"\n")
    except OSError:
        return []
    rows = []
    for text in texts[1:] if start else texts:
        try:
            row = json.loads(text)
        except ValueError:  # empty, or torn by a kill
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def spread_points(path: Path, name: str, how_many: int) -> list[tuple[int, float]]:
    """Step and value of a metric at some lines, evenly spread: the same work for a file of any length. Lines are looked
    through for the two numbers, not parsed.
    """
    numbers = re.compile(rb'"(?:step|update)": (\d+)(?:.*?)"%s": (-?[\d.]+(?:e[+-]?\d+)?)' % re.escape(name.encode()))
    try:
        with open(path, "rb", opener=without_links) as file:
            size = os.fstat(file.fileno()).st_size
            if size <= how_many * WINDOW:
                lines = file.read().split(b"\n")
                step = max(1, len(lines) // how_many)
                texts = lines[: -1 - step : step] + lines[-2:]
            else:
                texts = [_line_after(file, size * k // how_many) for k in range(how_many)]
    except OSError:
        return []
    found = [numbers.search(text) for text in texts]
    return [(int(match[1]), float(match[2])) for match in found if match]


def _line_after(file: Any, place: int) -> bytes:
    file.seek(place)
    parts = file.read(WINDOW).split(b"\n", 2)
    return parts[0] if place == 0 else parts[1] if len(parts) > 2 else b""
