"""The whole way: demonstrations, preferences, PPO, verdict. Stages that are done are not done again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from burnish import terminal
from burnish.base_setup.base_setup import check_prompts, leave_out_unreadable, load_encoder
from burnish.clock import minutes
from burnish.config import ModelConfig
from burnish.config.pipeline_config import PipelineConfig, load_pipeline_config
from burnish.data import Split, load_prompts_of, prompts_of
from burnish.data.records import count
from burnish.disk import inside
from burnish.errors import BurnishError, InputError, StoppedError, all_of
from burnish.guards import StopSignals
from burnish.models.key_values import PromptCache
from burnish.models.shared_base import shared_ending
from burnish.runs import PIPELINE, Run
from burnish.stages import reward, sft
from burnish.stages.ppo import check_before_loading, run_ppo
from burnish.stages.report import write_report
from burnish.stages.saving import (
    asks_for_more,
    differences,
    go_on_with,
    has_other_data,
    refuse_another_run,
    stop_signals,
)
from burnish.stages.trusted import all_deeds, ask_for_trust
from burnish.trust import write_own


def run_pipeline(config: PipelineConfig, console: Console, from_step: int | None = None) -> Run:
    """Gives the PPO run, with its verdict and report. All data is read and checked before the first stage begins.

    `from_step` is the checkpoint to go on from in the stage that is under way (PPO, if all are done); the last unless
    given.
    """
    data = _load(config, console)
    check_before_loading(config.ppo, data.splits["ppo"], config.folder.resolve())
    with Run(config.folder).lock(), _kept(config), stop_signals(console) as stop:
        return _run_stages(config, data, console, stop, from_step)


@contextmanager
def _kept(config: PipelineConfig) -> Iterator[None]:
    """The pipeline's settings lie with its runs, so that they can go on. Those that were refused do not stay."""
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


def _run_stages(config: PipelineConfig, data: _Data, console: Console, stop: StopSignals, from_step: int | None) -> Run:
    started = time.perf_counter()
    done = _stages_done(config, data, from_step)
    for name in done:
        already = terminal.plain(f"{name}: done already ({config.folder / name})")
        console.print(already, highlight=False, soft_wrap=True)
    prompts_read = PromptCache(config.ppo.prompt_cache_mb * 2**20)  # one frozen base: what a stage read, all have read

    place, splits, bad = config.folder, data.splits, data.num_bad
    if config.sft is not None and "sft" not in done:
        console.rule("1 of 3: supervised fine-tuning")
        sft.run_sft(config.sft, splits["sft"], place, "sft", console, bad["sft"], prompts_read, from_step)
        from_step = None
    if config.reward_model is not None and "reward" not in done:
        _stop_if_asked(stop, config)
        console.rule("2 of 3: reward model")
        own = config.reward_model
        reward.run_reward(own, splits["reward"], place, "reward", console, bad["reward"], prompts_read, from_step)
        from_step = None
    if "ppo" not in done:
        _stop_if_asked(stop, config)
        console.rule("3 of 3: PPO")
        best_of = config.best_of
        run_ppo(config.ppo, splits["ppo"], place, "ppo", console, bad["ppo"], best_of, prompts_read, from_step)
    run = Run.open(config.folder / "ppo")
    page = write_report(run)
    console.print(f"\nAll stages: {minutes(round(time.perf_counter() - started))} minutes.", highlight=False)
    console.print(terminal.plain(f"Report, with credit token by token: {page}"), highlight=False, soft_wrap=True)
    return run


def _stop_if_asked(stop: StopSignals, config: PipelineConfig) -> None:
    """A request to stop that came when a stage had nothing left to save, or between two of them."""
    if stop.exit_code is not None:
        raise StoppedError(f"stopped between two stages. {go_on_with(config.folder)}", stop.exit_code)


