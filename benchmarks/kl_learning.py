"""What the ways to charge the KL do to learning: the sentiment demo, three seeds, the same steps.

    python benchmarks/kl_learning.py [--seeds 3]      # about 15 minutes on two cores; stopped, it goes on where it was

Everything is the demo's but `kl_in` and `kl_estimator`. Measured on the 40 held-out openings, answered twice.
"""

from __future__ import annotations

import argparse
from functools import partial
from statistics import mean
from typing import Any

import burnish
from workload import MeasuredRows, before_and_after, fingerprint, machine, ppo_task, write_results

WAYS = {
    "k1 in the reward": ("reward", "k1"),
    "exact in both": ("both", "exact"),
    "exact in the loss": ("loss", "exact"),
}


def measure(seed: int, place: str, estimator: str) -> dict[str, Any]:
    config, prompts = ppo_task("sentiment", seed=seed, kl_in=place, kl_estimator=estimator)
    before, after, history = before_and_after(burnish.PPOTrainer(config), prompts)
    return {
        "before": before["reward"][0],
        "after": after["reward"],
        "kl_before": before["kl"][0],
        "kl": after["kl"],
        "curve": [round(step["reward"], 3) for step in history],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    measured = MeasuredRows("kl_learning")
    rows = []
    for seed in range(options.seeds):
        for way, (place, estimator) in WAYS.items():
            job = ppo_task("sentiment", seed=seed, kl_in=place, kl_estimator=estimator)[0].model_dump(mode="json")
            key = {"way": way, "seed": seed, "job": fingerprint(job)}
            rows.append(measured.row(key, partial(measure, seed, place, estimator)))
    summary = {
        way: {
            "after": round(mean(r["after"][0] for r in rows if r["way"] == way), 3),
            "kl": round(mean(r["kl"][0] for r in rows if r["way"] == way), 2),
        }
        for way in WAYS
    }
    write_results("kl_learning", {"machine": machine(), "rows": rows, "summary": summary})
    measured.forget()


if __name__ == "__main__":
    main()
