"""`burnish runs` and `burnish diff`: what was tried, what came out, what differed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from burnish.errors import InputError
from burnish.runs.run import Run
from burnish.text import plain


def list_runs(console: Console, run_dir: str) -> None:
    """Every run below a folder, newest first, with its outcome."""
    root = Path(run_dir)
    if not root.is_dir():
        raise InputError(f"there is no folder {root}; runs are made by burnish demo, sft, reward, train and pipeline")
    folders = [c.parent for c in root.rglob("config.yaml")]
    if not folders:
        raise InputError(f"there are no runs in {root}")
    table = Table("run", "stage", "steps", "outcome", box=None, header_style="dim", padding=(0, 2, 0, 0))
    for folder in sorted(folders, key=lambda f: (f / "config.yaml").stat().st_mtime, reverse=True):
        run, name = Run(folder), plain(str(folder.relative_to(root)))
        try:
            steps = len(run.read_lines("metrics.jsonl"))
            table.add_row(name, run.stage, f"{steps}", plain(outcome_of(run)))
        except InputError as error:  # the others are still there to be seen
            table.add_row(name, "-", "-", plain(str(error)))
    console.print(table)


def outcome_of(run: Run) -> str:
    """One phrase."""
    if run.has("verdict.json"):
        verdict = run.read("verdict.json")
        means = [verdict[side]["reward"]["mean"] for side in ("start", "tuned")]
        return f"{verdict['outcome']}: reward {means[0]:z.2f} to {means[1]:z.2f}"
    if not run.is_complete:
        return "unfinished"
    result = run.read("result.json")
    if run.stage == "sft" and result.get("loss_after") is not None:
        return f"loss {result['loss_before']:.2f} to {result['loss_after']:.2f}"
    if "report" in result:
        return f"accuracy {result['report']['accuracy']:.0%}"
    if "score_correlation" in result:
        return f"correlation {result['score_correlation']:.2f}"
    return "finished"


def show_difference(console: Console, a: str, b: str) -> None:
    """Settings and results of two runs that are not the same."""
    runs = [Run.open(a), Run.open(b)]
    table = Table("", plain(a), plain(b), box=None, header_style="dim", padding=(0, 2, 0, 0))
    settings = [run.settings for run in runs]
    for key in dict.fromkeys([*settings[0], *settings[1]]):
        values = [s.get(key, "-") for s in settings]
        if values[0] != values[1] and key not in ("run_dir", "run_name"):
            table.add_row(plain(key), *(plain(str(v)) for v in values))
    if not table.rows:
        table.add_row("settings", "the same", "the same")
    table.add_section()
    results = [_numbers(run) for run in runs]
    for key in dict.fromkeys([*results[0], *results[1]]):
        table.add_row(plain(key), *(f"{r[key]:.3f}" if key in r else "-" for r in results))
    for row in zip(("outcome",), *((outcome_of(run),) for run in runs), strict=True):
        table.add_row(*map(plain, row))
    console.print(table)


def _numbers(run: Run) -> dict[str, float]:
    """The last line of the metrics, and the held-out means."""
    lines = run.read_lines("metrics.jsonl")
    numbers: dict[str, Any] = {}
    if lines:
        shown = ("reward", "kl", "entropy", "response_tokens", "loss", "accuracy", "seconds")
        numbers |= {f"last {n}": lines[-1][n] for n in shown if isinstance(lines[-1].get(n), int | float)}
    if run.has("verdict.json"):
        tuned = run.read("verdict.json")["tuned"]
        numbers |= {f"held-out {n}": v["mean"] for n, v in tuned.items() if isinstance(v, dict)}
    return numbers
