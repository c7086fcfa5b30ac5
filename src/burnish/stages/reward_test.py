"""`burnish reward-test`: what each part of a config's reward thinks of one answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from burnish.config import PPOConfig, TrainConfig
from burnish.data.records import Prompt
from burnish.ppo.reward_computer import RewardComputer, weighted
from burnish.rewards.part import Workshop
from burnish.runs.run import LOGS, RESULTS
from burnish.show import terminal
from burnish.stages.trusted import ask_for_trust, model_deeds
from burnish.text import plain


def show_reward(
    console: Console, config: TrainConfig, prompt: str, response: str, reference: str | None = None
) -> dict[str, Any]:
    """Every part's score, weight and contribution, shown and given. The base is loaded only if a part needs it."""
    computer = computer_of(console, config)
    asked = Prompt(prompt, "the prompt", reference=reference)
    scores = {name: values[0] for name, values in computer.compute_parts([asked], [response]).items()}
    table = Table("part", "score", "weight", "counts", box=None, header_style="dim", padding=(0, 2, 0, 0))
    total, parts = 0.0, []
    for part in computer.parts:
        score = scores[part.name]
        tokens = [float(own) for own in score] if isinstance(score, list) else None
        whole = float(score) if tokens is None else sum(tokens)
        total += part.weight * whole
        parts.append({"name": part.name, "score": whole, "weight": part.weight, "tokens": tokens})
        table.add_row(plain(part.name), f"{whole:.3f}", f"{part.weight:g}", f"{part.weight * whole:+.3f}")
    table.add_section()
    table.add_row("reward", "", "", f"{total:+.3f}")
    console.print(table)
    return {"parts": parts, "reward": total}


def check_trust(console: Console, file: str | Path, config: TrainConfig, trust: bool) -> None:
    """A config that one wrote is a program that one runs; one in a run folder may be somebody else's."""
    path = Path(file)
    beside = (*LOGS, *RESULTS, "adapters", "checkpoints")
    if path.name == "config.yaml" and any((path.parent / name).exists() for name in beside):
        deeds = [deed for part in config.reward_parts for deed in part.deeds()]
        if any(part.needs_base for part in config.reward_parts):
            deeds += model_deeds(config)
        ask_for_trust(console, path, deeds, trust)


def computer_of(console: Console, config: PPOConfig) -> RewardComputer:
    """What asks the parts of a config's reward."""
    parts = config.reward_parts
    if not any(part.needs_base for part in parts):
        return RewardComputer(weighted(parts, Workshop(config.reward_timeout)))
    with terminal.starting(console):
        from burnish.ppo.ppo_trainer import PPOTrainer

    with terminal.busy(console, terminal.loading(config)):
        return PPOTrainer(config).reward_computer
