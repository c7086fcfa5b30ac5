"""What happened to a run and what it is doing now, for whoever looks at its folder.

journal.jsonl   a line for each event: begun, resumed, warning, stopping, stopped, failed, finished
now.json        what the process at work is doing; gone when it ends
"""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psutil

from burnish.errors import BurnishError, InputError, LockedError
from burnish.runs.disk import without_links
from burnish.runs.run import Run
from burnish.system.files import replace
from burnish.text import without_secrets

JOURNAL, NOW = "journal.jsonl", "now.json"
STOPPING = "stopping"  # somebody asked for it; on the page: the process at work reads it when a step is done
ENDS = ("stopped", "failed", "finished")
SILENT_END = "its process ended without a word: it was killed, or the machine went down"
TAIL = 64 * 1024  # bytes of the journal that are read to see how it ended
asking = threading.Lock()


class Journal:
    """Written by the process at work in a run folder."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.is_open = False

    def begin(self, step: int) -> None:
        self.is_open = True
        self.note("resumed" if step else "begun", f"after step {step}" if step else "")

    def note(self, event: str, text: str = "") -> None:
        self.run.append(JOURNAL, {"time": round(time.time(), 1), "event": event, "text": text})

    def doing(self, step: int, steps: int, phase: str) -> None:
        """A phase of a step of so many, or what is done before the first and after the last. Not forced to the disk: it
        is of use only while the process lives.
        """
        if not self.is_open:  # of several processes the first keeps the journal
            return
        scratch = self.run.path(f".writing-{NOW}")
        now = {"step": step, "steps": steps, "phase": phase, "since": round(time.time(), 1)}
        with suppress(OSError):  # nothing depends on it
            scratch.unlink(missing_ok=True)
            with open(scratch, "x", encoding="utf-8", opener=without_links) as out:
                json.dump(without_secrets(now), out)
            replace(scratch, self.run.path(NOW))

    @property
    def asks_to_stop(self) -> bool:
        """Whether somebody wrote so into it since the work began."""
        return self.is_open and (last := last_event(self.run)) is not None and last["event"] == STOPPING

    def told_to_stop(self, by: str) -> None:
        """A signal asks for it; whoever looks sees that the step is finished first."""
        if self.is_open:
            with suppress(OSError, BurnishError):  # the request counts in any case
                self.note(STOPPING, by)

    def end(self, event: str, text: str = "") -> None:
        """Nothing, if nothing was begun: the run folder is then as it was."""
        if self.is_open:
            self.is_open = False
            self.note(event, text)
            self.run.path(NOW).unlink(missing_ok=True)

    @contextmanager
    def hears_warnings(self) -> Iterator[None]:
        """Each warning is shown as before, and noted."""
        shown = warnings.showwarning

        def show(message: Warning | str, *more: Any, **options: Any) -> None:
            if self.is_open:
                self.note("warning", str(message))
            shown(message, *more, **options)

        warnings.showwarning = show
        try:
            yield
        finally:
            warnings.showwarning = shown


# ------------------------------------------------------------------------------------------------------ for readers


@dataclass(frozen=True)
class Condition:
    """How it is with a run."""

    state: str
    """`running`, `stopped`, `failed` or `finished`."""
    why: str = ""
    """Of a run that stopped or failed."""
    is_stopping: bool = False
    """It was asked to stop, and finishes its step first."""
    process: psutil.Process | None = None
    """That at work in it."""


def condition_of(run: Run) -> Condition:
    """Seen without touching the lock: whoever holds it even for a moment would keep a run from starting."""
    process = _at_work(run)
    if run.is_complete:
        return Condition("finished", process=process)
    last = last_event(run)
    if process is not None:
        return Condition("running", is_stopping=last is not None and last["event"] == STOPPING, process=process)
    if last is not None and last["event"] in ENDS:
        return Condition("failed" if last["event"] == "failed" else "stopped", str(last.get("text", "")))
    if run.has(".lock"):
        return Condition("stopped", SILENT_END)
    return Condition("stopped", "it has no result: it was saved from Python, or copied before it had one")


def standing_of(run: Run) -> str:
    """In a phrase: which stage it is, its state, and why it ended if it did not finish."""
    condition = condition_of(run)
    why = f": {condition.why}" if condition.why else ""
    return f"{run.stage}, {'stopping' if condition.is_stopping else condition.state}{why}"


def ask_to_stop(run: Run) -> None:
    """The run finishes its step, saves and ends. No signal is sent: after a Ctrl-C in its terminal it would be the
    second one, which ends a run at once.
    """
    with asking:
        condition = condition_of(run)
        if condition.process is None or condition.state != "running":
            raise LockedError(f"{run.name} is not running: it is {condition.state}")
        if condition.is_stopping:
            raise LockedError(f"{run.name} is stopping already: its step is finished and saved first")
        Journal(run).note(STOPPING, "asked for on the page")


def last_event(run: Run) -> dict[str, Any] | None:
    """That ended or began something; None where a run of an older version, or from Python, kept no journal."""
    path = run.path(JOURNAL)
    if not path.is_file():
        return None
    with open(path, "rb", opener=without_links) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
        lines = file.read().splitlines()
    for line in reversed(lines):
        try:
            event = json.loads(line)
        except ValueError:  # torn by a kill, or cut here
            continue
        if isinstance(event, dict) and event.get("event") in (*ENDS, STOPPING, "begun", "resumed"):
            return event
    return None


def doing_now(run: Run) -> dict[str, Any] | None:
    """Step, phase and since when, of a run that is at work."""
    try:
        return run.read(NOW)
    except InputError:
        return None


def _at_work(run: Run) -> psutil.Process | None:
    """The living process that wrote the lock file and still holds it open."""
    lock = run.path(".lock")
    try:
        words = lock.read_text(encoding="utf-8", errors="replace").split()
        process = psutil.Process(int(words[1]))
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        held = {os.path.realpath(file.path) for file in process.open_files()}
    except psutil.AccessDenied:  # another user's; one that began after the lock was taken only has its number
        return process if process.create_time() <= lock.stat().st_mtime + 1 else None
    except (OSError, ValueError, IndexError, psutil.Error):
        return None
    return process if os.path.realpath(lock) in held else None
