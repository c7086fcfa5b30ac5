"""From a response-scope run to an ordinary LoRA, on the real model: how near it comes, and what it earns.

    OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/distilled.py [--seeds 2]   # stopped, it goes on where it was

The sentiment demo, but with `adapter_scope: response`, and PPO against the TL;DR rule on the bundled posts
(configs/tldr.yaml): short prompts and long ones. A run is trained as `burnish train` does it, and exported as
`burnish export --to lora` does it, with its own settings; but the most likely answers of all held-out prompts are
compared, where it takes the first eight. An export that is refused is kept as a row too. SmolLM2-135M.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from typing import Any

from rich.console import Console

from burnish.config import TrainConfig
from burnish.errors import WrongExportError
from burnish.runs.run import Run
from burnish.stages.export import Wish, export
from burnish.stages.stage import STAGES
from workload import MeasuredRows, fingerprint, machine, ppo_task, write_results

STEPS = {"sentiment": 10, "tldr": 8}
OF_EXPORT = ("kl_of_base", "kl_at_start", "kl", "updates", "same_answers", "num_answers", "history")
PARTS = ("mean", "half_interval_95")  # of a reward


def task_of(task: str, seed: int) -> tuple[TrainConfig, list[str]]:
    """The run's settings, and the prompts that it holds out."""
    config, prompts = ppo_task(task, adapter_scope="response", best_of=1, steps=STEPS[task], seed=seed)
    return config, list(prompts.held_out)


def measure(task: str, seed: int) -> dict[str, Any]:
    config, held_out = task_of(task, seed)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run = STAGES["ppo"].run(
            config.model_copy(update={"run_dir": folder, "run_name": "trained"}), Console(width=100)
        )
        trained = time.perf_counter()
        row = told_by_run(run) | exported(run, held_out)
    return row | {"training_seconds": round(trained - began), "export_seconds": round(time.perf_counter() - trained)}


def told_by_run(run: Run) -> dict[str, Any]:
    verdict = run.read("verdict.json")
    rewards = {side: [verdict[side]["reward"][part] for part in PARTS] for side in ("start", "tuned")}
    return rewards | {"outcome": verdict["outcome"]}


def exported(run: Run, held_out: list[str]) -> dict[str, Any]:
    try:
        made = export(Console(width=100), Wish(str(run.folder), "lora", prompts=held_out))
    except WrongExportError as error:
        return {"refused": str(error).replace(str(run.folder), "RUN")}
    found = made.facts["distilled"]
    rewards = {name: [found[name][part] for part in PARTS] for name in ("reward_before", "reward_after")}
    by_peft = {key: made.facts["compared"][key] for key in ("num_equal", "num_prompts", "largest_gap")}
    return {key: found[key] for key in OF_EXPORT} | rewards | {"by_peft": by_peft}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--tasks", nargs="+", default=list(STEPS), choices=list(STEPS))
    options = parser.parse_args()
    measured = MeasuredRows("distilled")
    rows = []
    for task in options.tasks:
        for seed in range(options.seeds):
            job = fingerprint(task_of(task, seed)[0].model_dump(mode="json"))
            rows.append(measured.row({"task": task, "seed": seed, "job": job}, partial(measure, task, seed)))
    summary = {f"{row['task']}, seed {row['seed']}": row.get("kl", row.get("refused")) for row in rows}
    write_results("distilled", {"machine": machine(), "rows": rows, "summary": summary})
    measured.forget()


if __name__ == "__main__":
    main()
