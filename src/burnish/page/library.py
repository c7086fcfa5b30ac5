"""The runs below a folder, and what is kept of them between requests."""

from __future__ import annotations

import hashlib
import math
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from burnish.errors import InputError
from burnish.page.computing import Computing
from burnish.page.growing import GrowingFile, Metrics, last_rows, spread_points
from burnish.runs.journal import JOURNAL, NOW, Condition, condition_of, doing_now
from burnish.runs.run import RESULTS, Run, step_of
from burnish.stages.overview import outcome_of
from burnish.text import secret_variables

DEEPEST = 5  # folders below the root
MOST_FOLDERS = 20_000
LOOKED_AGAIN = 0.8  # seconds until the folder is looked through again
KEPT_FILES = 24  # of the runs looked at last, what their logs say
SPARK_POINTS = 48
WATCHED = ("config.yaml", "metrics.jsonl", "samples.jsonl", "probes.jsonl", JOURNAL, NOW, *RESULTS)
DAMAGE = (InputError, KeyError, TypeError, ValueError, AttributeError, IndexError)
"""What reading a file of a run may end in, if the file is not as burnish writes it."""
Mark = tuple[int, int, int] | None
"""Of a file: changes with it. None where there is none."""
Version = tuple[Mark, ...]
Growing = TypeVar("Growing", bound=GrowingFile)


class NoSuchRunError(InputError):
    """A name that no run has."""


class Library:
    """Runs by their names: paths from the root. A name is looked up among those found, never joined to a path."""

    def __init__(self, root: Path, labelled: Path | None = None) -> None:
        if not root.is_dir():
            raise InputError(f"there is no folder {root}; runs are kept in runs/, unless you chose another run_dir")
        self.root = root.resolve()
        self.labelled = labelled
        """A file of answers that are to be judged."""
        self.computing = Computing()
        self._lock = threading.Lock()
        self._found: dict[str, Run] = {}
        self._looked = -LOOKED_AGAIN
        self._kept: OrderedDict[tuple[str, Any], GrowingFile] = OrderedDict()
        self._summaries: dict[str, tuple[Version, dict[str, Any]]] = {}
        self._settings: dict[str, tuple[Mark, dict[str, Any]]] = {}
        self._versions: dict[str | None, tuple[float, str]] = {}

    def runs(self) -> dict[str, Run]:
        with self._lock:
            if time.monotonic() - self._looked >= LOOKED_AGAIN:
                self._found = dict(_runs_in(self.root))
                self._looked = time.monotonic()
                kept: tuple[dict[Any, Any], ...] = (self._summaries, self._settings, self._versions)
                for own in kept:
                    for gone in own.keys() - self._found.keys() - {None}:
                        del own[gone]
            return self._found

    def run(self, name: str) -> Run:
        runs = self.runs()
        if name not in runs:
            raise NoSuchRunError(f"there is no run {name!r} in {self.root.name}")
        return runs[name]

    def metrics(self, name: str) -> Metrics:
        return self.growing(name, Metrics)

    def growing(self, name: str, kind: Callable[[Run], Growing]) -> Growing:
        """A log of a run, read up to its end."""
        run = self.run(name)
        with self._lock:
            key = (name, kind)
            kept = self._kept.pop(key, None)
            kept = kind(run) if kept is None else kept
            self._kept[key] = kept
            while len(self._kept) > KEPT_FILES:
                self._kept.popitem(last=False)
        kept.update()
        return kept  # type: ignore[return-value]

    def settings(self, name: str) -> dict[str, Any]:
        """Those of a run's config, which takes long to parse."""
        run = self.run(name)
        mark = _mark(run.folder / "config.yaml")
        kept = self._settings.get(name)
        if kept is None or kept[0] != mark:
            kept = (mark, run.settings)
            self._settings[name] = kept
        return kept[1]

    def summary(self, name: str) -> dict[str, Any]:
        """What a list of runs shows of one."""
        run = self.run(name)
        version = version_of(run)
        kept = self._summaries.get(name)
        if kept is None or kept[0] != version:
            kept = (version, _summary(run))
            self._summaries[name] = kept
        condition = _condition_of(run)
        now = {"state": condition.state, "why": condition.why}
        left = kept[1]["seconds_left"] if condition.state == "running" else None
        return {"run": name} | kept[1] | now | {"seconds_left": left}

    def version(self, name: str | None) -> str:
        """Changes whenever there is something new to see of a run; of any run, without a name. However many ask, the
        files are looked at once in a while.
        """
        kept = self._versions.get(name)
        if kept is None or time.monotonic() - kept[0] >= LOOKED_AGAIN:
            runs = self.runs().items() if name is None else [(name, self.run(name))]
            seen = tuple((own, version_of(run), _condition_of(run).state) for own, run in runs)
            kept = (time.monotonic(), hashlib.sha256(repr(seen).encode()).hexdigest()[:16])
            self._versions[name] = kept
        return kept[1]


