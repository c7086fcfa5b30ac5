"""RLOO against a reward that was learned from real sentiment labels, and its verdict, over seeds.

    python benchmarks/sentiment_pipeline.py DATA [--seeds 3] [--scores 3500] [--steps 24]

DATA holds sentiment/train.jsonl (text, label) and sentiment/openings.jsonl (prompt). The reward model learns the
labels as scores, of texts like those that it will judge: endings are cut to about the length of an answer, and the
openings to be continued have as few words as the reward model's own prompts. VADER's lexicon, which nothing trains on,
is the second opinion. SmolLM2-135M. Prints a table and, last, one JSON line; stopped, it goes on with the seed where it
was.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from dataclasses import replace
from pathlib import Path

from burnish.config.pipeline_config import PipelineConfig, pipeline_config
from burnish.stages.demo import demo_settings
from pipelines import PPO, measure_seeds, write
from reward_model import COMMON, OPENING_WORDS, scored_sentences
from workload import read_rows

SENTIMENT = demo_settings("sentiment")
ENDING_WORDS = 14  # about as long as an answer
MODEL = {key: SENTIMENT[key] for key in ("model_name", "lora_layers", "lora_dropout", "prompt_cache_mb")}


def configure(options: Namespace, folder: Path, seed: int) -> PipelineConfig:
    folder_in = options.data / "sentiment"
    sentences = scored_sentences(folder_in / "train.jsonl")[: options.scores]
    scores = [vars(replace(s, response=" " + " ".join(s.response.split()[:ENDING_WORDS]))) for s in sentences]
    words = [row["prompt"].split()[:OPENING_WORDS] for row in read_rows(folder_in / "openings.jsonl")]
    openings = [{"prompt": opening} for opening in dict.fromkeys(map(" ".join, words))]
    return pipeline_config(
        {
            # As the demo's sentiment task, but for the reward.
            "model": MODEL | {"adapter_scope": SENTIMENT["adapter_scope"], "seed": seed},
            "reward_model": {
                "scores": write(folder / "scores.jsonl", scores),
                "num_eval_prompts": 100,
                "max_new_tokens": 24,
                "epochs": 1,
                "batch_size": COMMON["batch_size"],
                "learning_rate": COMMON["learning_rate"],
            },
            "ppo": PPO
            | {
                "recipe": "rloo",
                "epochs": 1,
                "kl_in": "loss",  # in the reward it lets an answer gain by ending early
                "kl_estimator": "exact",
                "overlong_tokens": 0,  # an answer is as long as it may be
                "prompts": write(folder / "openings.jsonl", openings),
                "num_eval_prompts": 64,
                "max_new_tokens": SENTIMENT["max_new_tokens"],
                "eval_reward": "sentiment",
                "steps": options.steps,
            },
        },
        folder / "run",
    )


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--scores", type=int, default=3500)
    parser.add_argument("--steps", type=int, default=24)
    measure_seeds("sentiment_pipeline", parser, configure, first_seed=21)