def resume_pipeline(
    console: Console, folder: Path, overrides: list[str], from_step: int | None = None, trust: bool = False
) -> Run:
    """Goes on in the stage that was stopped."""
    config = load_pipeline_config(folder / PIPELINE, overrides, folder)
    deeds = (deed for own in config.stages.values() for deed in all_deeds(own, folder))
    ask_for_trust(console, folder / PIPELINE, deeds, trust)
    return run_pipeline(config, console, from_step)


@dataclass(frozen=True)
class _Data:
    """What each stage is trained and measured on, and how many rows were left out, by the stage's name."""

    splits: dict[str, Split[Any]]
    num_bad: dict[str, int]


LOADERS: dict[str, Callable[[Any], tuple[Split[Any], int]]] = {
    "sft": sft.load_data,
    "reward": reward.load_data,
    "ppo": load_prompts_of,
}


def _load(config: PipelineConfig, console: Console) -> _Data:
    """All stages' data, or all that is wrong with it. What a stage is measured on, no stage before it has learned."""

    def load(name: str, own: ModelConfig) -> tuple[Split[Any], int]:
        rows, num_bad = LOADERS[name](own)
        split, unreadable = leave_out_unreadable(own, rows)
        check_prompts(own, prompts_of([*split.train, *split.held_out]))
        return split, num_bad + unreadable

    with terminal.busy(console, terminal.loading(config.ppo)):
        loaded = all_of(*(partial(load, name, own) for name, own in config.stages.items()))
    splits = {name: split for name, (split, _) in zip(config.stages, loaded, strict=True)}
    held_out: set[str] = set()
    for name in reversed(splits):
        splits[name], left_out = _without(splits[name], held_out)
        if left_out:
            console.print(
                f"{name}: {count(left_out, 'training row')} left out, since a later stage is measured on the prompts.",
                highlight=False,
            )
        held_out |= set(prompts_of(splits[name].held_out))
    _check_endings(config, splits)
    return _Data(splits, {name: num_bad for name, (_, num_bad) in zip(config.stages, loaded, strict=True)})


def _check_endings(config: PipelineConfig, splits: dict[str, Split[Any]]) -> None:
    """The first stage's adapter acts from what all its prompts end in, so the later stages' prompts must end in it. One
    that starts from an adapter made elsewhere acts where that does.
    """
    if any(getattr(own, "sft", None) for own in config.stages.values()) and config.sft is None:
        return
    encoded = {}
    for name, own in config.stages.items():
        encoder, split = load_encoder(own), splits[name]
        if own.adapter_scope == "sequence" or encoder.header:
            return
        encoded[name] = encoder.encode(prompts_of([*split.train, *split.held_out]))
    first, *later = encoded
    ending = shared_ending(encoded[first])
    for name in later:
        wrong = sum(ids[len(ids) - len(ending) :] != ending for ids in encoded[name])
        if wrong:
            said = encoder.tokenizer.decode(ending)
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
    return Split(train, data.held_out), len(data.train) - len(train)


def _stages_done(config: PipelineConfig, data: _Data, from_step: int | None) -> list[str]:
    """The stages that were completed with these very settings and data. Others are refused before any stage begins, and
    so is one that was completed before an earlier stage, which is still to be done. A finished PPO goes on for more
    steps, or from the checkpoint asked for.
    """
    done: list[str] = []
    missing: list[str] = []
    for name, own in config.stages.items():
        run = Run(config.folder / name)
        if not run.was_begun:
            missing.append(name)
            continue
        differs = list(refuse_another_run(run, run.settings, own).values())
        if not run.is_complete:  # one that was stopped goes on
            missing.append(name)
            continue
        if missing:
            raise InputError(f"{run.folder} is finished, but the stage {missing[0]} before it is not; move it away")
        if has_other_data(run, data.splits[name]):
            raise InputError(f"{run.folder} was made with other data; move it away, or choose another name")
        if name == "ppo" and (from_step is not None or asks_for_more(run, own)):
            continue
        if differs:
            raise InputError(
                f"{run.folder} was made with other settings ({'; '.join(differs[:3])}); move it away, or choose "
                "another name"
            )
        done.append(name)
    return done
