"""What a stage is: a name, a config, its data and the work on it. There are three; pipelines, `resume` and the commands
are written with this table alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from burnish.base_setup.lora_files import WEIGHTS, adapter_folder, check_start, is_foreign
from burnish.config.stage_configs import RewardModelConfig, RunConfig, SFTConfig, TrainConfig
from burnish.data import Split, load_split, prompts_of
from burnish.processes import world
from burnish.rewards.part import RewardFunction, Workshop
from burnish.rollout.server import servers_of
from burnish.runs.log import logged
from burnish.runs.run import Run
from burnish.runs.same_run import changes_since
from burnish.runs.saving import say_finished
from burnish.show import terminal


@dataclass(frozen=True)
class Beginning:
    """What there is already when a stage begins; nothing, for a command of its own."""

    encoder: Any = None
    """A PromptEncoder that has read the prompts."""
    prompts_read: Any = None
    """A PromptCache: what the base has read of them for another stage."""
    from_step: int | None = None
    """The checkpoint to resume from; the last unless given."""
    run: Run | None = None
    """The run to resume, wherever its folder has been moved to; the config names it unless given."""


COMMAND = Beginning()


class Work(Protocol):
    """Trains, and leaves a run folder behind; a run that was begun before is resumed. All input is checked first."""

    def __call__(self, config: Any, data: Split[Any], console: Console, beginning: Beginning = ..., /) -> Run: ...


@dataclass(frozen=True)
class Stage:
    """One of the three. Its names are those of its config."""

    config: type[RunConfig]
    title: str
    load: Callable[[Any], Split[Any]]
    """Training and held-out records, as a config names them."""
    check: Callable[[Any, Path | None], None] = lambda config, not_yet: None
    """Refuses what a config names and cannot be used, as far as that is known without torch. `not_yet` is the folder of
    a pipeline whose stages are still to come."""

    @property
    def name(self) -> str:
        return self.config.stage

    @property
    def work(self) -> Work:
        """`run` of the module with the stage's name. It brings torch, so it is imported when it is asked for."""
        return importlib.import_module(f"burnish.stages.{self.name}").run

    def run(self, config: Any, console: Console, beginning: Beginning = COMMAND) -> Run:
        """A whole command. What can be refused, or is done already, is found before torch is imported."""
        with world.together():
            data = self.load(config)
        run = run_of(config, beginning)
        its_data_is_known = not config.skip_bad  # else it takes a tokenizer

        def is_done() -> bool:
            return run.was_begun and changes_since(run, config, data, beginning.from_step).nothing_to_do

        if its_data_is_known and world.by_first(is_done):
            say_finished(console, run)
            return run
        with world.together():
            if not run.is_complete:
                self.check(config, None)
        with terminal.starting(console):
            work = self.work
        with logged(console):
            return work(config, data, console, beginning)


def run_of(config: RunConfig, beginning: Beginning) -> Run:
    """The run that a stage works in, which may have been begun before."""
    if beginning.run is not None:
        return beginning.run
    name = config.run_name or world.time_of_start()
    return Run(Path(world.by_first(lambda: str(Run.new_or_unfinished(config.run_dir, name).folder))))


def _demonstrations(config: SFTConfig) -> Split[Any]:
    return _load("demonstrations", config.demonstrations, config.eval_demonstrations, config)


def _prompts(config: TrainConfig) -> Split[str]:
    return _load("prompts", config.prompts, config.eval_prompts, config)


def _judgements(config: RewardModelConfig) -> Split[Any]:
    """Preferences and scores together. A prompt that is held out in one of the files is held out in both."""
    splits = []
    if config.preferences is not None:
        splits.append(_load("preferences", config.preferences, config.eval_preferences, config))
    if config.scores is not None:
        splits.append(_load("scores", config.scores, None, config))
    held_out = {prompt for split in splits for prompt in prompts_of(split.held_out)}
    together = [judgement for split in splits for judgement in split.everything]
    train, out = ([j for j in together if (j.prompt in held_out) is side] for side in (False, True))
    return Split(train, out, sum(split.num_left_out for split in splits))


def _check_start(config: RewardModelConfig | TrainConfig, not_yet: Path | None) -> None:
    """The SFT run that it starts from."""
    if config.sft is None or _is_to_come(config.sft, not_yet):
        return
    check_start(config.sft, adapter_folder(config.sft, "sft"))


def _check_start_and_rewards(config: TrainConfig, not_yet: Path | None) -> None:
    """And the rewards that training and verdict ask: a file, folder, rule or token that is not there. And the rollout
    server's token."""
    _check_start(config, not_yet)
    check_rewards(config, not_yet)
    if config.rollout is not None:
        servers_of(config.rollout)


def check_rewards(config: TrainConfig, not_yet: Path | None = None) -> list[RewardFunction | None]:
    """Gives the functions that may be tried out on made-up answers."""
    there = [p for p in config.all_reward_parts if not any(_is_to_come(path, not_yet) for path in p.judges)]
    return [part.check(Workshop(config.reward_timeout)) for part in there]


def is_merged_start(sft: str) -> bool:
    """Whether it is a LoRA of another tool's, which becomes a part of the base."""
    folder = adapter_folder(sft, "sft")
    return (folder / WEIGHTS).is_file() and is_foreign(folder)


def _is_to_come(path: str, not_yet: Path | None) -> bool:
    return not_yet is not None and Path(path).resolve().is_relative_to(not_yet.resolve())


def _load(kind: str, source: str, eval_source: str | None, config: RunConfig) -> Split[Any]:
    return load_split(kind, source, eval_source, config.num_eval_prompts, config.seed, config.fields, config.skip_bad)


STAGES: dict[str, Stage] = {
    stage.name: stage
    for stage in (
        Stage(SFTConfig, "supervised fine-tuning", _demonstrations),
        Stage(RewardModelConfig, "reward model", _judgements, _check_start),
        Stage(TrainConfig, "PPO", _prompts, _check_start_and_rewards),
    )
}