def version_of(run: Run) -> Version:
    """Of the files that are shown: a number each that changes with them."""
    return tuple(map(_mark, (run.folder / name for name in WATCHED)))


def _mark(path: Path) -> Mark:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _runs_in(root: Path) -> list[tuple[str, Run]]:
    """Links are not followed, and a run holds no other runs."""
    if (root / "config.yaml").is_file():
        return [(root.name, Run(root))]
    found, waiting, seen = [], [(root, 0)], 0
    while waiting:
        folder, depth = waiting.pop()
        seen += 1
        if depth > DEEPEST or seen > MOST_FOLDERS:
            continue
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        if folder != root and any(e.name == "config.yaml" and e.is_file(follow_symlinks=False) for e in entries):
            name = folder.relative_to(root).as_posix()
            if name.isprintable():  # others cannot be told apart, or not be written in an address
                found.append((name, Run(folder)))
            continue
        waiting += [
            (Path(e.path), depth + 1) for e in entries if e.is_dir(follow_symlinks=False) and not e.name.startswith(".")
        ]
    return sorted(found)


def _condition_of(run: Run) -> Condition:
    """A folder that came from elsewhere may hold anything."""
    try:
        return condition_of(run)
    except (InputError, OSError) as error:
        return Condition("stopped", str(error))


def _summary(run: Run) -> dict[str, Any]:
    """A run that cannot be read says so; the others are still there to be seen."""
    try:
        return _read_summary(run)
    except (*DAMAGE, OSError) as error:
        told = str(error) if isinstance(error, InputError) else f"damaged: {type(error).__name__}: {error}"
        unknown = ("stage", "steps", "seconds_left", "curve", "last", "begun", "changed")
        return dict.fromkeys(unknown) | {"step": 0, "points": [], "outcome": told}


def _read_summary(run: Run) -> dict[str, Any]:
    stage, total, begun = _glance(run)
    curve = "reward" if stage == "ppo" else "loss"
    metrics = run.path("metrics.jsonl")
    points, rows = spread_points(metrics, curve, SPARK_POINTS), last_rows(metrics)
    step = int(step_of(rows[-1])) if rows else 0
    last = rows[-1].get(curve) if rows else None
    if isinstance(last, int | float) and math.isfinite(last) and points and points[-1][0] < step:
        points.append((step, float(last)))
    now, changed, outcome = doing_now(run), _mark(metrics), outcome_of(run)
    total = total or (now or {}).get("steps")
    return {
        "stage": stage,
        "step": step,
        "steps": total,
        "seconds_left": _seconds_left(rows, total, now, changed),
        "curve": curve,
        "points": points,
        "last": points[-1][1] if points else None,
        "outcome": "" if outcome == "unfinished" else outcome,
        "begun": begun,
        "changed": changed[2] / 1e9 if changed else begun,
    }


def _seconds_left(
    rows: list[dict[str, Any]], total: int | None, now: dict[str, Any] | None, changed: Any
) -> float | None:
    """By the last steps' median, or where they do not say how long they took, by the time since the work began."""
    if not rows or not total:
        return None
    step = step_of(rows[-1])
    if seconds := [row["seconds"] for row in rows[-9:] if isinstance(row.get("seconds"), int | float)]:
        return (total - step) * median(seconds)
    if now is None or changed is None or step <= now["step"]:
        return None
    return (total - step) * (changed[2] / 1e9 - now["since"]) / (step - now["step"])


def _glance(run: Run) -> tuple[str, int | None, float]:
    """Stage, steps and when it was begun. A config that a run wrote has a line for each of its keys; the whole of it
    takes long to parse.
    """
    path = run.path("config.yaml")
    found = path.stat()
    text = path.read_text(encoding="utf-8", errors="replace") if found.st_size < 1 << 20 else ""
    secret_variables.update(re.findall(r"\btoken_env: ['\"]?(\w+)", text))  # what this run calls a key is hidden
    stage = re.search(r"^stage: (sft|reward|ppo)$", text, re.MULTILINE)
    steps = re.search(r"^steps: (\d+)$", text, re.MULTILINE)
    if stage:
        return stage[1], int(steps[1]) if steps else None, found.st_mtime
    own = run.settings.get("steps")
    return run.stage, own if isinstance(own, int) else None, found.st_mtime
