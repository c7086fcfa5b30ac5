"""`burnish reward-test`: what each part of a config's reward thinks of one answer."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from burnish import terminal
from burnish.config import TrainConfig
from burnish.config.reward_parts import ModelPart, unique_names
from burnish.data.records import Prompt
from burnish.ppo_trainer import PPOTrainer, RewardComputer
from burnish.ppo_trainer.reward_computer import WeightedReward
from burnish.rewards import function_of


def show_reward(
    console: Console, config: TrainConfig, prompt: str, response: str, reference: str | None = None
) -> None:
    """Every part's score, weight and contribution. The base model is loaded only if a part is a reward model."""
    computer = _computer(console, config)
    asked = Prompt(prompt, "the prompt", reference=reference)
    scores = {name: values[0] for name, values in computer.compute_parts([asked], [response]).items()}
    table = Table("part", "score", "weight", "counts", box=None, header_style="dim", padding=(0, 2, 0, 0))
    total = 0.0
    for part in computer.parts:
        score = scores[part.name]
        whole = sum(score) if isinstance(score, list) else score
        total += part.weight * whole
        table.add_row(terminal.plain(part.name), f"{whole:.3f}", f"{part.weight:g}", f"{part.weight * whole:+.3f}")
    table.add_section()
    table.add_row("reward", "", "", f"{total:+.3f}")
    console.print(table)


def _computer(console: Console, config: TrainConfig) -> RewardComputer:
    parts = config.reward_parts
    names = unique_names([part.name for part in parts])
    functions = [
        WeightedReward(name, function_of(part), part.weight)
        for part, name in zip(parts, names, strict=True)
        if not isinstance(part, ModelPart)
    ]
    if len(functions) == len(parts):
        return RewardComputer(functions)
    with terminal.busy(console, terminal.loading(config)):
        return PPOTrainer(config).reward_computer
