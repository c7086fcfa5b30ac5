"""log.txt of a run folder: what the terminal said, with times and without colour; a resumed run goes on in it.

What is said before there is a run folder waits until there is one. The file stays below a few megabytes: beyond that
its older part is dropped.
"""

from __future__ import annotations

import io
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.control import Control
from rich.text import Text

from burnish.errors import BurnishError
from burnish.processes import world
from burnish.runs.disk import without_links, write_whole
from burnish.runs.run import Run
from burnish.text import visible, without_secrets

LOG = "log.txt"
MOST_BYTES = 4 << 20
KEPT_BYTES = 1 << 20
MOST_WAITING = 2000  # lines
WIDTH = 100
DROPPED = "(earlier lines were dropped)\n"
_open: list[RunLog] = []


class FileLine:
    """A line for files: where a terminal shows it in another way, a moving one for example, it is not printed."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not console.is_terminal:
            yield Text(self.text)


class RunLog(RenderHook):
    """Hears whatever a console prints; what moves (bars, spinners) is no part of it."""

    def __init__(self) -> None:
        self.run: Run | None = None
        self._waiting: list[str] = []

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        said = [own for own in renderables if not isinstance(own, Control)]
        if said:
            page = Console(file=io.StringIO(), width=WIDTH, color_system=None, force_terminal=False, emoji=False)
            page.print(*said)
            self.write(page.file.getvalue())  # type: ignore[attr-defined]
        return renderables

    def write(self, text: str) -> None:
        """Its lines, each with the time. What cannot be written is left out: no run ends for its log."""
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        lines = [f"{now}  {line.rstrip()}\n" for line in visible(without_secrets(text)).splitlines() if line.strip()]
        if self.run is None:
            self._waiting = [*self._waiting, *lines][-MOST_WAITING:]
        elif lines:
            with suppress(OSError, BurnishError):
                _append(self.run, "".join(lines))

    def keep_in(self, run: Run) -> None:
        """From now on, and what was said before."""
        self.run = run
        if self._waiting:
            with suppress(OSError, BurnishError):
                _append(run, "".join(self._waiting))
        self._waiting = []


@contextmanager
def logged(console: Console) -> Iterator[None]:
    """What the console prints meanwhile is kept, once a run has begun; so are warnings, and how it ended."""
    log, shown = RunLog(), warnings.showwarning

    def show(message: Warning | str, *more: Any, **options: Any) -> None:
        log.write(f"warning: {message}")
        shown(message, *more, **options)

    _open.append(log)
    console.push_render_hook(log)
    warnings.showwarning = show
    try:
        yield
    except BaseException as error:
        log.write(str(error) if isinstance(error, BurnishError) else f"{type(error).__name__}: {error}")
        raise
    finally:
        warnings.showwarning = shown
        console.pop_render_hook()
        _open.remove(log)


def keep_log(run: Run) -> None:
    """The run has begun: its folder is where what is said belongs."""
    if _open and world.is_first():
        _open[-1].keep_in(run)


def _append(run: Run, text: str) -> None:
    """One write; after a line that a kill tore, on a line of its own."""
    path = run.path(LOG)
    with open(path, "ab+", opener=without_links) as out:
        size = out.seek(0, os.SEEK_END)
        if size:
            out.seek(size - 1)
            text = text if out.read(1) == b"\n" else f"\n{text}"
        out.write(text.encode())
    if size > MOST_BYTES:
        whole = path.read_text(encoding="utf-8", errors="replace")
        write_whole(path, DROPPED + whole[-KEPT_BYTES:].partition("\n")[2])
