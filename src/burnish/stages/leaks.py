"""No stage should be measured on what another has learned. A pipeline sees to it; single commands are warned."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from burnish.config import TrainConfig
from burnish.data import Split, prompts_of
from burnish.runs.run import Run
from burnish.runs.same_run import fingerprint_of_texts


def keep_prompts(run: Run, data: Split[Any]) -> None:
    """Which prompts a run is trained on, by their hash: no later stage should be measured on them."""
    run.write("trained_on.json", {"prompts": sorted({_hash(prompt) for prompt in prompts_of(data.train)})})


def warn_of_leaks(config: TrainConfig, held_out: Sequence[str]) -> None:
    """Tells of held-out prompts that an earlier stage was trained on: what is measured on them flatters."""
    for folder in dict.fromkeys(_stages_before(config)):
        if held_out and (Path(folder) / "trained_on.json").is_file():
            seen = set(Run(Path(folder)).read("trained_on.json")["prompts"])
            leaked = sum(_hash(prompt) in seen for prompt in held_out)
            if leaked:
                warnings.warn(
                    f"{leaked} of the {len(held_out)} held-out prompts were trained on in {folder}, so the verdict "
                    "looks too good. Hold out prompts that no stage has seen (eval_prompts), or use `burnish pipeline`",
                    stacklevel=2,
                )


def _stages_before(config: TrainConfig) -> list[str]:
    """The runs that a PPO run stands on."""
    judges = [path for part in config.all_reward_parts for path in part.judges]
    return [*([config.sft] if config.sft else []), *judges]


def _hash(prompt: str) -> str:
    return fingerprint_of_texts([prompt])[:16]
