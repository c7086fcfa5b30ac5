"""What a run had, and makes again when it resumes from an earlier step: kept as it was, never deleted."""

from __future__ import annotations

import shutil
from pathlib import Path

from burnish.runs.disk import folder_to_disk, free_name, fresh_folder
from burnish.runs.run import LOGS, RESULTS, Run, lines_of, step_of
from burnish.system.files import to_disk


def keep(run: Run, step: int) -> Path | None:
    """Copies what resuming after `step` will replace into a folder `left-LAST` of the run, LAST being the last step it
    made: a finished run with all but its checkpoints, otherwise the later steps' lines. None if there is neither.

    The copy is whole, and on the disk, before anything of the run changes.
    """
    scratch = run.path(".writing-left")
    later = {name: [row for row in run.read_lines(name) if step_of(row) > step] for name in LOGS}
    finished = any(run.path(name).is_file() for name in RESULTS)
    if not finished and not any(step_of(row) > 0 for rows in later.values() for row in rows):
        return None
    fresh_folder(scratch)
    if finished:
        _copy(run, scratch)
    else:
        for name, rows in later.items():
            (scratch / name).write_text(lines_of(rows), encoding="utf-8")
    folder_to_disk(scratch)
    last = max(map(step_of, run.read_lines("metrics.jsonl")), default=0)
    left = scratch.rename(free_name(run.folder / f"left-{last:06d}"))
    to_disk(run.folder)
    return left


def _copy(run: Run, target: Path) -> None:
    """A run folder that can be looked at and used; without checkpoints, and without what was kept before."""
    for file in run.folder.iterdir():
        if file.is_file() and not file.name.startswith("."):
            shutil.copy2(file, target)
    if run.path("adapters").is_dir():
        shutil.copytree(run.path("adapters"), target / "adapters")
