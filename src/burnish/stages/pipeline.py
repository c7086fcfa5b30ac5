"""The whole way: demonstrations, preferences, PPO, verdict. Stages that are done are not done again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from burnish.clock import minutes
from burnish.config import ModelConfig
from burnish.config.pipeline_config import PipelineConfig
from burnish.data import Split, prompts_of
from burnish.errors import InputError
from burnish.models.key_values import PromptCache
from burnish.runs import Run
from burnish.stages import reward, sft
from burnish.stages.evaluate import load_prompts_of
from burnish.stages.ppo import run_ppo
from burnish.stages.report import write_report

BEST_OF = 4


def run_pipeline(config: PipelineConfig, console: Console, best_of: int = BEST_OF) -> Run:
    """Gives the PPO run, with its verdict and report. All data is read and checked before the first stage begins."""
    started = time.perf_counter()
    prompts, bad_prompts = load_prompts_of(config.ppo)
    demonstrations = sft.load_data(config.sft) if config.sft else None
    judgements = reward.load_data(config.reward_model) if config.reward_model else None
    held_out = set(prompts.held_out)
    prompts_read = PromptCache(config.ppo.prompt_cache_mb * 2**20)  # one frozen base: what a stage read, all have read

    if config.sft is not None and demonstrations is not None and not _done(console, config.folder / "sft", config.sft):
        console.rule("1 of 3: supervised fine-tuning")
        data, bad = _without(demonstrations[0], held_out), demonstrations[1]
        sft.run_sft(config.sft, data, config.folder, "sft", console, bad, prompts_read)
    if (
        config.reward_model is not None
        and judgements is not None
        and not _done(console, config.folder / "reward", config.reward_model)
    ):
        console.rule("2 of 3: reward model")
        data, bad = _without(judgements[0], held_out), judgements[1]
        reward.run_reward(config.reward_model, data, config.folder, "reward", console, bad, prompts_read)
    if not _done(console, config.folder / "ppo", config.ppo):
        console.rule("3 of 3: PPO")
        run_ppo(config.ppo, prompts, config.folder, "ppo", console, bad_prompts, best_of, prompts_read)
    run = Run.open(config.folder / "ppo")
    page = write_report(run)
    console.print(f"\nAll stages: {minutes(round(time.perf_counter() - started))} minutes.", highlight=False)
    console.print(f"Report, with credit token by token: {page}", highlight=False, soft_wrap=True)
    return run


def _without(data: Split[Any], held_out: set[str]) -> Split[Any]:
    """What PPO is measured on is in no stage's training data."""
    train = [r for r, p in zip(data.train, prompts_of(data.train), strict=True) if p not in held_out]
    if not train:
        raise InputError("every training row's prompt is held out for the verdict; lower num_eval_prompts of ppo")
    return Split(train, data.held_out)


def _done(console: Console, folder: Path, config: ModelConfig) -> bool:
    """Whether the stage was completed with these very settings; one that was completed with others is refused."""
    if not folder.exists():
        return False
    run = Run.open(folder)
    if not run.is_complete:
        return False  # the stage goes on where it was stopped
    differs = differences(run.settings, config.model_dump(mode="json"))
    if differs:
        raise InputError(
            f"{folder} was made with other settings ({'; '.join(differs[:3])}); move it away, or choose another name"
        )
    console.print(f"{folder.name}: done already ({folder})", highlight=False, soft_wrap=True)
    return True


def differences(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Settings that are not the same, as `key: a -> b`."""
    keys: Sequence[str] = list(dict.fromkeys([*a, *b]))
    return [f"{k}: {a.get(k)!r} -> {b.get(k)!r}" for k in keys if a.get(k) != b.get(k)]
