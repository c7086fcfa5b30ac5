"""`burnish resume`: continues a stopped or killed run, as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console

from burnish.config.files import apply_overrides, start_paths_at
from burnish.errors import InputError
from burnish.processes import world
from burnish.runs.disk import refuse_links
from burnish.runs.run import PIPELINE, Run
from burnish.stages.pipeline import begun_pipeline, run_pipeline
from burnish.stages.stage import STAGES, Beginning
from burnish.stages.trusted import all_deeds, ask_for_trust


def resume_run(console: Console, folder: str, from_step: int | None, overrides: list[str], trust: bool = False) -> Run:
    """A pipeline, or a run of any stage, from its last checkpoint or the one asked for.

    `trust` lets the config of a run that is not this user's do what it asks for.
    """
    with world.together(), world.alone():
        resume = _accepted(console, folder, from_step, overrides, trust)
    return resume()


def _accepted(
    console: Console, folder: str, from_step: int | None, overrides: list[str], trust: bool
) -> Callable[[], Run]:
    """What is to be done, if it may be."""
    if (Path(folder) / PIPELINE).is_file():
        refuse_links(Path(folder))
        return partial(run_pipeline, begun_pipeline(console, Path(folder), overrides, trust), console, from_step)
    run = Run.open(folder)
    if run.pipeline_folder:  # which knows what its stages hold back for each other, and ends with verdict and report
        raise InputError(f"{folder} is a stage of a pipeline; resume that with: burnish resume {run.pipeline_folder}")
    stage, settings = STAGES[run.stage], run.settings
    if stage.name == "ppo" and "prompts" not in settings:
        raise InputError(f"{folder} was trained from Python and names no prompts; go on there: PPOTrainer.from_run")
    apply_overrides(stage.config, settings, overrides)
    start_paths_at(Path(), stage.config, settings)
    config = stage.config(**settings)
    ask_for_trust(console, run.path("config.yaml"), all_deeds(config, run.folder), trust)
    place = Run(run.folder.resolve()) if run.folder.is_symlink() else run  # a link that its user named
    return partial(stage.run, config, console, Beginning(from_step=from_step, run=place))
