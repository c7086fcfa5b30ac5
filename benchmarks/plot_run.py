"""Draws a run's reward curve: each step's mean reward, and the held-out measurement before and after.

python benchmarks/plot_run.py runs/NAME docs/images/demo_reward.png
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import matplotlib.ticker


def main(run: str, picture: str) -> None:
    steps = [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((Path(run) / "result.json").read_text())
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), width_ratios=(2, 1))
    left.plot(
        [s["step"] for s in steps], [s["reward"] for s in steps], marker="o", color="#2b6cb0", label="training batch"
    )
    for when, x in (("before", 0), ("after", len(steps) + 1)):
        reward = result[when]["reward"]
        left.errorbar(
            x, reward["mean"], yerr=reward["half_interval_95"], fmt="s", capsize=4, color="#c05621",
            label="held-out, 95 % interval" if when == "before" else None,
        )  # fmt: skip
    left.set(xlabel="PPO step", ylabel="mean reward")
    left.legend(frameon=False, loc="lower right")
    right.plot([s["step"] for s in steps], [s["kl"] for s in steps], marker="o", color="#2f855a")
    right.set(xlabel="PPO step", ylabel="KL to the reference (nats)")
    for axis in (left, right):
        axis.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    Path(picture).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=130)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
