"""`burnish checkpoints` and `burnish verify`: what there is to resume from, and whether it is whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from burnish.errors import InputError, NoCheckpointError
from burnish.runs.checkpoints import Checkpoint, Checkpoints
from burnish.runs.run import LOGS, Run
from burnish.text import plain


def show_checkpoints(console: Console, folder: str) -> list[Checkpoint]:
    """Step, size and whether each is as it was written."""
    run = Run.open(folder)
    table = Table("step", "size", "verifies", "", box=None, header_style="dim", padding=(0, 2, 0, 0))
    found = Checkpoints(run.folder / "checkpoints").all()
    for checkpoint in found:
        size = f"{checkpoint.nbytes / 2**20:.1f} MB"
        verifies = "no" if checkpoint.problem else "yes"
        table.add_row(f"{checkpoint.step}", size, verifies, plain(checkpoint.problem or ""))
    if not found:
        console.print(plain(f"{run.folder} has no checkpoints."), highlight=False)
        return found
    console.print(table)
    return found


def told_checkpoints(found: list[Checkpoint]) -> list[dict[str, Any]]:
    return [{"step": own.step, "bytes": own.nbytes, "problem": own.problem} for own in found]


@dataclass(frozen=True)
class Examined:
    """What reading every byte has shown."""

    checkpoints: list[Checkpoint]
    steps: int
    """That the logs hold."""
    problem: str | None

    def refuse_damage(self) -> None:
        if self.problem is not None:
            raise NoCheckpointError(self.problem)


def told_examined(examined: Examined) -> dict[str, Any]:
    told = {"is_whole": examined.problem is None, "problem": examined.problem, "steps": examined.steps}
    return told | {"checkpoints": told_checkpoints(examined.checkpoints)}


def examine(console: Console, folder: str) -> Examined:
    """Reads every byte of every checkpoint and every line of the logs."""
    run = Run.open(folder)
    found = show_checkpoints(console, folder)
    try:
        rows = {file: run.read_lines(file) for file in LOGS}["metrics.jsonl"]
    except InputError as error:
        return Examined(found, 0, str(error))
    steps = [row.get("step", row.get("update")) for row in rows]
    return Examined(found, len(steps), _problem(run, found, steps))


def _problem(run: Run, found: list[Checkpoint], steps: list[Any]) -> str | None:
    """The first that there is."""
    newest = max((c.step for c in found if not c.problem), default=0)
    if steps != list(range(1, len(steps) + 1)) or len(steps) < newest:
        return (
            f"{run.folder / 'metrics.jsonl'} does not hold every step once, in order, up to that of the last checkpoint"
        )
    for file in (run.folder / name for name in LOGS):
        if file.is_file() and file.stat().st_size and not file.read_bytes().endswith(b"\n"):
            return f"the last line of {file} was cut off; `burnish resume` makes its step again"
    damaged = [c for c in found if c.problem]
    if damaged and len(damaged) == len(found):
        return f"no checkpoint of {run.folder} verifies"
    if damaged:
        return f"{len(damaged)} of {len(found)} checkpoints are damaged; `burnish resume` uses step {newest}"
    return None


def verify_run(console: Console, folder: str) -> None:
    """Whatever is damaged ends in exit code 4."""
    examined = examine(console, folder)
    examined.refuse_damage()
    whole = "Every checkpoint is as it was written, and the" if examined.checkpoints else "The"
    console.print(f"{whole} logs are whole: {examined.steps} steps, each once.", highlight=False)
