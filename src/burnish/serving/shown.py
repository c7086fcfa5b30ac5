"""Answers on a terminal while they grow: side by side where there is room, else one below the other."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from burnish.text import visible

SIDE_BY_SIDE = 80  # columns from which on there is room for two answers
FRAME = 7  # columns of a table of two that hold no text
LEFT_FREE = 6  # lines of the terminal for the frame and what stands before it


class Shown(Protocol):
    """What a person sees of the answers to one prompt. It is entered before the first piece."""

    def __enter__(self) -> Shown: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def hear(self, speaker: str, piece: str) -> None:
        """More of an answer."""

    def end(self, speaker: str, note: str = "") -> None:
        """An answer has ended; a note says so where it is not whole."""


def shown_on(console: Console, speakers: Sequence[str]) -> Shown:
    fits = console.is_terminal and not console.is_dumb_terminal and console.width >= SIDE_BY_SIDE
    return Columns(console, speakers) if fits and len(speakers) == 2 else InTurn(console, speakers)


class InTurn:
    """One speaker after the other, each word as it comes; those whose turn has not come are kept until it has."""

    def __init__(self, console: Console, speakers: Sequence[str]) -> None:
        self.console = console
        self._waiting = list(speakers)
        self._names_them = len(speakers) > 1
        self._kept: dict[str, str] = dict.fromkeys(speakers, "")
        self._ended: dict[str, str] = {}

    def __enter__(self) -> InTurn:
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        return

    def hear(self, speaker: str, piece: str) -> None:
        if self._waiting and speaker == self._waiting[0]:
            self._print(piece)
        else:
            self._kept[speaker] += piece

    def end(self, speaker: str, note: str = "") -> None:
        self._ended[speaker] = note
        while self._waiting and self._waiting[0] in self._ended:
            done = self._waiting.pop(0)
            self._print(f" {self._ended[done]}\n" if self._ended[done] else "\n")
            self._begin()

    def _begin(self) -> None:
        if not self._waiting:
            return
        speaker = self._waiting[0]
        if self._names_them:
            self.console.print(f"[bold]{speaker}:[/bold]", highlight=False)
        self._print(self._kept[speaker])

    def _print(self, text: str) -> None:
        self.console.out(visible(text), end="", highlight=False)
        self.console.file.flush()


class Columns:
    """Two answers beside each other. While they grow their last lines are shown, afterwards all of them."""

    def __init__(self, console: Console, speakers: Sequence[str]) -> None:
        self.console = console
        self._texts = dict.fromkeys(speakers, "")
        self._live = Live(console=console, transient=True, get_renderable=self._growing, refresh_per_second=10)

    def __enter__(self) -> Columns:
        self._live.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        self._live.stop()
        self.console.print(self._table({name: Text(text.strip()) for name, text in self._texts.items()}))

    def hear(self, speaker: str, piece: str) -> None:
        self._texts[speaker] += visible(piece)

    def end(self, speaker: str, note: str = "") -> None:
        if note:
            self._texts[speaker] += f" {note}"

    def _growing(self) -> Table:
        width, height = (self.console.width - FRAME) // 2, max(self.console.height - LEFT_FREE, 1)
        return self._table({name: self._end_of(text, width, height) for name, text in self._texts.items()})

    def _end_of(self, text: str, width: int, height: int) -> Text:
        lines = Text(text.strip()).wrap(self.console, width)
        return Text("\n").join(lines[-height:])

    def _table(self, texts: dict[str, Text]) -> Table:
        table = Table(*texts, expand=True)
        for column in table.columns:
            column.ratio, column.overflow = 1, "fold"
        table.add_row(*texts.values())
        return table
