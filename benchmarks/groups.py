"""What several responses per prompt cost: a step of 32 responses to 32, 8, 4 and 2 prompts.

    python benchmarks/groups.py          # about 6 minutes on two cores

SmolLM2-135M in float32, prompts of 200-400 tokens, 32 new tokens (stop tokens ignored), response scope, adapters on all
layers, one epoch of PPO with a value model. Every size takes turns in processes of its own, forwards in one round and
backwards in the next; nothing of a prompt is known before its step. `copies` is the step of 32 responses to 4 prompts
with a copy of the prompt's keys and values for each response: what it would cost without sharing them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table

from workload import machine, prompts_of_length, write_results

RESPONSES = 32
SIZES = {"1": 1, "4": 4, "8": 8, "8, copies": 8, "16": 16}


def measure(name: str, seed: int) -> dict[str, Any]:
    """One step, in this process."""
    from burnish import PPOConfig, PPOTrainer
    from burnish.base_setup.embedded import EMBEDDED_NAME
    from burnish.decoder.memory import peak_bytes
    from burnish.decoder.shared_base import SharedBase
    from burnish.stages.measuring import ignore_stop_tokens

    each = SIZES[name]
    config = PPOConfig(
        model_name=EMBEDDED_NAME,
        seed=seed,
        batch_size=RESPONSES,
        responses_per_prompt=each,
        epochs=1,
        steps=1,
        max_new_tokens=32,
        reward="tldr",
        gamma=1.0,
    )
    if name.endswith("copies"):
        SharedBase.shares_prefixes = property(lambda base: False)  # type: ignore[method-assign, assignment]
    trainer = PPOTrainer(config)
    ignore_stop_tokens(trainer)
    prompts = prompts_of_length("tldr", RESPONSES // each, seed=seed)
    trainer.generator.agree_on_invocation(prompts)
    results = trainer.ppo_step(trainer.prompts_of_step(prompts, 0))
    phases = {key: value for key, value in results.items() if key.startswith("seconds")}
    return {"peak_gb": peak_bytes() / 1e9, "buffer_mb": results["buffer_mb"]} | phases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], int(options.one[1]))))
        return
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in SIZES}
    for number in range(options.rounds):
        for name in SIZES if number % 2 == 0 else reversed(SIZES):
            command = [sys.executable, str(Path(__file__)), "--one", name, str(number)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            measured[name].append(json.loads(done.stdout.splitlines()[-1]))
            print(name, measured[name][-1], flush=True)
    rows = []
    table = Table("responses per prompt", "step (s)", "rollout (s)", "training (s)", "held (MB)", "peak (GB)")
    for name, runs in measured.items():
        row = {"name": name} | {key: mean(run[key] for run in runs) for key in runs[0]}
        row["training"] = row["seconds_train_policy_model"] + row["seconds_train_value_model"]
        rows.append(row)
        table.add_row(
            name,
            f"{row['seconds']:.1f}",
            f"{row['seconds_generate_sequences']:.1f}",
            f"{row['training']:.1f}",
            f"{row['buffer_mb']:.0f}",
            f"{row['peak_gb']:.2f}",
        )
    Console(width=100).print(table)
    write_results("groups", {"machine": machine(), "rows": rows})


if __name__ == "__main__":
    main()
