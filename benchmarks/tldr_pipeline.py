"""SFT, reward model, PPO and verdict on real TL;DR posts of real length, over seeds.

    python benchmarks/tldr_pipeline.py DATA [--seeds 3] [--demonstrations 256] [--steps 12]

DATA holds tldr/{train,valid}.jsonl (prompt, completion). SFT learns from the authors' summaries. There are no human
choices for these posts, so the reward model learns to tell the author's own summary from one of similar length that
another author wrote: it must read the post to do so. PPO is measured on valid posts only; the TL;DR rule and ROUGE-L
to the author's summary are second opinions that it never sees. SmolLM2-135M. Prints a table and, last, one JSON line;
stopped, it goes on with the seed where it was.
"""

from __future__ import annotations

import random
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from pathlib import Path

from burnish.config.pipeline_config import PipelineConfig, pipeline_config
from burnish.demo import TLDR
from pipelines import measure_seeds, write
from workload import read_rows

MODEL = TLDR["model"] | {"max_new_tokens": 48, "prompt_cache_mb": 6144}
LONGEST_POST = 2200  # characters; about 500 tokens


def read(file: Path, how_many: int) -> list[dict[str, str]]:
    return [r for r in read_rows(file) if len(r["prompt"]) <= LONGEST_POST][:how_many]


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


def configure(options: Namespace, folder: Path, seed: int) -> PipelineConfig:
    train = read(options.data / "tldr" / "train.jsonl", options.demonstrations)
    valid = read(options.data / "tldr" / "valid.jsonl", options.held_out)
    train_file, valid_file = write(folder / "train.jsonl", train), write(folder / "valid.jsonl", valid)
    return pipeline_config(
        {
            "model": MODEL | {"seed": seed},
            "sft": {
                "demonstrations": train_file,
                "eval_demonstrations": valid_file,
                "epochs": 2,
                "learning_rate": 5e-4,
            },
            "reward_model": {
                "preferences": write(folder / "pairs.jsonl", swapped(train, seed)),
                "eval_preferences": write(folder / "valid_pairs.jsonl", swapped(valid, seed)),
                "epochs": 3,
                "learning_rate": 5e-4,
            },
            "ppo": {
                "prompts": train_file,
                "eval_prompts": valid_file,
                "fields": {"reference": "completion"},
                "eval_reward": "tldr",
                "value_from_reward": True,
                "steps": options.steps,
                "batch_size": 32,
                "mini_batch_size": 16,
                "epochs": 2,
                "gamma": 1.0,
                "lam": 1.0,
                "temperature": 0.7,
                "kl_coef": 0.05,
                "learning_rate": 1e-3,
                "value_learning_rate": 1e-3,
            },
        },
        folder / "run",
    )


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--demonstrations", type=int, default=256)
    parser.add_argument("--held-out", type=int, default=64)
    parser.add_argument("--steps", type=int, default=12)
    measure_seeds("tldr_pipeline", parser, configure)
