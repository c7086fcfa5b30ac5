"""The whole way: demonstrations, preferences, PPO, verdict. Stages that are done are not done again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from burnish.clock import minutes
from burnish.config.pipeline_config import PipelineConfig, load_pipeline_config
from burnish.data import Split, load_prompts_of, prompts_of
from burnish.disk import write_whole
from burnish.errors import BurnishError, InputError, all_of
from burnish.models.key_values import PromptCache
from burnish.runs import PIPELINE, Run
from burnish.stages import reward, sft
from burnish.stages.ppo import check_before_loading, run_ppo
from burnish.stages.report import write_report
from burnish.stages.saving import asks_for_more, differences, has_other_data, refuse_another_run


def run_pipeline(config: PipelineConfig, console: Console, from_step: int | None = None) -> Run:
    """Gives the PPO run, with its verdict and report. All data is read and checked before the first stage begins.

    `from_step` is the checkpoint to go on from in the stage that is under way (PPO, if all are done); the last unless
    given.
    """
    data = _load(config)
    check_before_loading(config.ppo, data.prompts, config.folder.resolve())
    with Run(config.folder).lock(), _kept(config):
        return _run_stages(config, data, console, from_step)


@contextmanager
def _kept(config: PipelineConfig) -> Iterator[None]:
    """The pipeline's settings lie with its runs, so that they can go on. Those that were refused do not stay."""
    file = config.folder / PIPELINE
    before = file.read_text(encoding="utf-8") if file.is_file() else None
    write_whole(file, yaml.safe_dump(config.values, sort_keys=False))
    try:
        yield
    except BurnishError:
        begun = [(own, run) for name, own in config.stages.items() if (run := Run(config.folder / name)).was_begun]
        if before is not None and any(differences(run.settings, own) for own, run in begun):
            write_whole(file, before)
        raise


def _run_stages(config: PipelineConfig, data: _Data, console: Console, from_step: int | None) -> Run:
    started = time.perf_counter()
    done = _stages_done(config, data, from_step)
    for name in done:
        console.print(f"{name}: done already ({config.folder / name})", highlight=False, soft_wrap=True)
    prompts_read = PromptCache(config.ppo.prompt_cache_mb * 2**20)  # one frozen base: what a stage read, all have read

    place, bad = config.folder, data.num_bad
    if config.sft is not None and data.demonstrations is not None and "sft" not in done:
        console.rule("1 of 3: supervised fine-tuning")
        sft.run_sft(config.sft, data.demonstrations, place, "sft", console, bad["sft"], prompts_read, from_step)
        from_step = None
    if config.reward_model is not None and data.judgements is not None and "reward" not in done:
        console.rule("2 of 3: reward model")
        own, judged = config.reward_model, data.judgements
        reward.run_reward(own, judged, place, "reward", console, bad["reward"], prompts_read, from_step)
        from_step = None
    if "ppo" not in done:
        console.rule("3 of 3: PPO")
        best_of = config.best_of
        run_ppo(config.ppo, data.prompts, place, "ppo", console, bad["ppo"], best_of, prompts_read, from_step)
    run = Run.open(config.folder / "ppo")
    page = write_report(run)
    console.print(f"\nAll stages: {minutes(round(time.perf_counter() - started))} minutes.", highlight=False)
    console.print(f"Report, with credit token by token: {page}", highlight=False, soft_wrap=True)
    return run


def resume_pipeline(console: Console, folder: Path, overrides: list[str], from_step: int | None = None) -> Run:
    """Goes on in the stage that was stopped."""
    return run_pipeline(load_pipeline_config(folder / PIPELINE, overrides, folder), console, from_step)


@dataclass(frozen=True)
class _Data:
    """What each stage is trained and measured on, and how many rows were left out."""

    prompts: Split[str]
    demonstrations: Split[Any] | None
    judgements: Split[Any] | None
    num_bad: dict[str, int]

    @property
    def of_stage(self) -> dict[str, Split[Any] | None]:
        return {"sft": self.demonstrations, "reward": self.judgements, "ppo": self.prompts}


def _load(config: PipelineConfig) -> _Data:
    """All stages' data, or all that is wrong with it. What a stage is measured on, no stage before it has learned."""
    ppo, own_sft, own_reward = config.ppo, config.sft, config.reward_model
    prompts, demonstrations, judgements = all_of(
        lambda: load_prompts_of(ppo),
        lambda: sft.load_data(own_sft) if own_sft else (None, 0),
        lambda: reward.load_data(own_reward) if own_reward else (None, 0),
    )
    num_bad = {"sft": demonstrations[1], "reward": judgements[1], "ppo": prompts[1]}
    held_out = set(prompts[0].held_out)
    judged = judgements[0] and _without(judgements[0], held_out)
    held_out |= set(prompts_of(judged.held_out)) if judged else set()
    return _Data(prompts[0], demonstrations[0] and _without(demonstrations[0], held_out), judged, num_bad)


def _without(data: Split[Any], held_out: set[str]) -> Split[Any]:
    """What PPO is measured on is in no stage's training data."""
    train = [r for r, p in zip(data.train, prompts_of(data.train), strict=True) if p not in held_out]
    if not train:
        raise InputError("every training row's prompt is held out for a later stage; lower num_eval_prompts there")
    return Split(train, data.held_out)


def _stages_done(config: PipelineConfig, data: _Data, from_step: int | None) -> list[str]:
    """The stages that were completed with these very settings and data. Others are refused before any stage begins, and
    so is one that was completed before an earlier stage, which is still to be done. A finished PPO goes on for more
    steps, or from the checkpoint asked for.
    """
    done: list[str] = []
    missing: list[str] = []
    for name, own in config.stages.items():
        run, split = Run(config.folder / name), data.of_stage[name]
        if not run.was_begun:
            missing.append(name)
            continue
        differs = list(refuse_another_run(run, run.settings, own).values())
        if not run.is_complete:  # one that was stopped goes on
            missing.append(name)
            continue
        if missing:
            raise InputError(f"{run.folder} is finished, but the stage {missing[0]} before it is not; move it away")
        if split and has_other_data(run, split):
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
