"""A PPO step beside other programs: alone, beside one busy program, and two runs side by side.

    python benchmarks/beside.py [--steps 3]          # about 20 minutes on two cores; nothing else may run

The sentiment demo's step on all cores, in fresh processes. Threads that wait for each other spin: `OpenMP's default`
spins long, `burnish` is what the package sets when it is imported, `none` lets waiting threads sleep at once
(OMP_WAIT_POLICY=passive). The variants take turns, and the median of all steps but each process's first is shown.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

SPINS: dict[str, dict[str, str]] = {
    "OpenMP's default": {"GOMP_SPINCOUNT": "300000"},
    "burnish": {},
    "none": {"OMP_WAIT_POLICY": "passive"},
}
STEP = """
import json, sys
import burnish  # before torch, as the command line does
from workload import ppo_task
config, prompts = ppo_task("sentiment")
trainer = burnish.PPOTrainer(config)
trainer.generator.agree_on_invocation(prompts.train)
steps = (trainer.ppo_step(trainer.prompts_of_step(prompts.train, n)) for n in range(int(sys.argv[1]) + 1))
print(json.dumps([step["seconds"] for step in steps][1:]))
"""


def start(spin: str, steps: int) -> subprocess.Popen[str]:
    """A process that makes some steps, and prints their seconds."""
    environment = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    environment |= SPINS[spin] | {"PYTHONPATH": os.path.dirname(__file__), "TQDM_DISABLE": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", STEP, str(steps)], stdout=subprocess.PIPE, text=True, env=environment
    )


def seconds_of(process: subprocess.Popen[str]) -> list[float]:
    out, _ = process.communicate()
    if process.returncode:
        sys.exit("a step failed")
    return json.loads(out.splitlines()[-1])


@contextmanager
def busy_program() -> Iterator[None]:
    """One core's worth of somebody else's work."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measure(steps: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    seconds: dict[str, dict[str, list[float]]] = {spin: {"alone": [], "beside": [], "two runs": []} for spin in SPINS}
    for _ in range(rounds):
        for spin, own in seconds.items():
            own["alone"] += seconds_of(start(spin, steps))
        for spin, own in seconds.items():
            with busy_program():
                own["beside"] += seconds_of(start(spin, max(1, steps - 1)))
            for process in [start(spin, max(1, steps - 1)) for _ in range(2)]:
                own["two runs"] += seconds_of(process)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    seconds = measure(options.steps, options.rounds)

    from workload import machine, write_results  # torch is not imported while others are measured

    medians = {spin: {where: median(own) for where, own in by.items()} for spin, by in seconds.items()}
    undisturbed = medians["OpenMP's default"]["alone"]
    table = Table("waiting threads spin as", "alone", "beside a busy program", "two runs side by side")
    summary: dict[str, Any] = {}
    for spin, own in medians.items():
        ratios = {"alone": own["alone"] / undisturbed} | {w: own[w] / own["alone"] for w in ("beside", "two runs")}
        summary[spin] = {where: round(ratio, 2) for where, ratio in ratios.items()}
        table.add_row(spin, *(f"{own[where]:.1f} s, {ratio:.2f}x" for where, ratio in ratios.items()))
    Console(width=100).print(table)
    write_results("beside", {"machine": machine(), "seconds": seconds, "medians": medians, "summary": summary})


if __name__ == "__main__":
    main()
