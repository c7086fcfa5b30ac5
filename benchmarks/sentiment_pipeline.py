"""PPO against a reward that was learned from real sentiment labels, and its verdict, over seeds.

    python benchmarks/sentiment_pipeline.py DATA [--seeds 3] [--scores 1500] [--steps 10]

DATA holds sentiment/train.jsonl (text, label) and sentiment/openings.jsonl (prompt). The reward model learns the
labels as scores; PPO continues openings, cut to as few words as the reward model's own prompts have: what a long
opening says would outweigh what is added to it. VADER's lexicon, which nothing trains on, is the second opinion.
SmolLM2-135M. Prints a table and, last, one JSON line; stopped, it goes on with the seed where it was.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from pathlib import Path

from burnish.config.pipeline_config import PipelineConfig, pipeline_config
from burnish.stages.demo import demo_settings
from pipelines import LEARNING_RATE, PPO, measure_seeds, write
from reward_model import COMMON, OPENING_WORDS, scored_sentences
from workload import read_rows

SENTIMENT = demo_settings("sentiment")
MODEL = {key: SENTIMENT[key] for key in ("model_name", "lora_layers", "lora_dropout", "prompt_cache_mb")}


def configure(options: Namespace, folder: Path, seed: int) -> PipelineConfig:
    folder_in = options.data / "sentiment"
    scores = [vars(s) for s in scored_sentences(folder_in / "train.jsonl")[: options.scores]]
    words = [row["prompt"].split()[:OPENING_WORDS] for row in read_rows(folder_in / "openings.jsonl")]
    openings = [{"prompt": opening} for opening in dict.fromkeys(map(" ".join, words))]
    return pipeline_config(
        {
            # As the demo's sentiment task, but for the reward.
            "model": MODEL | {"adapter_scope": SENTIMENT["adapter_scope"], "seed": seed},
            "reward_model": {
                "scores": write(folder / "scores.jsonl", scores),
                "num_eval_prompts": 100,
                "max_new_tokens": 48,
                "epochs": 1,
                "batch_size": COMMON["batch_size"],
                "learning_rate": COMMON["learning_rate"],
            },
            "ppo": PPO
            | {
                "prompts": write(folder / "openings.jsonl", openings),
                "num_eval_prompts": 64,
                "max_new_tokens": SENTIMENT["max_new_tokens"],
                "temperature": 1.0,
                "eval_reward": "sentiment",
                "learning_rate": LEARNING_RATE,
                "steps": options.steps,
            },
        },
        folder / "run",
    )


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--scores", type=int, default=1500)
    parser.add_argument("--steps", type=int, default=10)
    measure_seeds("sentiment_pipeline", parser, configure)
