"""The base model's answer beside the tuned model's."""

from __future__ import annotations

import torch
from rich.console import Console
from rich.table import Table

from burnish import terminal
from burnish.base_setup import BaseSetup
from burnish.models import PolicyModel, Sampler
from burnish.models.adapter_files import load_adapter
from burnish.runs import Run


def generate_beside_base(
    console: Console, run_folder: str, prompt: str, max_new_tokens: int | None, sample: bool, seed: int
) -> None:
    """Loads the run's adapter and answers one prompt twice."""
    run = Run.open(run_folder)
    config = run.config
    if max_new_tokens is not None:
        config = config.model_copy(update={"max_new_tokens": max_new_tokens})
    with terminal.busy(console, terminal.loading(config)):
        setup = BaseSetup(config)
        encoded = setup.encoder.encode([prompt])
        setup.add_adapter("policy")
        load_adapter(setup.base, "policy", run.policy_folder)
    sampler = Sampler(config.temperature, config.top_k, config.top_p, greedy=not sample)
    answers = []
    for adapter in (None, "policy"):
        with terminal.busy(console, "generating"):
            model = PolicyModel(setup.base, adapter, config.temperature)
            generator = torch.Generator(setup.base.device).manual_seed(seed)
            rollout = model.generate(encoded, config.max_new_tokens, sampler, generator)
        tokens = rollout.action[0][rollout.mask[0]].tolist()
        answers.append(terminal.plain(setup.base.tokenizer.decode(tokens, skip_special_tokens=True).strip()))
    table = Table("base", "tuned", show_lines=True)
    for column in table.columns:
        column.ratio = 1
    table.add_row(*answers)
    console.print(table)
