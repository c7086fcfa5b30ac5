"""The whole way: demonstrations, preferences, PPO, verdict. Stages that are done are not done again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from burnish.checkpoints import write_whole
from burnish.clock import minutes
from burnish.config.pipeline_config import PipelineConfig, load_pipeline_config
from burnish.data import Split, prompts_of
from burnish.errors import InputError
from burnish.models.key_values import PromptCache
from burnish.runs import PIPELINE, Run
from burnish.stages import reward, sft
from burnish.stages.evaluate import load_prompts_of
from burnish.stages.ppo import run_ppo
from burnish.stages.report import write_report
from burnish.stages.saving import differences, refuse_another_run


def run_pipeline(config: PipelineConfig, console: Console) -> Run:
    """Gives the PPO run, with its verdict and report. All data is read and checked before the first stage begins."""
    started = time.perf_counter()
    prompts, bad_prompts = load_prompts_of(config.ppo)
    demonstrations = sft.load_data(config.sft) if config.sft else None
    judgements = reward.load_data(config.reward_model) if config.reward_model else None
    held_out = set(prompts.held_out)
    done = _stages_done(config)
    config.folder.mkdir(parents=True, exist_ok=True)
    write_whole(config.folder / PIPELINE, yaml.safe_dump(config.values, sort_keys=False))
    for name in done:
        console.print(f"{name}: done already ({config.folder / name})", highlight=False, soft_wrap=True)
    prompts_read = PromptCache(config.ppo.prompt_cache_mb * 2**20)  # one frozen base: what a stage read, all have read

    if config.sft is not None and demonstrations is not None and "sft" not in done:
        console.rule("1 of 3: supervised fine-tuning")
        data, bad = _without(demonstrations[0], held_out), demonstrations[1]
        sft.run_sft(config.sft, data, config.folder, "sft", console, bad, prompts_read)
    if config.reward_model is not None and judgements is not None and "reward" not in done:
        console.rule("2 of 3: reward model")
        data, bad = _without(judgements[0], held_out), judgements[1]
        reward.run_reward(config.reward_model, data, config.folder, "reward", console, bad, prompts_read)
    if "ppo" not in done:
        console.rule("3 of 3: PPO")
        run_ppo(config.ppo, prompts, config.folder, "ppo", console, bad_prompts, config.best_of, prompts_read)
    run = Run.open(config.folder / "ppo")
    page = write_report(run)
    console.print(f"\nAll stages: {minutes(round(time.perf_counter() - started))} minutes.", highlight=False)
    console.print(f"Report, with credit token by token: {page}", highlight=False, soft_wrap=True)
    return run


def resume_pipeline(console: Console, folder: Path, overrides: list[str]) -> Run:
    """Goes on in the stage that was stopped."""
    return run_pipeline(load_pipeline_config(folder / PIPELINE, overrides, folder), console)


def _without(data: Split[Any], held_out: set[str]) -> Split[Any]:
    """What PPO is measured on is in no stage's training data."""
    train = [r for r, p in zip(data.train, prompts_of(data.train), strict=True) if p not in held_out]
    if not train:
        raise InputError("every training row's prompt is held out for the verdict; lower num_eval_prompts of ppo")
    return Split(train, data.held_out)


def _stages_done(config: PipelineConfig) -> list[str]:
    """The stages that were completed with these very settings. Other settings are refused before any stage begins."""
    done = []
    for name, own in (("sft", config.sft), ("reward", config.reward_model), ("ppo", config.ppo)):
        run = Run(config.folder / name)
        if own is None or not run.was_begun:
            continue
        if run.is_complete and (differs := list(differences(run.settings, own).values())):
            raise InputError(
                f"{run.folder} was made with other settings ({'; '.join(differs[:3])}); move it away, or choose "
                "another name"
            )
        refuse_another_run(run, run.settings, own)  # one that was stopped goes on, unless as another run
        done += [name] if run.is_complete else []
    return done
