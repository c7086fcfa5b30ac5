"""The whole way: demonstrations, preferences, PPO, verdict. Stages that are done are not done again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from burnish.base_setup.base_setup import load_encoder, load_tokenizer, readable
from burnish.base_setup.tokenizer_setup import PromptEncoder
from burnish.config.pipeline_config import PipelineConfig, load_pipeline_config
from burnish.config.stage_configs import RunConfig
from burnish.data import Split, prompts_of
from burnish.decoder.key_values import PromptCache
from burnish.decoder.shared_base import shared_ending
from burnish.errors import BurnishError, InputError, StoppedError, all_of, count
from burnish.runs.disk import inside
from burnish.runs.run import PIPELINE, Run
from burnish.runs.same_run import differences, may_resume
from burnish.runs.saving import resume_folder, stop_signals
from burnish.runs.stop import StopSignals
from burnish.runs.trust import write_own
from burnish.show import terminal
from burnish.stages.opening import then_and_now
from burnish.stages.ppo import check_before_loading
from burnish.stages.report import write_report
from burnish.stages.stage import STAGES, Beginning
from burnish.stages.trusted import all_deeds, ask_for_trust
from burnish.text import minutes, plain


def run_pipeline(config: PipelineConfig, console: Console, from_step: int | None = None) -> Run:
    """Gives the PPO run, with its verdict and report. All data is read and checked before the first stage begins.

    `from_step` is the checkpoint to resume from in the stage that is under way (PPO, if all are done); the last unless
    given.
    """
    data = _load(config, console)
    check_before_loading(config.ppo, data["ppo"].split, config.folder.resolve())
    with Run(config.folder).lock(), _kept(config), stop_signals(console) as stop:
        return _run_stages(config, data, console, stop, from_step)


@contextmanager
def _kept(config: PipelineConfig) -> Iterator[None]:
    """The pipeline's settings are kept with its runs, so that they can be resumed. Refused ones do not stay."""
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
    config: PipelineConfig, data: dict[str, _Data], console: Console, stop: StopSignals, from_step: int | None
) -> Run:
    started = time.perf_counter()
    done = _stages_done(config, data, from_step)
    prompts_read = PromptCache(config.ppo.prompt_cache_mb * 2**20)  # one frozen base: what a stage read, all have read
    for number, (name, own) in enumerate(config.stages.items(), 1):
        if name in done:
            console.print(plain(f"{name}: already done ({config.folder / name})"), highlight=False, soft_wrap=True)
            continue
        _stop_if_asked(stop, config)
        stage = STAGES[own.stage]
        console.rule(f"{number} of {len(config.stages)}: {stage.title}")
        stage.work(own, data[name].split, console, Beginning(data[name].encoder, prompts_read, from_step))
        from_step = None
    run = Run.open(config.folder / "ppo")
    page = write_report(run)
    console.print(f"\nAll stages: {minutes(round(time.perf_counter() - started))} minutes.", highlight=False)
    console.print(plain(f"Report, with credit token by token: {page}"), highlight=False, soft_wrap=True)
    return run


def _stop_if_asked(stop: StopSignals, config: PipelineConfig) -> None:
    """A request to stop that came when a stage had nothing left to save, or between two of them."""
    if stop.exit_code is not None:
        raise StoppedError(f"stopped between two stages. {resume_folder(config.folder)}", stop.exit_code)


def resume_pipeline(
    console: Console, folder: Path, overrides: list[str], from_step: int | None = None, trust: bool = False
) -> Run:
    """Resumes in the stage that was stopped."""
    config = load_pipeline_config(folder / PIPELINE, overrides, folder)
    deeds = (deed for own in config.stages.values() for deed in all_deeds(own, folder))
    ask_for_trust(console, folder / PIPELINE, deeds, trust)
    return run_pipeline(config, console, from_step)


@dataclass(frozen=True)
class _Data:
    """What a stage is trained and measured on, and how its model reads the prompts."""

    split: Split[Any]
    encoder: PromptEncoder


def _load(config: PipelineConfig, console: Console) -> dict[str, _Data]:
    """All stages' data, or all that is wrong with it. What a stage is measured on, no stage before it has learned."""
    tokenizer = None

    def load(own: RunConfig) -> _Data:
        nonlocal tokenizer
        rows = STAGES[own.stage].load(own)
        tokenizer = tokenizer or load_tokenizer(own)  # of the one base that all stages share
        encoder = load_encoder(own, tokenizer)
        return _Data(readable(own, encoder, rows), encoder)

    with terminal.busy(console, terminal.loading(config.ppo)):
        # All members of an ensemble learn from the same rows, and hold out the same.
        stages = [own for own in config.stages.values() if own not in config.reward_models[1:]]
        loaded = dict(zip((own.stage for own in stages), all_of(*(partial(load, own) for own in stages)), strict=True))
    data: dict[str, _Data] = {name: loaded[own.stage] for name, own in config.stages.items()}
    held_out: set[str] = set()
    for name in reversed(config.stages):
        split, left_out = _without(data[name].split, held_out)
        data[name] = _Data(split, data[name].encoder)
        if left_out:
            console.print(
                f"{name}: {count(left_out, 'training row')} left out, since a later stage is measured on the prompts.",
                highlight=False,
            )
        held_out |= set(prompts_of(split.held_out))
    _check_endings(config, data)
    return data


def _check_endings(config: PipelineConfig, data: dict[str, _Data]) -> None:
    """The first stage's adapter acts from what all its prompts end in, so the later stages' prompts must end in it. One
    that starts from an adapter made elsewhere acts where that does.
    """
    if config.sft is None and any(getattr(own, "sft", None) for own in config.stages.values()):
        return
    if config.ppo.adapter_scope == "sequence" or data["ppo"].encoder.header:
        return
    encoded = {name: own.encoder.encode(prompts_of(own.split.everything)) for name, own in data.items()}
    first, *later = encoded
    ending = shared_ending(encoded[first])
    for name in later:
        wrong = sum(ids[len(ids) - len(ending) :] != ending for ids in encoded[name])
        if wrong:
            said = data[name].encoder.tokenizer.decode(ending)
            raise InputError(
                f"all prompts of {first} end in {said!r}, where its adapter begins to act, but {wrong} of {name} end "
                "differently; end all of them alike"
            )


def _without(data: Split[Any], held_out: set[str]) -> tuple[Split[Any], int]:
    """Without the training rows whose prompt a later stage is measured on, and how many those are."""
    train = [r for r, p in zip(data.train, prompts_of(data.train), strict=True) if p not in held_out]
    if not train:
        raise InputError(
            "every training row's prompt is held out for a later stage; lower num_eval_prompts there, or give that "
            "stage other held-out prompts (ppo.eval_prompts, or another seed)"
        )
    return Split(train, data.held_out, data.num_left_out), len(data.train) - len(train)


def _stages_done(config: PipelineConfig, data: dict[str, _Data], from_step: int | None) -> list[str]:
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
        then, now = then_and_now(run, own, data[name].split, from_step if name == "ppo" else None)
        may_resume(run.folder, then, now)
        if not run.is_complete:  # one that was stopped is resumed
            missing.append(name)
        elif missing:
            raise InputError(f"{run.folder} is finished, but the stage {missing[0]} before it is not; move it away")
        elif name != "ppo" or not now.asks_for_more(then):
            done.append(name)
    return done
