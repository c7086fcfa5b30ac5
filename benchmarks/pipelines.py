"""What the pipeline benchmarks share: one run from data to verdict as a row, and the rows of all seeds as a table."""

from __future__ import annotations

import json
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table

from burnish import PolicyModel, PPOTrainer
from burnish.config.pipeline_config import PipelineConfig
from burnish.data.records import reference_of
from burnish.evaluation.intervals import half_interval
from burnish.evaluation.measure import evaluate
from burnish.runs.run import Run
from burnish.stages.pipeline import run_pipeline
from burnish.stages.stage import STAGES
from workload import MeasuredRows, fingerprint, machine, write_results

Configure = Callable[[Namespace, Path, int], PipelineConfig]
"""The pipeline of one seed, with its data written to the folder."""

# For any recipe against a learned reward.
PPO: dict[str, Any] = {
    "best_of": 4,
    "batch_size": 64,
    "mini_batch_size": 16,
    "epochs": 2,
    "temperature": 1.0,
    "kl_coef": 0.05,
    "learning_rate": 0.002,
    "overlong_tokens": 8,
}
MEASURES = ("reward", "second_reward", "rouge_l", "kl", "tokens")


def measure_seeds(name: str, parser: ArgumentParser, configure: Configure, first_seed: int) -> None:
    """The whole benchmark: every seed from data to verdict, the table, the results. Settings were chosen on seeds below
    the first.
    """
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=first_seed)
    options = parser.parse_args()
    size = {k: v for k, v in vars(options).items() if k not in ("data", "seeds", "first_seed")}
    measured = MeasuredRows(name)
    rows = []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            config = configure(options, Path(folder), seed)
            stages = [stage for stage in (config.sft, config.reward_model, config.ppo) if stage]
            settings = [stage.model_dump(mode="json") for stage in stages]
            data = [repr(STAGES[stage.stage].load(stage)) for stage in stages]
            job = fingerprint(json.dumps([size, settings, data]).replace(folder, ""))  # each start has its own folder
            rows.append(measured.row({"seed": seed, "job": job}, partial(_run, config)))
    Console(width=120).print(_table(rows))
    summary = {
        "reward": [[round(r[side]["reward"]["mean"], 3) for side in ("start", "tuned")] for r in rows],
        "outcomes": [r["outcome"] for r in rows],
    }
    write_results(name, {"machine": machine(), "rows": rows, "summary": summary})
    measured.forget()


def write(file: Path, rows: list[dict[str, Any]]) -> str:
    file.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return str(file)


def _run(config: PipelineConfig) -> dict[str, Any]:
    run = run_pipeline(config, Console(width=100))
    verdict = run.read("verdict.json")
    row: dict[str, Any] = {
        key: verdict[key] for key in ("outcome", "win_rate", "win_rate_by_second_reward", "best_of_n", "habits")
    }
    for side in ("start", "tuned"):
        row[side] = {m: verdict[side][m] for m in MEASURES if m in verdict[side]}
    row["curve"] = [[r["step"], round(r["reward"], 3), round(r["kl"], 2)] for r in run.read_lines("metrics.jsonl")]
    if config.sft is not None:
        sft = Run.open(config.folder / "sft").read("result.json")
        row["sft_loss"] = [sft["loss_before"], sft["loss_after"]]
        trainer = PPOTrainer(config.ppo)
        held_out = STAGES["ppo"].load(config.ppo).held_out
        base = PolicyModel(trainer.base, None, config.ppo.temperature)
        answered = evaluate(trainer, held_out, base).as_dict()
        row["base"] = {m: answered[m] for m in MEASURES if m in answered}
        references = [str(reference_of(prompt)) for prompt in held_out]
        scores = [float(score) for score in trainer.reward_computer.compute_rewards(held_out, references).totals]
        row["references"] = {"mean": mean(scores), "half_interval_95": half_interval(scores)}
    if config.reward_model is not None:
        reward = Run.open(config.folder / "reward").read("result.json")
        row["reward_model"] = {k: v for k, v in reward.get("report", {}).items() if k != "mistakes"}  # they quote data
        row["score_correlation"] = reward.get("score_correlation")
    return row


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table("seed", "reward", "second reward", "KL", "tokens", "won by reward", "by second", "outcome")
    for r in rows:
        start, tuned = r["start"], r["tuned"]
        table.add_row(
            f"{r['seed']}",
            *(f"{start[m]['mean']:.2f} {tuned[m]['mean']:.2f}" for m in ("reward", "second_reward")),
            f"{tuned['kl']['mean']:.1f}",
            f"{start['tokens']['mean']:.0f} {tuned['tokens']['mean']:.0f}",
            *(f"{r[w]['rate']:.0%}" for w in ("win_rate", "win_rate_by_second_reward")),
            r["outcome"],
        )
    return table
