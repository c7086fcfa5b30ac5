"""A base stored in fewer bits, beside the same base in float32: memory, time, and what is learned in the same steps.

    python benchmarks/quantised.py [--seeds 3]     # about 45 minutes on two cores; stopped, it goes on where it was

The sentiment demo with its own settings, but for `quantize`, each run in a fresh process, the kinds taking turns.
Measured on the 40 held-out openings, answered twice. How far a stored base is from the float32 one is measured without
any training, on bundled posts: the KL between their next-token distributions, and how often they agree on the most
likely token. Needs pip install "burnish[quantize]".
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from functools import partial
from statistics import mean, median
from typing import Any

from workload import MeasuredRows, before_and_after, fingerprint, machine, ppo_task, prompts_of_length, write_results

KINDS = {"float32": None, "int8": "int8", "nf4": "nf4"}
NUM_TEXTS, TEXT_LENGTH = 32, 96  # of the comparison without training


def train(kind: str, settings: dict[str, Any]) -> dict[str, Any]:
    """One run of the demo."""
    from burnish import PPOTrainer
    from burnish.decoder.memory import peak_bytes

    config, prompts = ppo_task("sentiment", quantize=KINDS[kind], **settings)
    trainer = PPOTrainer(config)
    before, after, history = before_and_after(trainer, prompts)
    return {
        "before": before["reward"][0],
        "after": after["reward"],
        "kl": after["kl"],
        "first_ratio_error": max(step["first_ratio_error"] for step in history),
        "seconds": round(median(step["seconds"] for step in history[1:]), 2),  # the first one reads all prompts
        "base_mb": round(trainer.memory_report()[0][1]),
        "peak_gb": round(peak_bytes() / 1e9, 2),
    }


def compare(kind: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The stored base against the one in float32, each by its own forward pass."""
    import torch

    from burnish.base_setup.base_setup import load_model, load_tokenizer
    from burnish.maths import exact_kl

    plain, stored = (ppo_task("sentiment", quantize=way, **settings)[0] for way in (None, KINDS[kind]))
    tokenizer, models = load_tokenizer(plain), [load_model(config).eval() for config in (plain, stored)]
    kl: list[float] = []
    agreed: list[float] = []
    for text in prompts_of_length((TEXT_LENGTH, TEXT_LENGTH), NUM_TEXTS):
        ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
        with torch.no_grad():
            own, theirs = (model(ids).logits[0].float().log_softmax(-1) for model in models)
        kl += exact_kl(own, theirs).tolist()
        agreed += (own.argmax(-1) == theirs.argmax(-1)).float().tolist()
    return {"kl_of_base": round(mean(kl), 5), "agreed": round(mean(agreed), 4)}


def in_fresh_process(what: str, kind: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Its memory is its own."""
    job = [sys.executable, __file__, "--job", json.dumps([what, kind, settings])]
    return json.loads(subprocess.run(job, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="instead of the demo's")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        what, kind, settings = json.loads(options.job)
        print(json.dumps((train if what == "train" else compare)(kind, settings)))
        return
    measured = MeasuredRows("quantised")
    fewer = {} if options.steps is None else {"steps": options.steps}
    rows, gaps = [], []
    for kind in KINDS:
        job = fingerprint([ppo_task("sentiment", quantize=KINDS[kind])[0].model_name, NUM_TEXTS, TEXT_LENGTH])
        if KINDS[kind] is not None:
            gaps.append(measured.row({"base": kind, "job": job}, partial(in_fresh_process, "compare", kind, fewer)))
    for seed in range(options.seeds):
        for kind in KINDS:
            settings = fewer | {"seed": seed}
            job = fingerprint(ppo_task("sentiment", quantize=KINDS[kind], **settings)[0].model_dump(mode="json"))
            key = {"kind": kind, "seed": seed, "job": job}
            rows.append(measured.row(key, partial(in_fresh_process, "train", kind, settings)))
    summary = {
        kind: {
            "after": round(mean(r["after"][0] for r in rows if r["kind"] == kind), 3),
            "seconds": round(mean(r["seconds"] for r in rows if r["kind"] == kind), 2),
            "peak_gb": round(mean(r["peak_gb"] for r in rows if r["kind"] == kind), 2),
        }
        for kind in KINDS
    }
    write_results("quantised", {"machine": machine(), "rows": rows, "gaps": gaps, "summary": summary})
    measured.forget()


if __name__ == "__main__":
    main()
