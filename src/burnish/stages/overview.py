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


MISSING = "-"  # in the place of a setting that one of two runs does not have


def difference(a: str, b: str) -> dict[str, Any]:
    """Settings of two runs that are not the same, their results, and what came out."""
    runs = [Run.open(a), Run.open(b)]
    settings, results = [run.settings for run in runs], [_numbers(run) for run in runs]
    rows = []
    for key in dict.fromkeys([*settings[0], *settings[1]]):
        values = [own.get(key, MISSING) for own in settings]
        if values[0] != values[1] and key not in ("run_dir", "run_name"):
            rows.append({"key": key, "values": values})
    numbers = dict.fromkeys([*results[0], *results[1]])
    return {
        "runs": [a, b],
        "settings": rows,
        "results": [{"key": key, "values": [own.get(key) for own in results]} for key in numbers],
        "outcomes": [outcome_of(run) for run in runs],
    }


def show_difference(console: Console, a: str, b: str) -> dict[str, Any]:
    """As a table; gives what it shows."""
    found = difference(a, b)
    table = Table("", *map(plain, found["runs"]), box=None, header_style="dim", padding=(0, 2, 0, 0))
    for row in found["settings"]:
        table.add_row(plain(row["key"]), *(plain(str(value)) for value in row["values"]))
    if not table.rows:
        table.add_row("settings", "the same", "the same")
    table.add_section()
    for row in found["results"]:
        table.add_row(plain(row["key"]), *("-" if value is None else f"{value:.3f}" for value in row["values"]))
    table.add_row("outcome", *map(plain, found["outcomes"]))
    console.print(table)
    return found


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
