"""burnish, doing what it is told on standard input; prints one JSON line. The counterpart of trl_side.py."""

from __future__ import annotations

import json
import sys
import time

from burnish import PPOConfig, PPOTrainer
from burnish.base_setup.embedded import EMBEDDED_NAME
from burnish.decoder.memory import peak_bytes
from burnish.evaluation.measure import evaluate
from burnish.stages.measuring import ignore_stop_tokens


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
        max_kl=None,  # a rate that is too high is seen to fail, as the peers' are; they have no such guard
        **job["settings"],
    )
    trainer = PPOTrainer(config)
    if job["ignore_stop_tokens"]:
        ignore_stop_tokens(trainer)
    trainer.generator.agree_on_invocation(job["prompts"])
    seconds: list[float] = []
    rewards: list[float] = []
    for step in range(config.steps):
        start = time.perf_counter()
        trainer.ppo_step(trainer.prompts_of_step(job["prompts"], step))
        seconds.append(time.perf_counter() - start)
        if job.get("held_out"):
            rewards.append(evaluate(trainer, job["held_out"]).table()["reward"][0])
            print(f"step {step + 1}: {sum(seconds):.0f} s, {rewards[-1]:.3f}", file=sys.stderr)
            if rewards[-1] >= job["goal"]:
                break
    course = {"seconds": seconds, "rewards": rewards, "updates": trainer.policy.num_updates}
    print(json.dumps(course | {"peak_gb": peak_bytes() / 1e9}))


if __name__ == "__main__":
    main()
