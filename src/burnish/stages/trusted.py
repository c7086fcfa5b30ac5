"""What a run folder that nobody can vouch for would make this machine do, told before it is done.

trust.py knows whose a folder is. For one that is not this user's, each command lists what it would do because the
folder's config says so. Weights, logs and samples are data: reading them asks for no trust.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.console import Console

from burnish.base_setup.sources import full_name, is_on_the_hub
from burnish.config import ModelConfig, TrainConfig
from burnish.config.keys import DATA, marked
from burnish.data.rows import FILES
from burnish.runs.trust import refusal, unproven
from burnish.text import plain


def ask_for_trust(console: Console, config: Path, deeds: Iterable[str], trust: bool) -> None:
    """Refuses what the config of a folder that is not this user's would do; with `trust` lists it and continues."""
    told = unproven(config, deeds)
    if not told:
        return
    if not trust:
        raise refusal(config, told, "give the same command with --trust")
    lines = "".join(f"\n  - {deed}" for deed in told)
    console.print(plain(f"Not known to be yours: {config.parent}. You trust it with:{lines}"), highlight=False)


def all_deeds(config: ModelConfig, folder: Path) -> Iterator[str]:
    """Of training with it."""
    yield from model_deeds(config)
    yield from data_deeds(config, folder)
    yield from reward_deeds(config)
    if isinstance(config, TrainConfig) and config.rollout is not None:
        yield from config.rollout.deeds()
    if isinstance(config, TrainConfig) and config.tracker:
        yield f"start the tracker {config.tracker} and give it all settings and metrics"


def model_deeds(config: ModelConfig) -> Iterator[str]:
    """A model that is on this machine is weights and runs nothing; any other is asked for."""
    if is_on_the_hub(config):
        yield f"ask the model hub for {full_name(config)}"


def data_deeds(config: ModelConfig, folder: Path) -> Iterator[str]:
    """Files of the run folder itself came with it; any other may be none of its business."""
    for key in marked(type(config), DATA):
        source = getattr(config, key)
        if source is None or source.startswith("bundled:"):
            continue
        path = Path(re.sub(r"\[[\w.]+\]$", "", source))  # a data set's split
        if path.suffix not in FILES and not path.exists() and not source.startswith(("/", ".", "~")):
            yield f"ask the hub for the data set {source} ({key})"
        elif not path.resolve().is_relative_to(folder.resolve()):
            yield f"read {path.resolve()} ({key})"


def reward_deeds(config: ModelConfig) -> Iterator[str]:
    """In training and in the verdict."""
    if isinstance(config, TrainConfig):
        for part in config.all_reward_parts:
            yield from part.deeds()
