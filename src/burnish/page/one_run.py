"""A run, live: how it stands in a sentence, its curves, what it is doing, its log; and the button that stops it."""

from __future__ import annotations

import os
import shlex
import time
from contextlib import suppress
from statistics import fmean
from typing import Any

import psutil

from burnish.drawing.comparison import comparison, who_won
from burnish.drawing.curves import titles_of
from burnish.errors import InputError
from burnish.page.figures import figure, other_numbers
from burnish.page.growing import Metrics, last_rows
from burnish.page.view import Action, Asked, Data, View, quoted, span
from burnish.runs.journal import JOURNAL, Condition, ask_to_stop, condition_of, doing_now
from burnish.runs.run import Run
from burnish.show.earlier_stages import earlier_stages
from burnish.show.terminal import PHASES

SHOWN_EVENTS, LOG_BYTES = 300, 64 << 10  # the last ones
COMPARED_STEPS = 5  # at either end, for the sentence of a run that goes on


def data(asked: Asked) -> Data:
    """Path: `run`."""
    name = asked.path["run"]
    library = asked.library
    run, summary = library.run(name), library.summary(name)
    metrics, condition = library.metrics(name), condition_of(run)
    titles, settings = titles_of(summary["stage"]), library.settings(name)
    charts = [drawn for key, title in titles.items() if (drawn := figure(metrics, key, *title))]
    numbers = other_numbers(metrics, {*titles})
    verdict = run.read("verdict.json") if run.has("verdict.json") else None
    return summary | {
        "is_stopping": condition.is_stopping,
        "sentence": verdict["sentence"] if verdict else so_far(summary, metrics),
        "verdict": verdict and verdict["outcome"],
        "measures": [*comparison(verdict["start"], verdict["tuned"]), *who_won(verdict)] if verdict else [],
        "earlier_stages": earlier_stages(run) if summary["stage"] == "ppo" else [],
        "alarms": [own["title"] for own in charts if own["alarm"]] + [own["metric"] for own in numbers if own["alarm"]],
        "charts": charts,
        "numbers": numbers,
        "now": _now(run, condition),
        "phases": _phases(metrics),
        "memory": _memory(run, condition),
        "log": _log(run),
        "resume": None if condition.state in ("running", "finished") else resume_line(run, settings),
        "settings": {key: value for key, value in settings.items() if value is not None},
    }


def so_far(summary: dict[str, Any], metrics: Metrics) -> str:
    """How it stands, before there is a verdict."""
    points = metrics.series(summary["curve"] or "reward")
    if not points:
        return "No step is finished yet."
    what, unit = ("reward", "step") if summary["stage"] == "ppo" else ("loss", "update")
    some = max(1, min(COMPARED_STEPS, len(points) // 2))
    first, last = (fmean(value for _, value in part) for part in (points[:some], points[-some:]))
    of = f" of {summary['steps']}" if summary["steps"] else ""
    means = f" (means of the first and the last {some} {unit}s)" if some > 1 else ""
    change = f"{first:z.3g} to {last:z.3g}{means}" if len(points) > 1 else f"{last:z.3g}"
    told = f"After {unit} {summary['step']}{of}: {what} {change}"
    if (kl := metrics.last("kl")) is not None:
        told += f", KL {kl:z.2g} nats"
    if summary["state"] == "running":
        left = f", about {span(summary['seconds_left'])} left" if summary["seconds_left"] else ""
        return f"So far. {told}{left}."
    if summary["stage"] == "ppo":
        why = "no prompts were held out" if summary["state"] == "finished" else "it did not come to its end"
        return f"{told}. No verdict: {why}."
    return f"{told}. On held-out data: {summary['outcome']}." if summary["outcome"] else f"{told}."


def _log(run: Run) -> list[dict[str, Any]]:
    """The last events, whatever else their lines may hold."""
    rows = last_rows(run.path(JOURNAL), LOG_BYTES)[-SHOWN_EVENTS:]
    moments = [row["time"] if isinstance(row.get("time"), int | float) else None for row in rows]
    texts = [{key: str(row.get(key, "")) for key in ("event", "text")} for row in rows]
    return [{"time": moment} | text for moment, text in zip(moments, texts, strict=True)]


def _now(run: Run, condition: Condition) -> dict[str, Any] | None:
    now = doing_now(run) if condition.state == "running" else None
    if now is None:
        return None
    return now | {"doing": PHASES.get(now["phase"], now["phase"]), "is_phase": now["phase"] in PHASES}


def _phases(metrics: Metrics) -> list[dict[str, Any]]:
    """Of a step, and how long each took in the last one."""
    return [
        {"phase": phase, "doing": told, "seconds": seconds}
        for phase, told in PHASES.items()
        if (seconds := metrics.last(f"seconds_{phase}")) is not None
    ]


def _memory(run: Run, condition: Condition) -> dict[str, Any]:
    """Megabytes: that of the process at work, and what was found at the end."""
    found: dict[str, Any] = {"now_mb": None, "peak_mb": None, "parts_mb": {}}
    if condition.state == "running" and condition.process is not None:
        with suppress(psutil.Error):  # it may end meanwhile
            found["now_mb"] = round(condition.process.memory_info().rss / 1e6)
    if run.is_complete:
        result = run.read("result.json")
        peak = result.get("peak_memory_gb")
        found |= {"peak_mb": peak and round(1000 * peak), "parts_mb": result.get("memory", {})}
    return found


def resume_line(run: Run, settings: dict[str, Any]) -> str | None:
    """For a person to copy. A run from Python that names no prompts goes on there."""
    if settings.keys() & {"reward", "prompts"} == {"reward"}:
        return None
    return f"burnish resume {shlex.quote(os.fspath(run.pipeline_folder or run.folder))}"


def stop(asked: Asked) -> Data:
    """Path: `run`."""
    name = asked.path["run"]
    try:
        ask_to_stop(asked.library.run(name))
    except OSError as error:
        raise InputError(f"cannot write to the run folder: {error.strerror}") from None
    return {"run": name, "asked": round(time.time(), 1)}


VIEW = View("one_run", "/run/{run:path}", data, "Run", stages=("ppo", "reward", "sft"))
STOP = Action("/stop/{run:path}", stop, lambda asked: f"/run/{quoted(asked.path['run'])}")
