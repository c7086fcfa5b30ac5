"""`burnish benchmark`: what this machine does with a model, as a table and as a file to send."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from burnish.base_setup.embedded import EMBEDDED_NAME
from burnish.config import PPOConfig
from burnish.config.files import apply_overrides
from burnish.errors import InputError
from burnish.runs.disk import write_whole
from burnish.show import terminal
from burnish.stages.environment import environment
from burnish.text import plain, without_secrets

# A step that does all that a step can do, and never less of it: no early end, no limit that random text would break.
SETTINGS: dict[str, Any] = {
    "batch_size": 8,
    "max_new_tokens": 32,
    "epochs": 1,
    "steps": 2,
    "lr_schedule": "constant",
    "target_kl_stop": None,
    "max_kl": None,
}


def benchmark_config(model: str | None, overrides: list[str]) -> PPOConfig:
    """The settings of the steps that are measured; `steps` of them for each shape, and one before to warm up."""
    values = SETTINGS | {"model_name": model or EMBEDDED_NAME}
    apply_overrides(PPOConfig, values, overrides)
    return PPOConfig(**values)


def report_file(output: str | None) -> Path:
    """Where the numbers will be written; a place that cannot be is refused before anything is measured."""
    file = Path(output or time.strftime("benchmark-%Y%m%d-%H%M%S.json"))
    if not file.parent.is_dir():
        raise InputError(f"--output {file}: there is no folder {file.parent}; make it, or choose another file")
    if file.exists() and not file.is_file():
        raise InputError(f"--output {file} is no file; choose the name of one, such as {file.name}.json")
    return file


def run_benchmark(console: Console, config: PPOConfig, file: Path) -> dict[str, Any]:
    """Measures, prints, and writes the file; also if something goes wrong on the way, with what was known by then."""
    with terminal.starting(console):
        from burnish.stages import measuring

    report: dict[str, Any] = {
        "measured": time.strftime("%Y-%m-%d %H:%M"),
        "environment": environment(),
        "settings": config.model_dump(mode="json"),
    }
    _show(console, report["environment"])
    try:
        with terminal.busy(console, terminal.loading(config)):
            trainer = measuring.load(config)
        report |= {"model": measuring.model_facts(trainer)}
        with terminal.busy(console, "matrix products"):
            report["matmul_gflops"] = measuring.matmul_rates(trainer)
        _show(console, _facts(report))
        report["shapes"] = []
        watch = measuring.watched(trainer)
        for shape in measuring.shapes_of(trainer):
            with terminal.busy(console, f"PPO steps, {shape.name} prompts"):
                report["shapes"].append(shape.measure(trainer, watch))
    except InputError:
        raise
    except Exception as error:  # a report of what went wrong is worth sending too
        _write(console, file, report | {"error": f"{type(error).__name__}: {error}"}, "What is known until here is in")
        raise
    console.print(table_of(report["shapes"]))
    for shape in report["shapes"]:
        if "left_out" in shape:
            console.print(f"No {shape['name']} prompts: {shape['left_out']}.", highlight=False)
    _write(console, file, report, "All numbers are in")
    return report


def _write(console: Console, file: Path, report: dict[str, Any], told: str) -> None:
    write_whole(file, json.dumps(without_secrets(report), indent=1) + "\n")
    console.print(plain(f"{told} {file}"), highlight=False, soft_wrap=True)


def _facts(report: dict[str, Any]) -> dict[str, str]:
    model = report["model"]
    return {
        "model": f"{model['name']}, {model['parameters'] / 1e6:,.0f} million",
        "device": f"{model['device']}, {model['dtype']}",
        "work": model["sharing"],
        "products": ", ".join(f"{rate:,.0f} GFLOP/s in {dtype}" for dtype, rate in report["matmul_gflops"].items()),
    }


def _show(console: Console, rows: dict[str, str]) -> None:
    for name, value in rows.items():
        console.print(plain(f"{name:14}{value}"), highlight=False)


def table_of(shapes: list[dict[str, Any]]) -> Table:
    """A column for each shape of prompts."""
    measured = [shape for shape in shapes if "seconds" in shape]
    names = [f"{shape['name']} prompts" for shape in measured]
    table = Table("a PPO step", *names, box=None, header_style="dim", padding=(0, 2, 0, 0))
    for title, cell in ROWS.items():
        cells = [cell(shape) for shape in measured]
        if any(cells):
            table.add_row(title, *cells)
    return table


def _part(name: str) -> Any:
    def cell(shape: dict[str, Any]) -> str:
        return f"{shape['seconds'][name]:.2f} s, {shape['tokens_per_second'][name]:,.0f} tokens/s"

    return cell


def _waits(shape: dict[str, Any]) -> str:
    waits = shape["waits_per_token"]
    return "none: it is the CPU" if waits is None else f"{waits:.3f}"


ROWS: dict[str, Any] = {
    "prompt tokens": lambda s: f"{s['prompt_tokens'][0]} to {s['prompt_tokens'][1]}",
    "responses": lambda s: f"{s['responses']} of {s['new_tokens']} tokens",
    "whole step": lambda s: f"{s['seconds']['step']:.2f} s",
    "rollout": _part("rollout"),
    "scoring": _part("scoring"),
    "training": _part("training"),
    "peak memory": lambda s: f"{s['peak_mb']:,.0f} MB",
    "predicted": lambda s: f"{s['predicted_peak_mb']:,.0f} MB",
    "first ratio, off": lambda s: f"{s['first_ratio_error']:.1e}",
    "sampler gap": lambda s: "" if s["sampler_gap"] is None else f"{s['sampler_gap']:.1e} nats",
    "waits per token": _waits,
}
