"""How a PPO step grows with its batch, its prompts, its responses and its epochs.

    python benchmarks/scaling.py

Response scope, adapters on the top third of the layers, whole responses (stop tokens ignored), new prompts in every
step. The growth is the exponent p of a fitted seconds = c * x^p. Then: through how many layers did each prompt token
go, divided by the layers of one forward pass of the base?
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from torch import Tensor

from burnish import PPOConfig, PPOTrainer
from burnish.base_setup.embedded import EMBEDDED_NAME
from burnish.decoder.shared_base import SharedBase
from burnish.stages.measuring import ignore_stop_tokens
from workload import machine, prompts_of_length, write_results

BASE = {"batch_size": 16, "prompt_tokens": 200, "max_new_tokens": 24, "epochs": 2}
AXES = {
    "batch_size": [8, 16, 32, 64],
    "prompt_tokens": [50, 100, 200, 400],
    "max_new_tokens": [12, 24, 48, 96],
    "epochs": [1, 2, 4, 8],
}


class PromptPasses:
    """Counts tokens times layers that the base computes at prompt positions, padding included."""

    def __init__(self, base: SharedBase) -> None:
        self.prefix = self.end = 0
        self._reading = False
        run_layers, read_prompts = base.decoder.run_layers, base.read_prompts
        num_end = base.num_adapted_prompt_tokens

        def counted(hidden: Tensor, key_mask: Tensor, cache: Any, layers: range) -> Tensor:
            if self._reading:
                self.prefix += hidden.shape[0] * hidden.shape[1] * len(layers)
            elif hidden.shape[1] >= num_end and key_mask.shape[1] > hidden.shape[1]:
                first = hidden.shape[1] > 1 or key_mask.shape[1] == self.prompt_width
                self.end += hidden.shape[0] * num_end * len(layers) * first
            return run_layers(hidden, key_mask, cache, layers)

        def reading(prompt_ids: Tensor, *args: Any, **kwargs: Any) -> Any:
            self._reading, self.prompt_width = True, prompt_ids.shape[1]
            try:
                return read_prompts(prompt_ids, *args, **kwargs)
            finally:
                self._reading = False

        base.decoder.run_layers, base.read_prompts = counted, reading  # type: ignore[method-assign]


def step_seconds(shape: dict[str, int], repeats: int) -> dict[str, float]:
    """The fastest of some steps, and the passes over each prompt token in the last of them."""
    tokens = shape["prompt_tokens"]
    config = PPOConfig(
        model_name=EMBEDDED_NAME,
        reward="sentiment",
        lora_layers=10,
        prompt_cache_mb=0,
        batch_size=shape["batch_size"],
        max_new_tokens=shape["max_new_tokens"],
        epochs=shape["epochs"],
    )
    trainer = PPOTrainer(config)
    ignore_stop_tokens(trainer)
    prompts = prompts_of_length((tokens, tokens), shape["batch_size"] * (repeats + 1))
    batches = [prompts[n * shape["batch_size"] :][: shape["batch_size"]] for n in range(repeats + 1)]
    trainer.generator.agree_on_invocation(prompts)
    encoded = trainer.generator.encoder.encode(batches[-1])
    seconds = []
    for number, batch in enumerate(batches):
        if number == repeats:
            passes = PromptPasses(trainer.base)
        start = time.perf_counter()
        trainer.ppo_step(batch)
        seconds.append(time.perf_counter() - start)
    layers = trainer.base.num_layers * sum(map(len, encoded))
    return {
        "seconds": min(seconds),
        "prefix_passes": passes.prefix / layers,
        "end_passes": passes.end / layers,
    }


def exponent(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Least squares in logarithms."""
    log_x, log_y = [math.log(x) for x in xs], [math.log(y) for y in ys]
    mean_x, mean_y = sum(log_x) / len(xs), sum(log_y) / len(ys)
    covariance = sum((x - mean_x) * (y - mean_y) for x, y in zip(log_x, log_y, strict=True))
    return covariance / sum((x - mean_x) ** 2 for x in log_x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    table = Table("axis", "values", "seconds", "growth", "last doubling", "passes per prompt token", title=str(BASE))
    results: dict[str, Any] = {}
    for axis, values in AXES.items():
        points = [step_seconds(BASE | {axis: value}, options.repeats) for value in values]
        seconds = [p["seconds"] for p in points]
        passes = [p["prefix_passes"] + p["end_passes"] for p in points]
        growth, last = exponent(values, seconds), math.log2(seconds[-1] / seconds[-2])
        results[axis] = {"values": values, "points": points, "exponent": growth, "last_doubling": last}
        table.add_row(
            axis,
            " ".join(map(str, values)),
            " ".join(f"{s:.1f}" for s in seconds),
            f"{growth:.2f}",
            f"{last:.2f}",
            " ".join(f"{p:.2f}" for p in passes),
        )
    Console(width=120).print(table)
    every = [p["prefix_passes"] + p["end_passes"] for r in results.values() for p in r["points"]]
    summary = {
        "exponents": {axis: round(r["exponent"], 3) for axis, r in results.items()},
        "last_doublings": {axis: round(r["last_doubling"], 3) for axis, r in results.items()},
        "most_passes_per_prompt_token": round(max(every), 3),
    }
    write_results("scaling", {"machine": machine(), "base": BASE, "results": results, "summary": summary})


if __name__ == "__main__":
    main()
