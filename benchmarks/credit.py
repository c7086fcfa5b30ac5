"""How far the credit of tokens may be trusted: four ways to learn the sentiment demo, against what continuations earn.

    python benchmarks/credit.py [--seeds 3] [--steps 10]      # stopped, it goes on where it was

Each way trains a short run. Then, at a few tokens of one response to each held-out opening, the tuned policy continues
many times from the state before and after the token; the mean of what these continuations earn is what values, TD
errors and advantages are compared with. Everything else is the demo's: openings, rule, responses per step, sampling.
"""

from __future__ import annotations

import argparse
from functools import partial
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table

from burnish import PPOTrainer
from burnish.config import TrainConfig
from burnish.evaluation.credit import measure_credit
from burnish.evaluation.measure import evaluate
from burnish.show.credit import CREDITED
from burnish.stages.demo import demo_settings
from burnish.stages.stage import STAGES
from workload import MeasuredRows, fingerprint, machine, write_results

DEMO = demo_settings("sentiment")
CRITIC = {key: DEMO.pop(key) for key in ("lam", "value_learning_rate")}  # refused where there is no value model
WAYS: dict[str, dict[str, Any]] = {
    "ppo": CRITIC,
    "ppo, warmed value model": CRITIC | {"value_warmup_steps": 1, "value_warmup_epochs": 8, "value_epochs": 4},
    "tether": {"recipe": "tether", "value_learning_rate": CRITIC["value_learning_rate"]},
    "rloo": {"recipe": "rloo"},
}


def configure(way: str, seed: int, steps: int) -> TrainConfig:
    return TrainConfig(**DEMO | WAYS[way] | {"seed": seed, "steps": steps})


def measure(config: TrainConfig, num_prompts: int, positions: int, continuations: int) -> dict[str, Any]:
    prompts = STAGES["ppo"].load(config)
    trainer = PPOTrainer(config)
    trainer.generator.agree_on_invocation([*prompts.train, *prompts.held_out])
    history = trainer.train(prompts.train)
    credit = measure_credit(trainer, prompts.held_out[:num_prompts], positions, continuations)
    found = credit.as_dict()
    return {
        "reward": evaluate(trainer, prompts.held_out).table()["reward"],
        "explained_variance": [round(s["explained_variance"], 3) for s in history if "explained_variance" in s],
        "agreements": found["agreements"],
        "foreseeable": found["foreseeable"],
    }


def shown(rows: list[dict[str, Any]]) -> Table:
    table = Table("way", "seed", "reward", *CREDITED.values(), title="correlation with what continuations earned")
    for row in rows:
        found = [row["agreements"].get(column) for column in CREDITED]
        cells = [f"{f['correlation']:.2f} ({f['low']:.2f} to {f['high']:.2f})" if f else "" for f in found]
        table.add_row(row["way"], f"{row['seed']}", f"{row['reward'][0]:.2f}", *cells)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--positions", type=int, default=4)
    parser.add_argument("--continuations", type=int, default=16)
    options = parser.parse_args()
    sizes = (options.prompts, options.positions, options.continuations)
    measured = MeasuredRows("credit")
    rows = []
    for seed in range(options.seeds):
        for way in WAYS:
            config = configure(way, seed, options.steps)
            key = {"way": way, "seed": seed, "job": fingerprint([config.model_dump(mode="json"), sizes])}
            rows.append(measured.row(key, partial(measure, config, *sizes)))
    Console(width=120).print(shown(rows))
    summary = {
        way: {
            column: round(mean(r["agreements"][column]["correlation"] for r in own), 2)
            for column in CREDITED
            if column in own[0]["agreements"]
        }
        for way in WAYS
        if (own := [r for r in rows if r["way"] == way])
    }
    write_results("credit", {"machine": machine(), "rows": rows, "summary": summary})
    measured.forget()


if __name__ == "__main__":
    main()
