"""SFT, reward model, PPO and verdict on real TL;DR posts of real length, over seeds.

    python benchmarks/tldr_pipeline.py DATA [--seeds 3] [--demonstrations 256] [--steps 16]

DATA holds tldr/{train,valid}.jsonl (prompt, completion). SFT learns from the authors' summaries. There are no human
choices for these posts, so the reward model learns to tell the author's own summary from one of similar length that
another author wrote: it must read the post to do so. RLOO is measured on valid posts only; the TL;DR rule and ROUGE-L
to the author's summary are second opinions that it never sees. SmolLM2-135M. Prints a table and, last, one JSON line;
stopped, it goes on with the seed where it was.
"""

from __future__ import annotations

import random
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from pathlib import Path

from burnish.config.pipeline_config import PipelineConfig, pipeline_config
from burnish.stages.demo import demo_settings
from pipelines import PPO, measure_seeds, write
from workload import read_rows

TLDR = demo_settings("tldr")
# As the demo, but for room: these posts and answers are longer.
MODEL = TLDR["model"] | {"max_new_tokens": 48, "prompt_cache_mb": 6144}


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
    train = read_rows(options.data / "tldr" / "train.jsonl")[: options.demonstrations]
    valid = read_rows(options.data / "tldr" / "valid.jsonl")[: options.held_out]
    train_file, valid_file = write(folder / "train.jsonl", train), write(folder / "valid.jsonl", valid)
    return pipeline_config(
        {
            "model": MODEL | {"seed": seed},
            "sft": TLDR["sft"] | {"demonstrations": train_file, "eval_demonstrations": valid_file, "epochs": 1},
            "reward_model": TLDR["reward_model"]
            | {
                "batch_size": 8,
                "max_new_tokens": 60,
                "preferences": write(folder / "pairs.jsonl", swapped(train, seed)),
                "eval_preferences": write(folder / "valid_pairs.jsonl", swapped(valid, seed)),
                "epochs": 2,
            },
            "ppo": PPO
            | {
                "eval_reward": "tldr",
                "prompts": train_file,
                "eval_prompts": valid_file,
                "fields": {"reference": "completion"},
                "recipe": "rloo",
                "steps": options.steps,
            },
        },
        folder / "run",
    )


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--demonstrations", type=int, default=256)
    parser.add_argument("--held-out", type=int, default=64)
    parser.add_argument("--steps", type=int, default=16)
    measure_seeds("tldr_pipeline", parser, configure, first_seed=20)
