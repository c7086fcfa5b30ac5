"""The whole way: demonstrations, preferences, PPO, verdict. Stages that are done are not done again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from rich.console import Console

from burnish.config.pipeline_config import PipelineConfig, load_pipeline_config
from burnish.data import Split
from burnish.errors import BurnishError, InputError, StoppedError, all_of
from burnish.processes import world
from burnish.runs.disk import inside
from burnish.runs.log import logged
from burnish.runs.run import PIPELINE, Run
from burnish.runs.same_run import changes_since, differences
from burnish.runs.saving import locked, resume_folder
from burnish.runs.stop import StopSignals, stop_signals
from burnish.runs.trust import write_own
from burnish.show import terminal
from burnish.stages.report import write_report
from burnish.stages.stage import STAGES, Beginning, is_merged_start
from burnish.stages.trusted import all_deeds, ask_for_trust
from burnish.text import minutes, plain

if TYPE_CHECKING:
    from burnish.stages.pipeline_data import Data


def run_pipeline(config: PipelineConfig, console: Console, from_step: int | None = None) -> Run:
    """Gives the PPO run, with its verdict and report. All data is read and checked before the first stage begins.

    `from_step` is the checkpoint to resume from in the stage that is under way (PPO, if all are done); the last unless
    given.
    """
    with world.together(), world.alone():  # each process by itself, and all or none
        data = _checked_data(config, console)
    with locked(Run(config.folder)), _kept(config), stop_signals(console) as stop:
        return _run_stages(config, data, console, stop, from_step)


def _checked_data(config: PipelineConfig, console: Console) -> dict[str, Data]:
    """What the stages learn from; or all that is wrong with it, or with what the config names."""
    _check_one_start(config)
    rows = rows_of(config)
    for name, own in config.stages.items():
        if not Run(config.folder / name).is_complete:
            STAGES[own.stage].check(own, config.folder)
    with terminal.starting(console):
        from burnish.stages.before_loading import check_before_loading
        from burnish.stages.pipeline_data import readable_data

    data = readable_data(config, rows, console)
    check_before_loading(config.ppo, data["ppo"].split, config.folder)
    return data


def _check_one_start(config: PipelineConfig) -> None:
    """A LoRA that another tool made becomes a part of the base, which all stages share."""
    foreign = [sft for sft in config.starts.values() if sft and is_merged_start(sft)]
    if foreign and len(set(config.starts.values())) > 1:
        said = ", ".join(f"{section}: {sft}" for section, sft in config.starts.items())
        raise InputError(
            f"sft: {foreign[0]} was made by another tool and is merged into the base that all stages share, but it "
            f"differs between sections ({said}); set the same in each of them"
        )


def rows_of(config: PipelineConfig) -> dict[str, Split[Any]]:
    """All stages' data, or all that is wrong with it. The members of an ensemble learn from the same rows, and hold out
    the same.
    """
    stages = [own for own in config.stages.values() if own not in config.reward_models[1:]]
    loaded = all_of(*(partial(STAGES[own.stage].load, own) for own in stages))
    of_stage = dict(zip((own.stage for own in stages), loaded, strict=True))
    return {name: of_stage[own.stage] for name, own in config.stages.items()}


@contextmanager
def _kept(config: PipelineConfig) -> Iterator[None]:
    """The pipeline's settings are kept with its runs, so that they can be resumed. Refused ones do not stay."""
    if not world.is_first():
        yield
        return
    file = inside(config.folder, PIPELINE)
    before = file.read_text(encoding="utf-8") if file.is_file() else None
    write_own(file, yaml.safe_dump(config.values, sort_keys=False))
    try:
        yield
    except BurnishError:
        begun = [(own, run) for name, own in config.stages.items() if (run := Run(config.folder / name)).was_begun]
        if before is not None and any(differences(run.settings, own) for own, run in begun):
            write_own(file, before)
        raise


def _run_stages(
    config: PipelineConfig, data: dict[str, Data], console: Console, stop: StopSignals, from_step: int | None
) -> Run:
    started = time.perf_counter()
    from burnish.decoder.key_values import PromptCache

    done = world.by_first(lambda: _stages_done(config, data, from_step))
    prompts_read = PromptCache(config.ppo.prompt_cache_mb * 2**20)  # one frozen base: what a stage read, all have read
    for number, (name, own) in enumerate(config.stages.items(), 1):
        if name in done:
            console.print(plain(f"{name}: already done ({config.folder / name})"), highlight=False, soft_wrap=True)
            continue
        _stop_if_asked(stop, config)
        stage = STAGES[own.stage]
        console.rule(f"{number} of {len(config.stages)}: {stage.title}")
        with logged(console):
            stage.work(own, data[name].split, console, Beginning(data[name].encoder, prompts_read, from_step))
        from_step = None
    run = Run(config.folder / "ppo")
    page = Path(world.by_first(lambda: str(write_report(Run.open(run.folder)))))
    console.print(f"\nAll stages: {minutes(round(time.perf_counter() - started))} minutes.", highlight=False)
    console.print(plain(f"Report, with credit token by token: {page}"), highlight=False, soft_wrap=True)
    return run


def _stop_if_asked(stop: StopSignals, config: PipelineConfig) -> None:
    """A request to stop that came when a stage had nothing left to save, or between two of them."""
    stopped = int(world.largest(stop.exit_code or 0))
    if stopped:
        raise StoppedError(f"stopped between two stages. {resume_folder(config.folder)}", stopped)


def begun_config(folder: Path, overrides: Sequence[str] = ()) -> PipelineConfig:
    """Of a pipeline that was begun: as its file says, with held-out sizes as its stages began with them. The file has
    only what was given, and what was left out may have meant another size then.
    """
    begun = {stage.config.section: Run(folder / name) for name, stage in STAGES.items()}
    held_out = {section: run.settings.get("num_eval_prompts") for section, run in begun.items() if run.was_begun}
    sizes = [f"{section}.num_eval_prompts={size}" for section, size in held_out.items() if size is not None]
    return load_pipeline_config(folder / PIPELINE, [*sizes, *overrides], folder)


def begun_pipeline(console: Console, folder: Path, overrides: list[str], trust: bool = False) -> PipelineConfig:
    """One that was stopped, to be resumed. `trust` lets it do what it asks for if it is not this user's."""
    config = begun_config(folder, overrides)
    deeds = (deed for own in config.stages.values() for deed in all_deeds(own, folder))
    ask_for_trust(console, folder / PIPELINE, deeds, trust)
    return config


def _stages_done(config: PipelineConfig, data: dict[str, Data], from_step: int | None) -> list[str]:
    """The stages that were completed with these very settings and data. Others are refused before any stage begins, and
    so is one that was completed before an earlier stage, which is still to be done. A finished PPO is resumed for more
    steps, or from the checkpoint asked for.
    """
    done: list[str] = []
    missing: list[str] = []
    for name, own in config.stages.items():
        run = Run(config.folder / name)
        if not run.was_begun:
            missing.append(name)
            continue
        changes = changes_since(run, own, data[name].split, from_step if name == "ppo" else None)
        if not run.is_complete:  # one that was stopped is resumed
            missing.append(name)
        elif missing:
            raise InputError(f"{run.folder} is finished, but the stage {missing[0]} before it is not; move it away")
        elif changes.nothing_to_do:
            done.append(name)
    return done
