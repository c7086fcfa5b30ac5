"""burnish, doing what it is told on standard input; prints one JSON line. The counterpart of trl_side.py."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from burnish import PPOConfig, PPOTrainer
from burnish.base_setup import EMBEDDED_NAME
from burnish.evaluation import evaluate
from burnish.memory import peak_bytes
from workload import ignore_stop_tokens


def main() -> None:
    job = json.load(sys.stdin)
    config = PPOConfig(
        model_name=EMBEDDED_NAME,
        seed=job["seed"],
        steps=job["steps"],
        batch_size=job["batch_size"],
        epochs=job["epochs"],
        max_new_tokens=job["max_new_tokens"],
        kl_coef=job["kl_coef"],
        reward=job["reward"],
        **job["settings"],
    )
    trainer = PPOTrainer(config)
    if job["ignore_stop_tokens"]:
        ignore_stop_tokens(trainer)
    trainer.generator.agree_on_invocation(job["prompts"])
    predicted_gb = dict(row[:2] for row in trainer.memory_report(job["prompts"]))["at its peak"] * 2**20 / 1e9
    seconds: list[float] = []
    phases: list[dict[str, float]] = []
    rewards: list[float] = []
    for step in range(config.steps):
        start = time.perf_counter()
        results: dict[str, Any] = trainer.ppo_step(trainer.prompts_of_step(job["prompts"], step))
        seconds.append(time.perf_counter() - start)
        phases.append({k: v for k, v in results.items() if k.startswith("seconds_")})
        if job.get("held_out"):
            rewards.append(evaluate(trainer, job["held_out"]).table()["reward"][0])
            print(f"step {step + 1}: {sum(seconds):.0f} s, {rewards[-1]:.3f}", file=sys.stderr)
            if rewards[-1] >= job["goal"]:
                break
    memory = {"peak_gb": peak_bytes() / 1e9, "predicted_gb": predicted_gb}
    course = {"seconds": seconds, "rewards": rewards, "updates": trainer.policy.num_updates, "phases": phases}
    print(json.dumps(course | memory))


if __name__ == "__main__":
    main()
