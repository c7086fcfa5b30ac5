"""Where a PPO step's time goes, and how much of the machine it uses.

    python benchmarks/step_profile.py     # adapters on the top third, on all layers, and with the exact KL in the loss

For every part: its seconds, the arithmetic that it needs (arithmetic.py) and the rate that makes, as a share of the
rate that this machine reaches in large fp32 matrix products between the steps of the same run. A further step under
torch's profiler tells how much of the time is spent in matrix products and attention at all.
"""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from arithmetic import Arithmetic
from burnish import PPOTrainer
from burnish.ppo import token_attribution
from burnish.stages.measuring import Stopwatch, matmul_rate
from workload import machine, ppo_task, write_results

WAYS: dict[str, dict[str, Any]] = {
    "top third of the layers (the demo)": {},
    "all layers": {"lora_layers": "all"},
    "top third of the layers, the exact KL in reward and loss": {"kl_in": "both", "kl_estimator": "exact"},
}
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_dot_product")


def measure(settings: dict[str, Any], steps: int) -> dict[str, Any]:
    """The median step of several on new prompts each, part by part."""
    config, prompts = ppo_task("tldr", prompt_cache_mb=0, **settings)
    trainer = PPOTrainer(config)
    trainer.generator.agree_on_invocation(prompts.train)
    watch = Stopwatch()
    watch.on(trainer.base, "read_prompts", "prefill")
    watch.on(trainer.generator.engine, "generate", "decode")
    watch.on(trainer.generator.extractor, "extract", "reference")
    watch.on(token_attribution, "against_reference", "KL to the reference")
    watch.on(trainer.value_adder, "add_values_to_sa_pairs", "value")
    watch.on(trainer.reward_computer, "compute_rewards", "reward")
    watch.on(trainer.model_trainer, "train_policy_model", "policy training")
    watch.on(trainer.model_trainer, "train_value_model", "value training")

    runs: list[dict[str, Any]] = []
    for step in range(steps + 1):
        watch.seconds = {}
        before, rate = trainer.base.num_prompt_tokens_read, matmul_rate(0.5)
        results = trainer.ppo_step(trainer.prompts_of_step(prompts.train, step))
        rate = (rate + matmul_rate(0.5)) / 2
        if step == 0:
            continue  # the first step of a process also pays for first uses
        tokens = trainer.base.num_prompt_tokens_read - before
        gflop = Arithmetic(trainer, results["sa_pairs"], tokens).by_part()
        seconds = watch.seconds | {"everything else": results["seconds"] - sum(watch.seconds.values())}
        share = sum(gflop.values()) / results["seconds"] / rate
        runs.append({"seconds": seconds, "gflop": gflop, "rate": rate, "step": results["seconds"], "share": share})
    run = sorted(runs, key=lambda r: r["share"])[len(runs) // 2]

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        profiled = trainer.ppo_step(trainer.prompts_of_step(prompts.train, steps + 1))
    products = sum(e.self_cpu_time_total for e in profiler.key_averages() if e.key.startswith(PRODUCTS)) / 1e6
    return run | {
        "settings": settings,
        "shares_of_all_steps": [r["share"] for r in runs],
        "time_in_products": products / profiled["seconds"],
    }


def show(name: str, run: dict[str, Any]) -> None:
    table = Table("part", "seconds", "GFLOP", "GFLOP/s", "share of the machine's rate", title=name)
    for part, gflop in run["gflop"].items():
        seconds = run["seconds"].get(part, 0.0)
        rate = gflop / seconds if seconds else 0.0
        cells = (f"{gflop:.0f}", f"{rate:.0f}", f"{rate / run['rate']:.0%}") if gflop else ("", "", "")
        table.add_row(part, f"{seconds:.2f}", *cells)
    gflop = sum(run["gflop"].values())
    table.add_section()
    table.add_row("the step", f"{run['step']:.2f}", f"{gflop:.0f}", f"{gflop / run['step']:.0f}", f"{run['share']:.0%}")
    Console(width=100).print(table)
    print(f"This machine in large matrix products: {run['rate']:.0f} GFLOP/s.")
    print(f"Time in matrix products and attention, under the profiler: {run['time_in_products']:.0%}.\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    options = parser.parse_args()
    runs = {}
    for name, settings in WAYS.items():
        runs[name] = measure({"batch_size": options.batch_size} | settings, options.steps)
        show(name, runs[name])
    summary = {n: {"share": round(r["share"], 3), "products": round(r["time_in_products"], 3)} for n, r in runs.items()}
    write_results("step_profile", {"machine": machine(), "runs": runs, "summary": summary})


if __name__ == "__main__":
    main()
