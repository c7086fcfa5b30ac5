"""The SFT stage: demonstrations in, an adapter out that answers like them."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from burnish.config import SFTConfig
from burnish.data import Demonstration, Split, load_split
from burnish.runs import Run
from burnish.sft_trainer import SFTTrainer
from burnish.stages.supervised import SupervisedStage, run_supervised


def load_data(config: SFTConfig) -> tuple[Split[Demonstration], int]:
    """Training and held-out demonstrations, and how many rows were left out."""
    return load_split(
        "demonstrations",
        config.demonstrations,
        config.eval_demonstrations,
        config.num_eval_prompts,
        config.seed,
        config.fields,
        config.skip_bad,
    )


def run_sft(config: SFTConfig, data: Split[Demonstration], *place: Any, **more: Any) -> Run:
    """Trains on demonstrations; the rest is as in `run_supervised`."""
    return run_supervised(SFT, config, data, *place, **more)


def _loss(trainer: SFTTrainer, data: Split[Demonstration]) -> float | None:
    return trainer.measure(data.held_out)["loss"] if data.held_out else None


def _conclude(
    console: Console, trainer: SFTTrainer, data: Split[Demonstration], before: float | None
) -> dict[str, Any]:
    after = _loss(trainer, data)
    if before is not None and after is not None:
        console.print(f"Held-out loss {before:.3f} before, {after:.3f} after (nats per token).", highlight=False)
    return {"loss_before": before, "loss_after": after}


def _how_to_use(run: Run) -> str:
    return (
        f"The SFT adapter is in {run.folder / 'adapters' / 'sft'}\n"
        f'  burnish generate {run.folder} "your prompt"\n'
        f"`burnish reward` and `burnish train` start from it with: sft: {run.folder}"
    )


SFT = SupervisedStage("SFT", "sft", "demonstrations", SFTTrainer, _loss, _conclude, _how_to_use)
