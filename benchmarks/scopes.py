"""Where adapters act, and on which layers: what each choice learns in the same steps.

    python benchmarks/scopes.py [--seeds 3]     # about an hour on one core; stopped, it goes on where it was

The sentiment demo (openings of about 10 tokens that end in any word) and PPO against the TL;DR rule on the bundled
posts (configs/tldr.yaml): the same prompts, seeds and steps, and nothing but `adapter_scope` and `lora_layers` differs.
Measured on the held-out prompts, each answered twice. (What a step costs is vs_trl.py's question.)
"""

from __future__ import annotations

import argparse
from functools import partial
from statistics import mean
from typing import Any

from burnish import PPOTrainer
from workload import MeasuredRows, before_and_after, fingerprint, machine, ppo_task, write_results

STEPS = {"sentiment": 10, "tldr": 8}
CHOICES: dict[str, dict[str, Any]] = {
    "response, top third": {"adapter_scope": "response", "lora_layers": 10},
    "sequence, top third": {"adapter_scope": "sequence", "lora_layers": 10},
    "response, middle third": {"adapter_scope": "response", "lora_layers": list(range(10, 20))},
    "response, all": {"adapter_scope": "response", "lora_layers": "all"},
}


def measure(task: str, settings: dict[str, Any]) -> dict[str, Any]:
    config, prompts = ppo_task(task, **settings)
    before, after, _ = before_and_after(PPOTrainer(config), prompts)
    return {
        "before": before["reward"][0],
        "after": after["reward"],
        "kl": after["kl"][0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", nargs="+", default=list(STEPS), choices=list(STEPS))
    options = parser.parse_args()
    measured = MeasuredRows("scopes")
    rows = []
    for seed in range(options.seeds):
        for task in options.tasks:
            for choice, where in CHOICES.items():  # taking turns, so that the machine's mood meets all
                settings = where | {"seed": seed, "steps": STEPS[task]}
                job = fingerprint(ppo_task(task, **settings)[0].model_dump(mode="json"))
                key = {"task": task, "choice": choice, "seed": seed, "job": job}
                rows.append(measured.row(key, partial(measure, task, settings)))
    summary = {
        f"{task}: {choice}": round(mean(r["after"][0] for r in rows if (r["task"], r["choice"]) == (task, choice)), 3)
        for task in options.tasks
        for choice in CHOICES
    }
    write_results("scopes", {"machine": machine(), "rows": rows, "summary": summary})
    measured.forget()


if __name__ == "__main__":
    main()
