"""What it costs and changes to go beyond one process, on this machine.

    python benchmarks/scaleout.py                                               # all parts
    python benchmarks/scaleout.py --parts rollouts --steps 6 --batch-size 16    # about 6 minutes on one core

Stopped, it goes on where it was.

`rollouts`: the sentiment demo (SmolLM2-135M in float32, 20 tokens, no truncation) with responses that burnish decodes
itself, and with responses from a vLLM server that runs beside it on the same cores, so that the two take turns. Both
sides have the same prompts, seeds and updates, and both are measured on held-out prompts by burnish's own decoder. vLLM
is installed at the first start (3.4 GB).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # what the tests start a server with

from burnish import PPOTrainer
from burnish.base_setup.embedded import embedded_model_folder
from vllm_server import install, serving
from workload import MeasuredRows, before_and_after, fingerprint, machine, ppo_task, write_results

WHOLE_VOCABULARY = {"top_k": 0, "top_p": 1.0}


def learned(settings: dict[str, Any]) -> dict[str, Any]:
    """A run of the sentiment demo: seconds a step, and the reward on held-out prompts before and after."""
    config, prompts = ppo_task("sentiment", **WHOLE_VOCABULARY, **settings)
    trainer = PPOTrainer(config)
    before, after, history = before_and_after(trainer, prompts)
    steps = history[1:]  # the first one has the probe and cold caches
    tokens = mean(h["response_tokens"] for h in steps) * config.batch_size
    rollout = mean(h["seconds_generate_sequences"] for h in steps)
    return {
        "seconds": mean(h["seconds"] for h in steps),
        "rollout_seconds": rollout,
        "tokens_per_second": tokens / rollout,
        "sampler_gap": max((h["sampler_gap"] for h in history if "sampler_gap" in h), default=None),
        "weight_cut": max((h["weight_cut"] for h in history if "weight_cut" in h), default=None),
        "before": before["reward"][0],
        "after": after["reward"],
        "kl": after["kl"][0],
    }


def served(settings: dict[str, Any]) -> dict[str, Any]:
    """The same with responses from a server that is started for it."""
    log = Path(tempfile.mkdtemp()) / "vllm.txt"
    with serving(embedded_model_folder(), log) as server:
        rollout = {"engine": "vllm", "url": server.url, "model": server.model}
        return learned(settings | {"rollout": rollout})


def rollouts(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Local and served, a row for each seed."""
    install()  # before anything is timed
    rows, sides = MeasuredRows("scaleout"), {"local": learned, "served": served}
    job = {"steps": options.steps, "batch_size": options.batch_size, "mini_batch_size": options.batch_size // 2}
    measured = []
    for seed in range(options.seeds):
        for side, measure in sides.items():
            given = job | {"seed": seed}
            key = {"part": "rollouts", "side": side, "seed": seed, "job": fingerprint(given | WHOLE_VOCABULARY)}
            measured.append(rows.row(key, partial(measure, given)))
    shown = Table("responses", "seed", "a step", "rollout", "tokens/s", "gap", "reward", title="rollouts from a server")
    for r in measured:
        gap = "" if r["sampler_gap"] is None else f"{r['sampler_gap']:.1e}"
        reward = f"{r['before']:.2f} -> {r['after'][0]:.2f} ± {r['after'][1]:.2f}"
        seconds = (f"{r['seconds']:.1f} s", f"{r['rollout_seconds']:.1f} s", f"{r['tokens_per_second']:.0f}")
        shown.add_row(r["side"], str(r["seed"]), *seconds, gap, reward)
    Console(width=100).print(shown)
    return measured


PARTS: dict[str, Callable[[argparse.Namespace], list[dict[str, Any]]]] = {"rollouts": rollouts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    results = {part: PARTS[part](options) for part in options.parts}
    write_results("scaleout", {"machine": machine(), **results})
    MeasuredRows("scaleout").forget()


if __name__ == "__main__":
    main()
