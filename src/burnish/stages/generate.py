"""The start model's answers beside the tuned model's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from burnish.base_setup.base_setup import BaseSetup
from burnish.base_setup.lora_files import adapter_folder
from burnish.config import PPOConfig
from burnish.errors import InputError
from burnish.models.adapter_files import load_adapter
from burnish.models.policy_model import PolicyModel
from burnish.ppo.from_run import given_before
from burnish.rollout.local import LocalEngine
from burnish.rollout.sampling import Sampler
from burnish.runs.run import Run
from burnish.show import terminal
from burnish.stages.stage import STAGES
from burnish.stages.trusted import ask_for_trust, model_deeds
from burnish.text import plain


def generate_beside_start(
    console: Console,
    run_folder: str,
    prompts: Sequence[str],
    max_new_tokens: int | None,
    sample: bool,
    seed: int,
    trust: bool = False,
) -> None:
    """Answers each prompt twice: as the run started (the base, or its SFT model) and as it ended. No reward is asked.

    `trust` lets the config of a run that is not this user's have its model fetched.
    """
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
    start = None
    with terminal.busy(console, terminal.loading(config)):
        setup = BaseSetup(config, start=folder)
        encoded = setup.encoder.encode(prompts)
        if setup.start is not None:
            start = "sft"
            setup.add_adapter(start)
            load_adapter(setup.base, start, setup.start)
        setup.add_adapter(role)
        load_adapter(setup.base, role, run.folder / "adapters" / role)
    drawn_with = config if isinstance(config, PPOConfig) else PPOConfig()  # SFT draws nothing, so it sets nothing
    sampler = Sampler(drawn_with.temperature, drawn_with.top_k, drawn_with.top_p, greedy=not sample)
    answers = []
    for adapter in (start, role):
        with terminal.busy(console, "generating"):
            speaker = PolicyModel(setup.base, adapter, drawn_with.temperature)
            generator = torch.Generator(setup.base.device).manual_seed(seed)
            rollout = LocalEngine().generate(speaker, encoded, config.max_new_tokens, sampler, generator)
        answers.append(setup.encoder.decode(rollout.action, rollout.mask))
    for prompt, *both in zip(prompts, *answers, strict=True):
        if len(prompts) > 1:
            console.print(f"[dim]{plain(prompt)}[/dim]", highlight=False)
        table = Table("base" if sft is None else "SFT", "tuned", show_lines=True)
        for column in table.columns:
            column.ratio = 1
        table.add_row(*(plain(text.strip()) for text in both))
        console.print(table)


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
