"""The whole way: demonstrations, preferences, PPO, verdict. Stages that are done are not done again."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from burnish.clock import minutes
from burnish.config.pipeline_config import PipelineConfig, load_pipeline_config
from burnish.data import Split, load_prompts_of, prompts_of
from burnish.disk import write_whole
from burnish.errors import InputError, all_of
from burnish.models.key_values import PromptCache
from burnish.runs import PIPELINE, Run
from burnish.stages import reward, sft
from burnish.stages.ppo import check_before_loading, run_ppo
from burnish.stages.report import write_report
from burnish.stages.saving import differences, refuse_another_run, texts_of_split
from burnish.training_state import fingerprint_of_texts


def run_pipeline(config: PipelineConfig, console: Console, from_step: int | None = None) -> Run:
    """Gives the PPO run, with its verdict and report. All data is read and checked before the first stage begins.

    `from_step` is the checkpoint of PPO to go on from; the last one unless given.
    """
    data = _load(config)
    check_before_loading(config.ppo, data.prompts, config.folder.resolve())
    with Run(config.folder).lock():
        return _run_stages(config, data, console, from_step)


def _run_stages(config: PipelineConfig, data: _Data, console: Console, from_step: int | None) -> Run:
    started = time.perf_counter()
    done = _stages_done(config, data)
    if from_step is not None and not {"sft", "reward"} <= {*done, *data.left_out}:
        raise InputError("--from names a checkpoint of PPO, and an earlier stage is not done yet; leave it out")
    write_whole(config.folder / PIPELINE, yaml.safe_dump(config.values, sort_keys=False))
    for name in done:
        console.print(f"{name}: done already ({config.folder / name})", highlight=False, soft_wrap=True)
    prompts_read = PromptCache(config.ppo.prompt_cache_mb * 2**20)  # one frozen base: what a stage read, all have read

    if config.sft is not None and data.demonstrations is not None and "sft" not in done:
        console.rule("1 of 3: supervised fine-tuning")
        sft.run_sft(config.sft, data.demonstrations, config.folder, "sft", console, data.num_bad["sft"], prompts_read)
    if config.reward_model is not None and data.judgements is not None and "reward" not in done:
        console.rule("2 of 3: reward model")
        reward.run_reward(
            config.reward_model, data.judgements, config.folder, "reward", console, data.num_bad["reward"], prompts_read
        )
    if "ppo" not in done or from_step is not None:
        console.rule("3 of 3: PPO")
        run_ppo(
            config.ppo, data.prompts, config.folder, "ppo", console, data.num_bad["ppo"], config.best_of, prompts_read,
            from_step,
        )  # fmt: skip
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

    @property
    def left_out(self) -> list[str]:
        """Stages that this pipeline does without."""
        return [name for name, data in self.of_stage.items() if data is None]


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


def _stages_done(config: PipelineConfig, data: _Data) -> list[str]:
    """The stages that were completed with these very settings and data. Others are refused before any stage begins, and
    so is one that was completed before an earlier stage, which is still to be done.
    """
    done: list[str] = []
    missing: list[str] = []
    for name, own in (("sft", config.sft), ("reward", config.reward_model), ("ppo", config.ppo)):
        run = Run(config.folder / name)
        if own is None:
            continue
        if not run.was_begun:
            missing.append(name)
            continue
        if run.is_complete and missing:
            raise InputError(f"{run.folder} is finished, but the stage {missing[0]} before it is not; move it away")
        if run.is_complete and (differs := list(differences(run.settings, own).values())):
            raise InputError(
                f"{run.folder} was made with other settings ({'; '.join(differs[:3])}); move it away, or choose "
                "another name"
            )
        refuse_another_run(run, run.settings, own)  # one that was stopped goes on, unless as another run
        split = data.of_stage[name]
        if run.is_complete and split and _differs(run, split):
            raise InputError(f"{run.folder} was made with other data; move it away, or choose another name")
        (done if run.is_complete else missing).append(name)
    return done


def _differs(run: Run, data: Split[Any]) -> bool:
    return run.read("result.json").get("data_fingerprint") != fingerprint_of_texts(texts_of_split(data))
