"""Does an adapter that acts on the response alone learn as much as an ordinary LoRA, at equal steps?

    python benchmarks/scopes.py --task sentiment --seeds 3 --steps 10
    python benchmarks/scopes.py --task tldr --seeds 1 --steps 6

Same demo config, same prompts, same seeds; only adapter_scope differs. Prints a table and, last, one JSON line.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from burnish import PPOTrainer
from burnish.evaluation.measure import evaluate
from workload import ppo_task


def measure(task: str, scope: str, seed: int, steps: int | None) -> dict[str, float]:
    overrides = {"adapter_scope": scope, "seed": seed} | ({} if steps is None else {"steps": steps})
    config, prompts = ppo_task(task, **overrides)
    trainer = PPOTrainer(config)
    trainer.generator.agree_on_invocation([*prompts.train, *prompts.held_out])
    before = evaluate(trainer, prompts.held_out)
    start = time.perf_counter()
    trainer.train(prompts.train)
    seconds = (time.perf_counter() - start) / config.steps
    after = evaluate(trainer, prompts.held_out).table()
    return {
        "before": before.table()["reward"][0],
        "after": after["reward"][0],
        "half_interval_95": after["reward"][1],
        "kl": after["kl"][0],
        "seconds_per_step": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="sentiment", choices=["sentiment", "tldr"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        for scope in ("response", "sequence"):  # alternating, so that the machine's mood meets both
            rows.append({"scope": scope, "seed": seed} | measure(options.task, scope, seed, options.steps))
            print(json.dumps(rows[-1]), flush=True)
    table = Table("scope", "seed", "before", "after", "KL", "s/step", title=f"{options.task}: held-out reward")
    for r in rows:
        after = f"{r['after']:.3f} ± {r['half_interval_95']:.3f}"
        table.add_row(
            r["scope"], str(r["seed"]), f"{r['before']:.3f}", after, f"{r['kl']:.1f}", f"{r['seconds_per_step']:.1f}"
        )
    Console(width=100).print(table)
    means = {s: sum(r["after"] for r in rows if r["scope"] == s) / options.seeds for s in ("response", "sequence")}
    print(json.dumps({"task": options.task, "mean_after": means, "rows": rows}))


if __name__ == "__main__":
    main()
