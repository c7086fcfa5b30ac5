"""The base model's answer beside the tuned model's."""

from __future__ import annotations

import torch
from rich.console import Console
from rich.table import Table

from burnish import terminal
from burnish.base_setup import BaseSetup
from burnish.config import PPOConfig
from burnish.errors import InputError
from burnish.models import PolicyModel, Sampler
from burnish.models.adapter_files import load_adapter
from burnish.runs import Run
from burnish.stages.trusted import ask_for_trust, model_deeds


def generate_beside_base(
    console: Console,
    run_folder: str,
    prompt: str,
    max_new_tokens: int | None,
    sample: bool,
    seed: int,
    trust: bool = False,
) -> None:
    """Loads the adapter of a PPO or SFT run and answers one prompt twice. No reward is asked.

    `trust` lets the config of a run that is not this user's have its model fetched.
    """
    run = Run.open(run_folder)
    if run.stage == "reward":
        raise InputError(f"{run.folder} holds a reward model: it judges answers and gives none (burnish reward-test)")
    role, config = ("sft", run.sft_config) if run.stage == "sft" else ("policy", run.config)
    ask_for_trust(console, run.path("config.yaml"), model_deeds(config), trust)
    if max_new_tokens is not None:
        config = config.model_copy(update={"max_new_tokens": max_new_tokens})
    with terminal.busy(console, terminal.loading(config)):
        setup = BaseSetup(config)
        encoded = setup.encoder.encode([prompt])
        setup.add_adapter(role)
        load_adapter(setup.base, role, run.folder / "adapters" / role)
    drawn_with = config if isinstance(config, PPOConfig) else PPOConfig()  # SFT draws nothing, so it sets nothing
    sampler = Sampler(drawn_with.temperature, drawn_with.top_k, drawn_with.top_p, greedy=not sample)
    answers = []
    for adapter in (None, role):
        with terminal.busy(console, "generating"):
            model = PolicyModel(setup.base, adapter, drawn_with.temperature)
            generator = torch.Generator(setup.base.device).manual_seed(seed)
            rollout = model.generate(encoded, config.max_new_tokens, sampler, generator)
        tokens = rollout.action[0][rollout.mask[0]].tolist()
        answers.append(terminal.plain(setup.base.tokenizer.decode(tokens, skip_special_tokens=True).strip()))
    table = Table("base", "tuned", show_lines=True)
    for column in table.columns:
        column.ratio = 1
    table.add_row(*answers)
    console.print(table)
