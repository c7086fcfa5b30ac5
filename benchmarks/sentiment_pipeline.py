"""PPO against a reward that was learned from real sentiment labels, and its verdict, over seeds.

    python benchmarks/sentiment_pipeline.py DATA [--seeds 3] [--scores 2000] [--steps 12]

DATA holds sentiment/train.jsonl (text, label) and sentiment/openings.jsonl (prompt). The reward model learns the
labels as scores; PPO continues the openings; VADER's lexicon, which nothing trains on, is the second opinion.
SmolLM2-135M. Prints a table and, last, one JSON line; stopped, it goes on with the seed where it was.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from pathlib import Path

from burnish.config.pipeline_config import PipelineConfig, pipeline_config
from burnish.demo import MODEL, PPO, SENTIMENT
from pipelines import measure_seeds, write
from reward_model import scored_sentences


def configure(options: Namespace, folder: Path, seed: int) -> PipelineConfig:
    folder_in = options.data / "sentiment"
    scores = [vars(s) for s in scored_sentences(folder_in / "train.jsonl")[: options.scores]]
    task = {k: v for k, v in SENTIMENT.items() if k != "reward"}  # the learned one alone
    return pipeline_config(
        {
            "model": MODEL | {"seed": seed},
            "reward_model": {
                "scores": write(folder / "scores.jsonl", scores),
                "max_new_tokens": 48,
                "adapter_scope": "sequence",
                "epochs": 1,
                "batch_size": 8,
                "learning_rate": 1e-3,
            },
            "ppo": PPO
            | task
            | {
                "prompts": str(folder_in / "openings.jsonl"),
                "num_eval_prompts": 64,
                "eval_reward": "sentiment",
                "steps": options.steps,
                "kl_coef": 0.05,
            },
        },
        folder / "run",
    )


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--scores", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=12)
    measure_seeds("sentiment_pipeline", parser, configure)
