"""A PPO step of this code beside one of another checkout of burnish: did a change cost time?

    git worktree add ../before COMMIT
    python benchmarks/against_checkout.py ../before [--rounds 3] [--shapes short tldr]

The jobs are those of vs_trl.py, with prompts made here and handed to both. The two take turns in fresh processes, and
who goes first changes with every round. Beside the seconds of the step stands its processor time, which varies less on
a machine that others use too. Prints a table, with the ratio of the fastest rounds, and one JSON line last.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from vs_trl import MICRO_BATCH, SETTINGS, job_of
from workload import LENGTHS

# Runs a checkout's own side of a benchmark, and says last how much processor time its steps took.
SIDE = """
import runpy, sys, time
from burnish import PPOTrainer
ppo_step, used = PPOTrainer.ppo_step, []
def timed(*args, **kwargs):
    before = time.process_time()
    results = ppo_step(*args, **kwargs)
    used.append(time.process_time() - before)
    return results
PPOTrainer.ppo_step = timed
runpy.run_path(sys.argv[1], run_name="__main__")
print(used[0])
"""


def seconds_of(checkout: Path, job: str) -> tuple[float, float]:
    """The job's one step by the code of a checkout, by the clock and by the processor."""
    benchmarks = checkout / "benchmarks"
    path = os.pathsep.join([str(checkout / "src"), str(benchmarks)])
    command = [sys.executable, "-c", SIDE, str(benchmarks / "burnish_side.py")]
    done = subprocess.run(command, input=job, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
    if done.returncode:
        sys.exit(f"{checkout} failed:\n{done.stderr[-4000:]}")
    result, used = done.stdout.splitlines()[-2:]
    return float(json.loads(result)["seconds"][0]), float(used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shapes", nargs="+", default=list(LENGTHS), choices=list(LENGTHS))
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    options = parser.parse_args()
    checkouts = {"before": options.before.resolve(), "now": Path(__file__).parent.parent}
    table = Table(
        "prompts", "setting", "before", "now", "now / before", "processor time", title="seconds of a PPO step"
    )
    ratios = {}
    for shape in options.shapes:
        for setting in options.settings:
            measured: dict[str, list[tuple[float, float]]] = {name: [] for name in checkouts}
            for number in range(options.rounds):
                micro = {} if setting == "default" else {"micro_batch_size": MICRO_BATCH[shape]}
                job = json.dumps(job_of(shape, number) | {"settings": SETTINGS[setting] | micro})
                for name in checkouts if number % 2 == 0 else reversed(checkouts):
                    measured[name].append(seconds_of(checkouts[name], job))
            best = {name: [min(own[n] for own in rounds) for n in range(2)] for name, rounds in measured.items()}
            ratio, of_processor = (best["now"][n] / best["before"][n] for n in range(2))
            ratios[f"{shape} {setting}"] = [round(ratio, 3), round(of_processor, 3)]
            each = [" ".join(f"{seconds:.1f} ({cpu:.1f})" for seconds, cpu in own) for own in measured.values()]
            table.add_row(shape, setting, *each, f"{ratio:.3f}", f"{of_processor:.3f}")
            print(shape, setting, *each, f"{ratio:.3f} {of_processor:.3f}", file=sys.stderr, flush=True)
    Console(width=120).print(table)
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
