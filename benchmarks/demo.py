"""The demo, from its texts to its verdict, over seeds that its settings were not chosen on.

    python benchmarks/demo.py [--seeds 3]
    python benchmarks/demo.py --seeds 1 --first-seed 0 --ppo kl_coef=0.2 steps=12     # with other settings

SFT, reward model and PPO of `burnish demo`, on its held-out posts. Beside what the verdict says: what the reward model
thinks of the authors' own summaries. Prints a table and, last, one JSON line; stopped, it goes on with the seed where
it was.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from pathlib import Path

import yaml

from burnish.config.pipeline_config import PipelineConfig, pipeline_config
from burnish.stages.demo import demo_settings
from pipelines import measure_seeds


def configure(options: Namespace, folder: Path, seed: int) -> PipelineConfig:
    settings = demo_settings("tldr")
    settings["model"]["seed"] = seed
    settings["ppo"] |= {key: yaml.safe_load(value) for key, value in (own.split("=") for own in options.ppo)}
    return pipeline_config(settings, folder / "run")


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument(
        "--ppo", nargs="+", default=[], metavar="KEY=VALUE", help="settings to try in place of the demo's"
    )
    measure_seeds("demo", parser, configure, first_seed=43)
