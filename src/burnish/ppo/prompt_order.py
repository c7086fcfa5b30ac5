"""Which prompts a step takes: a function of (seed, step), so that a resumed run takes the same."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def prompts_of_step(prompts: Sequence[str], step: int, size: int, seed: int) -> list[str]:
    """`size` prompts: all of them in a random order, then all again in another, cut into steps."""
    positions = range(step * size, (step + 1) * size)
    rounds = {p // len(prompts) for p in positions}
    orders = {r: _order(len(prompts), seed, r) for r in rounds}
    return [prompts[orders[p // len(prompts)][p % len(prompts)]] for p in positions]


def _order(size: int, seed: int, round_number: int) -> list[int]:
    """A random order of range(size), one for each round through the prompts."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + round_number)
    return torch.randperm(size, generator=generator).tolist()
