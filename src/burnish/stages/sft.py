"""The SFT stage: demonstrations in, an adapter out that answers like them."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from burnish.data import Demonstration, Split
from burnish.runs.run import Run
from burnish.stages.supervised import SupervisedStage
from burnish.supervised.sft_trainer import SFTTrainer


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


run = SupervisedStage("SFT", "demonstrations", SFTTrainer, _loss, _conclude, _how_to_use).run
