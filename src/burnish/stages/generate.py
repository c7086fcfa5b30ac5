"""The start model's answers beside the tuned model's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from burnish.base_setup.base_setup import BaseSetup
from burnish.base_setup.lora_files import adapter_folder
from burnish.config import ModelConfig, PPOConfig
from burnish.errors import InputError
from burnish.models.adapter_files import load_adapter
from burnish.models.policy_model import PolicyModel
from burnish.ppo.from_run import given_before
from burnish.rollout.local import LocalEngine
from burnish.rollout.sampling import Sampler
from burnish.runs.checkpoints import Checkpoints
from burnish.runs.run import Run
from burnish.runs.state import restore_parameters
from burnish.show import terminal
from burnish.stages.stage import STAGES
from burnish.stages.trusted import ask_for_trust, model_deeds
from burnish.text import plain

CHECKPOINT = "checkpoint"  # the adapter that takes the weights of one


@dataclass(frozen=True)
class Speakers:
    """Those who answer for a run: as it started (the base, or its SFT model), as it ended, and `step N`: as a
    checkpoint has it."""

    run: Run
    setup: BaseSetup
    config: ModelConfig
    drawn_with: PPOConfig
    adapters: dict[str, str | None]
    """By what the speaker is called, the start first; the tuned one is missing while a run goes on."""
    _restored: list[int] = field(default_factory=list)
    """The step whose checkpoint was loaded last."""

    def sampler(self, sample: bool = True) -> Sampler:
        """As PPO drew."""
        own = self.drawn_with
        return Sampler(own.temperature, own.top_k, own.top_p, greedy=not sample)

    def answers(
        self, name: str, prompts: Sequence[str], sampler: Sampler, seed: int, max_new_tokens: int | None = None
    ) -> list[str]:
        setup = self.setup
        speaker = PolicyModel(setup.base, self.adapter_of(name), self.drawn_with.temperature)
        generator = torch.Generator(setup.base.device).manual_seed(seed)
        most = max_new_tokens or self.config.max_new_tokens
        rollout = LocalEngine().generate(speaker, setup.encoder.encode(prompts), most, sampler, generator)
        return setup.encoder.decode(rollout.action, rollout.mask)

    def adapter_of(self, name: str) -> str | None:
        """A checkpoint's weights take the place of those of the one before."""
        if name in self.adapters:
            return self.adapters[name]
        step = int(name.removeprefix("step ")) if re.fullmatch(r"step \d{1,9}", name) else None
        steps = checkpoints_of(self.run).steps()
        if step is None or step not in steps:
            names = ", ".join([*self.adapters, *(f"step {own}" for own in steps)])
            raise InputError(f"nobody here is called {name!r:.40}; those who answer: {names}")
        if self._restored != [step]:
            self._restore(step, is_first=not self._restored)
        return CHECKPOINT

    def _restore(self, step: int, is_first: bool) -> None:
        base, state = self.setup.base, checkpoints_of(self.run).load(step)
        if is_first:
            self.setup.add_adapter(CHECKPOINT)
        if "tuned" not in self.adapters:
            base.act_from(state.value("invocation"), loaded=True)
        self._restored.clear()
        restore_parameters(base.adapter_parameters(CHECKPOINT), state.part(PART_OF[self.run.stage]))
        self._restored.append(step)


PART_OF = {"ppo": "policy", "sft": "parameters"}
"""By stage, under which name a checkpoint has the weights of whoever speaks."""


def checkpoints_of(run: Run) -> Checkpoints:
    return Checkpoints(run.folder / "checkpoints")


def speakers_of(console: Console, run_folder: str, max_new_tokens: int | None = None, trust: bool = False) -> Speakers:
    """Loads them; no reward. `trust` lets the config of a run that is not this user's have its model fetched."""
    run = Run.open(run_folder)
    if run.stage == "reward":
        raise InputError(f"{run.folder} holds a reward model: it judges answers and gives none (burnish reward-test)")
    if "model" in given_before(run):
        raise InputError(
            f"{run.folder} was trained on a model that was given from Python, and no file has it; answer there: "
            "PPOTrainer.from_run(folder, model=..., tokenizer=...).generator.generate_sequences(prompts)"
        )
    # No reward is asked, so one that is not known here does not matter.
    settings = {k: v for k, v in run.settings.items() if k not in ("reward", "eval_reward", "value_from_reward")}
    kind = PPOConfig if run.stage == "ppo" and "prompts" not in settings else STAGES[run.stage].config
    config = kind(**settings)
    ask_for_trust(console, run.path("config.yaml"), model_deeds(config), trust)
    if max_new_tokens is not None:
        config = config.model_copy(update={"max_new_tokens": max_new_tokens})
    role = "sft" if run.stage == "sft" else "policy"
    sft = _sft_folder(console, run, config.sft if isinstance(config, PPOConfig) else None)
    folder = None if sft is None else adapter_folder(sft, "sft")
    start: str | None = None
    with terminal.busy(console, terminal.loading(config)):
        setup = BaseSetup(config, start=folder)
        if setup.start is not None:
            start = "sft"
            setup.add_adapter(start)
            load_adapter(setup.base, start, setup.start)
        adapters = {"base" if sft is None else "SFT": start}
        if run.stage == "sft" or run.path(f"adapters/{role}").is_dir() or not checkpoints_of(run).steps():
            setup.add_adapter(role)
            load_adapter(setup.base, role, run.folder / "adapters" / role)
            adapters["tuned"] = role
    drawn_with = config if isinstance(config, PPOConfig) else PPOConfig()  # SFT draws nothing, so it sets nothing
    return Speakers(run, setup, config, drawn_with, adapters)


def generate_beside_start(
    console: Console,
    run_folder: str,
    prompts: Sequence[str],
    max_new_tokens: int | None,
    sample: bool,
    seed: int,
    trust: bool = False,
    step: int | None = None,
) -> list[dict[str, str]]:
    """Answers each prompt as the run started, as it ended, and as the checkpoint of `step` has it, if one is named;
    `trust` as in `speakers_of`. Gives them by the speaker's name.
    """
    speakers = speakers_of(console, run_folder, max_new_tokens, trust)
    names = [*speakers.adapters, *([] if step is None else [f"step {step}"])]
    if len(names) == 1:
        steps = ", ".join(map(str, checkpoints_of(speakers.run).steps()))
        raise InputError(f"{run_folder} has not finished; name one of its checkpoints with --step: {steps}")
    answers = []
    for name in names:
        with terminal.busy(console, "generating"):
            answers.append(speakers.answers(name, prompts, speakers.sampler(sample), seed))
    for prompt, *both in zip(prompts, *answers, strict=True):
        if len(prompts) > 1:
            console.print(f"[dim]{plain(prompt)}[/dim]", highlight=False)
        table = Table(*names, show_lines=True)
        for column in table.columns:
            column.ratio = 1
        table.add_row(*(plain(text.strip()) for text in both))
        console.print(table)
    return [
        {"prompt": prompt} | dict(zip(names, both, strict=True))
        for prompt, *both in zip(prompts, *answers, strict=True)
    ]


def _sft_folder(console: Console, run: Run, named: str | None) -> Path | None:
    """That of the SFT run which a PPO run started from. A pipeline may have been moved with all its stages."""
    if named is None:
        return None
    for folder in ([run.pipeline_folder / "sft"] if run.pipeline_folder else []) + [Path(named)]:
        if folder.is_dir():
            return folder
    told = f"{named}, where this run started from, is not there; the base answers instead."
    console.print(plain(told), highlight=False)
    return None
