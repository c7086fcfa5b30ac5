"""SFT, reward model, PPO and verdict on real TL;DR posts of real length, over seeds.

    python benchmarks/tldr_pipeline.py DATA [--seeds 3] [--demonstrations 600] [--steps 20]

DATA holds tldr/{train,valid}.jsonl (prompt, completion). SFT learns from the authors' summaries. There are no human
choices for these posts, so the reward model learns to tell the author's own summary from that of another post in the
same length (it must read the post to do so) and from the SFT model's sample. PPO is measured on valid posts only;
ROUGE-L to the author's summary and the TL;DR rule are the second opinions that it never sees. SmolLM2-135M.
Prints a table and, last, one JSON line.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from burnish.base_setup import EMBEDDED_NAME
from burnish.config.pipeline_config import pipeline_config
from burnish.runs import Run
from burnish.stages.pipeline import run_pipeline
from workload import machine, write_results

MODEL = {
    "model_name": EMBEDDED_NAME,
    "lora_layers": 10,
    "lora_dropout": 0.0,
    "chat_template": True,
    "system_prompt": "Tell in one short sentence what happened in the post.",
    "max_new_tokens": 48,
    "prompt_cache_mb": 2048,
}
LONGEST_POST = 2200  # characters; about 500 tokens


def read(file: Path, how_many: int) -> list[dict[str, str]]:
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [r for r in rows if len(r["prompt"]) <= LONGEST_POST][:how_many]


def swapped(rows: list[dict[str, str]], seed: int) -> list[dict[str, str]]:
    """Each post with its author's summary, and with the summary of similar length of another post."""
    draw = random.Random(seed)
    by_length = sorted(rows, key=lambda r: len(r["completion"]))
    pairs = []
    for place, row in enumerate(by_length):
        near = by_length[max(place - 5, 0) : place] + by_length[place + 1 : place + 6]
        pairs.append(
            {"prompt": row["prompt"], "chosen": row["completion"], "rejected": draw.choice(near)["completion"]}
        )
    return pairs


def write(file: Path, rows: list[dict[str, Any]]) -> str:
    file.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return str(file)


def measure(data: Path, folder: Path, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """One seed from data to verdict."""
    train = read(data / "tldr" / "train.jsonl", options.demonstrations)
    valid = read(data / "tldr" / "valid.jsonl", options.held_out)
    prompts = [{"prompt": r["prompt"], "reference": r["completion"]} for r in train[: options.prompts]]
    held_out = [{"prompt": r["prompt"], "reference": r["completion"]} for r in valid]
    files = {
        "train": write(folder / "train.jsonl", train),
        "valid": write(folder / "valid.jsonl", valid),
        "pairs": write(folder / "pairs.jsonl", swapped(train, seed)),
        "valid_pairs": write(folder / "valid_pairs.jsonl", swapped(valid, seed)),
        "prompts": write(folder / "prompts.jsonl", prompts),
        "held_out": write(folder / "held_out.jsonl", held_out),
    }
    config = pipeline_config(
        {
            "model": MODEL | {"seed": seed},
            "sft": {
                "demonstrations": files["train"],
                "eval_demonstrations": files["valid"],
                "epochs": 1,
                "learning_rate": 5e-4,
            },
            "reward_model": {
                "preferences": files["pairs"],
                "eval_preferences": files["valid_pairs"],
                "epochs": 2,
                "learning_rate": 5e-4,
            },
            "ppo": {
                "prompts": files["prompts"],
                "eval_prompts": files["held_out"],
                "eval_reward": "tldr",
                "value_from_reward": True,
                "steps": options.steps,
                "batch_size": 32,
                "mini_batch_size": 16,
                "epochs": 2,
                "gamma": 1.0,
                "temperature": 0.7,
                "kl_coef": 0.05,
                "learning_rate": 1e-3,
                "value_learning_rate": 1e-3,
            },
        },
        folder / "run",
    )
    started = time.perf_counter()
    run = run_pipeline(config, Console(width=100))
    verdict = run.read("verdict.json")
    sft, reward = (Run.open(config.folder / stage).read("result.json") for stage in ("sft", "reward"))
    measures = ("reward", "second_reward", "rouge_l", "kl", "tokens")
    return {
        "seed": seed,
        "sft_loss": [sft["loss_before"], sft["loss_after"]],
        "reward_accuracy": reward["report"]["accuracy"],
        "reward_accuracy_interval": reward["report"]["accuracy_interval"],
        "outcome": verdict["outcome"],
        "win_rate": verdict["win_rate"],
        "win_rate_by_second_reward": verdict["win_rate_by_second_reward"],
        "best_of_n": verdict["best_of_n"],
        **{side: {m: verdict[side][m] for m in measures} for side in ("start", "tuned")},
        "curve": [[r["step"], round(r["reward"], 3), round(r["kl"], 2)] for r in run.read_lines("metrics.jsonl")],
        "seconds": time.perf_counter() - started,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--demonstrations", type=int, default=600)
    parser.add_argument("--prompts", type=int, default=192)
    parser.add_argument("--held-out", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    rows = []
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(options.data, Path(folder), options, seed))
        print(json.dumps(rows[-1]), flush=True)

    table = Table("seed", "SFT loss", "reward acc.", "reward", "rule", "ROUGE-L", "KL", "wins", "outcome", "minutes")
    for r in rows:
        before_after = [f"{r['start'][m]['mean']:.2f} {r['tuned'][m]['mean']:.2f}" for m in ("reward", "second_reward")]
        table.add_row(
            f"{r['seed']}",
            "{:.2f} {:.2f}".format(*r["sft_loss"]),
            f"{r['reward_accuracy']:.0%}",
            *before_after,
            f"{r['start']['rouge_l']['mean']:.3f} {r['tuned']['rouge_l']['mean']:.3f}",
            f"{r['tuned']['kl']['mean']:.1f}",
            f"{r['win_rate']['rate']:.0%}",
            r["outcome"],
            f"{r['seconds'] / 60:.0f}",
        )
    Console(width=120).print(table)
    summary = {
        "reward": [[r["start"]["reward"]["mean"], r["tuned"]["reward"]["mean"]] for r in rows],
        "rouge_l": [[r["start"]["rouge_l"]["mean"], r["tuned"]["rouge_l"]["mean"]] for r in rows],
        "outcomes": [r["outcome"] for r in rows],
    }
    write_results("tldr_pipeline", {"machine": machine(), "rows": rows, "summary": summary})


if __name__ == "__main__":
    main()
