"""Commands that train."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, TypeVar

import typer

from burnish.cli.app import TAKES_OVERRIDES, AnyRun, Config, Ended, Overrides, Trust, app, console

PANEL = "Train"
T = TypeVar("T")
Processes = Annotated[
    int | None,
    typer.Option(min=1, help="processes on this machine that make the run together; `torchrun -m burnish` for several"),
]


@app.command(rich_help_panel=PANEL)
def demo(
    task: Annotated[
        str, typer.Option(help="`tldr` (SFT, reward model, PPO: summarize posts) or `sentiment` (PPO alone)")
    ] = "tldr",
    steps: Annotated[
        int | None, typer.Option(min=1, help="PPO steps; the default takes a few minutes on two cores")
    ] = None,
    seed: Annotated[int, typer.Option(help="everything random follows from it")] = 0,
    run_dir: Annotated[str, typer.Option(help="folder for the run's folder")] = "runs",
    recipe: Annotated[
        str | None, typer.Option(help="how to learn: `ppo` (with a value model), `rloo`, ... (docs/recipes.md)")
    ] = None,
) -> None:
    """From human feedback to a better model, on a real 135M model and bundled texts: verdict and report in minutes."""
    from burnish.stages.demo import run_demo

    run_demo(console, task, steps, seed, run_dir, recipe)


@app.command(context_settings=TAKES_OVERRIDES, rich_help_panel=PANEL)
def pipeline(config: Config, overrides: Overrides = None, processes: Processes = None) -> None:
    """SFT, reward model, PPO, verdict and report in one go; stages that are done already are skipped."""
    from burnish.config.pipeline_config import load_pipeline_config
    from burnish.stages.pipeline import run_pipeline

    with _processes(processes):
        run_pipeline(_read(lambda: load_pipeline_config(config, overrides)), console)


@app.command(context_settings=TAKES_OVERRIDES, rich_help_panel=PANEL)
def sft(config: Config, overrides: Overrides = None, processes: Processes = None) -> None:
    """Supervised fine-tuning on demonstrations. Its adapter is where PPO starts, and what KL is measured from."""
    _run_stage("sft", config, overrides, processes)


@app.command(context_settings=TAKES_OVERRIDES, rich_help_panel=PANEL)
def reward(config: Config, overrides: Overrides = None, processes: Processes = None) -> None:
    """A reward model from preferences or human scores, with a report on whether it is any good."""
    _run_stage("reward", config, overrides, processes)


@app.command(context_settings=TAKES_OVERRIDES, rich_help_panel=PANEL)
def train(config: Config, overrides: Overrides = None, processes: Processes = None) -> None:
    """PPO on your prompts with your reward. Example: `burnish train config.yaml steps=20 kl_coef=0.05`"""
    _run_stage("ppo", config, overrides, processes)


@app.command(context_settings=TAKES_OVERRIDES, rich_help_panel=PANEL)
def resume(
    run: AnyRun,
    overrides: Overrides = None,
    from_step: Annotated[
        int | None, typer.Option("--from", min=0, help="a checkpoint's step; default: the last")
    ] = None,
    trust: Trust = False,
    processes: Processes = None,
) -> None:
    """Resumes a stopped or killed run, as if nothing had happened."""
    from burnish.stages.resume import resume_run

    with _processes(processes):
        resume_run(console, run, from_step, overrides or [], trust)


def _run_stage(name: str, file: str, overrides: list[str] | None, processes: int | None) -> None:
    from burnish.config import load_config
    from burnish.stages.stage import STAGES

    stage = STAGES[name]
    with _processes(processes):
        stage.run(_read(lambda: load_config(stage.config, file, overrides)), console)


@contextmanager
def _processes(count: int | None) -> Iterator[None]:
    """What follows is done by this process, or by several: those that torchrun started, or `count` started now."""
    from burnish.processes import launch, world

    if count is not None and count > 1:
        launch.refuse_twice()
        raise Ended(launch.launch(count, launch.without_option(sys.argv[1:])))
    with world.joined():
        console.quiet |= not world.is_first()
        yield


def _read(load: Callable[[], T]) -> T:
    """A config that every process can read."""
    from burnish.processes import world

    with world.together():
        return load()
