"""A PPO step of burnish beside one of TRL 1.12.0: the same prompts, tokens, epochs and micro-batch, on this machine.

    python benchmarks/vs_trl.py                 # about 40 minutes on two cores; stopped, it goes on where it was
    python benchmarks/vs_trl.py --shapes short  # about 10

Both sides, and every setting of ours, take turns in processes of their own, forwards in one round and backwards in the
next; the first PPO step of a process is what is timed, peak memory is the whole process's. SmolLM2-135M in float32, 16
prompts, 32 new tokens (stop tokens ignored, so that both sides compute the same number), 4 PPO epochs, LoRA r=16 on all
linear layers, micro-batches of 8 sequences (4 for the long prompts: with 8, TRL fills 24 GB). TRL's value model is a
second model, trained whole, as in its examples; burnish's is an adapter on the shared base.

The settings: `plain` is the ordinary LoRA (adapters on the whole sequence, all layers), `response` and `top_third`
are burnish's, all three with TRL's sampling (temperature 0.7 over the whole vocabulary) and micro-batch; `default` is
a PPOConfig that nobody has touched.
"""

from __future__ import annotations

import argparse
from functools import partial
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table

from peer import python_of, run_side
from workload import LENGTHS, MeasuredRows, fingerprint, machine, prompts_of_length, write_results

MICRO_BATCH = {"short": 8, "tldr": 4}
LIKE_TRL = {
    "temperature": 0.7,
    "top_k": 0,
    "top_p": 1.0,
    "activation_mb": 100_000,  # no limit but the number of sequences
}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": LIKE_TRL | {"adapter_scope": "sequence"},
    "response": LIKE_TRL,
    "top_third": LIKE_TRL | {"lora_layers": 10},
    "default": {},
}


def job_of(shape: str, round_number: int) -> dict[str, Any]:
    return {
        "prompts": prompts_of_length(shape, 16, seed=round_number),
        "seed": round_number,
        "steps": 1,
        "batch_size": 16,
        "epochs": 4,
        "max_new_tokens": 32,
        "kl_coef": 0.05,
        "reward": "sentiment",
        # for TRL's side
        "micro_batch_size": MICRO_BATCH[shape],
        "temperature": 0.7,
        "learning_rate": 1e-5,
        # for ours
        "ignore_stop_tokens": True,
    }


def measure(name: str, job: dict[str, Any]) -> dict[str, float]:
    result = run_side("trl" if name == "trl" else "burnish", job)
    if result["updates"] != job["epochs"]:
        raise SystemExit(f"{name} made {result['updates']} optimizer steps, not {job['epochs']}")
    return {"seconds": result["seconds"][0], "peak_gb": result["peak_gb"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=list(LENGTHS), choices=list(LENGTHS))
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    python_of("trl")  # installed before anything is timed

    rows = MeasuredRows("vs_trl")
    measured: dict[tuple[str, str], list[dict[str, float]]] = {}
    for round_number in range(options.rounds):
        for shape in options.shapes:
            job = job_of(shape, round_number)
            names = ["trl", *SETTINGS]
            for name in names if round_number % 2 == 0 else reversed(names):
                micro = {} if name == "default" else {"micro_batch_size": MICRO_BATCH[shape]}
                given = job if name == "trl" else job | {"settings": SETTINGS[name] | micro}
                key = {"round": round_number, "shape": shape, "setting": name, "job": fingerprint(given)}
                row = rows.row(key, partial(measure, name, given))
                measured.setdefault((shape, name), []).append({k: row[k] for k in ("seconds", "peak_gb")})

    table = Table("prompts", "setting", "seconds", "TRL / ours", "peak GB", "ours / TRL", title="one PPO step")
    summary: dict[str, dict[str, dict[str, float]]] = {}
    for shape, name in ((s, n) for s in options.shapes for n in ("trl", *SETTINGS)):
        own = measured[shape, name]
        seconds, peak = mean(r["seconds"] for r in own), mean(r["peak_gb"] for r in own)
        trl = measured[shape, "trl"]
        speedup = mean(r["seconds"] for r in trl) / seconds
        memory = peak / mean(r["peak_gb"] for r in trl)
        each = " ".join(f"{r['seconds']:.0f}" for r in own)
        table.add_row(shape, name, f"{seconds:.1f} ({each})", f"{speedup:.1f}", f"{peak:.1f}", f"{memory:.2f}")
        if name != "trl":
            summary.setdefault(shape, {})[name] = {"speedup": round(speedup, 2), "memory": round(memory, 3)}
    Console(width=100).print(table)
    all_rows = [{"shape": s, "setting": n, "rounds": r} for (s, n), r in measured.items()]
    write_results("vs_trl", {"machine": machine(), "rows": all_rows, "summary": summary})
    rows.forget()


if __name__ == "__main__":
    main()
