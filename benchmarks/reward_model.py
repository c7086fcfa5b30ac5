"""How good are reward models on real judgements? Against what costs nothing, with intervals, over seeds.

    python benchmarks/reward_model.py DATA [--sets instructions qa sentiment] [--seeds 3] [--rows 400]

DATA holds preferences/instructions_{train,valid}.jsonl and preferences/qa_{train,valid}.jsonl (prompt, chosen,
rejected), and sentiment/{train,valid}.jsonl (text, label). Sentiment is learned from scores: a sentence's first words
are the prompt, the rest is the answer, its label the score; valid sentences, positive against negative, are the pairs.
SmolLM2-135M, adapters on the top third of the layers unless told otherwise. Prints a table and, last, one JSON line;
stopped, it goes on where it was.
"""

from __future__ import annotations

import argparse
import random
import time
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from burnish.base_setup.embedded import EMBEDDED_NAME
from burnish.config import RewardModelConfig
from burnish.data import Preference, Scored, load_preferences, prompts_of
from burnish.evaluation.intervals import clustered_share_interval
from burnish.supervised.reward_report import reward_report
from burnish.supervised.reward_trainer import RewardTrainer
from workload import MeasuredRows, fingerprint, machine, read_rows, write_results

OPENING_WORDS = 5
ROWS = 400
COMMON: dict[str, Any] = {
    "model_name": EMBEDDED_NAME,
    "batch_size": 8,
    "learning_rate": 1e-3,
    "lora_dropout": 0.0,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "instructions": {"max_new_tokens": 160, "epochs": 1, "preferences": "-", "chat_template": True},
    "qa": {"max_new_tokens": 200, "epochs": 1, "preferences": "-", "chat_template": True},
    "sentiment": {"max_new_tokens": 48, "epochs": 1, "scores": "-"},
}


def preferences(folder: Path, name: str) -> tuple[list[Any], list[Preference]]:
    files = (folder / "preferences" / f"{name}_{part}.jsonl" for part in ("train", "valid"))
    train, valid = map(load_preferences, files)
    return train.records, valid.records


def sentiment(folder: Path) -> tuple[list[Any], list[Preference]]:
    """Scored training sentences, and pairs of held-out ones: a positive and a negative, drawn at random."""
    train, valid = (scored_sentences(folder / "sentiment" / f"{part}.jsonl") for part in ("train", "valid"))
    draw = random.Random(0)
    good, bad = ([s for s in valid if s.score == label] for label in (1.0, 0.0))
    draw.shuffle(good)
    draw.shuffle(bad)
    # A pair has one prompt: the negative sentence's end is judged behind the positive one's beginning, and the
    # beginnings are the same kind of text. What is compared is the two ends.
    return train, [Preference(g.prompt, g.response, b.response) for g, b in zip(good, bad, strict=False)]


def scored_sentences(file: Path) -> list[Scored]:
    """Each sentence as opening and answer, its label as score."""
    rows = [r for r in read_rows(file) if len(r["text"].split()) > OPENING_WORDS + 2]
    return [Scored(*_halves(r["text"]), float(r["label"])) for r in rows]


def _halves(text: str) -> tuple[str, str]:
    parts = text.split()
    return " ".join(parts[:OPENING_WORDS]), " " + " ".join(parts[OPENING_WORDS:])


def measure(train: list[Any], valid: list[Preference], settings: dict[str, Any]) -> dict[str, Any]:
    """One reward model, trained and judged."""
    started = time.perf_counter()
    trainer = RewardTrainer(RewardModelConfig(**settings))
    trainer.invocation.agree(prompts_of([*train, *valid]))
    trainer.train(train)
    seconds = time.perf_counter() - started
    prompts = prompts_of(valid)
    chosen = trainer.scores(prompts, [p.chosen for p in valid])
    rejected = trainer.scores(prompts, [p.rejected for p in valid])
    pairs = [p for p in train if isinstance(p, Preference)] or _pairs_of(train)
    report = reward_report(pairs, valid, chosen, rejected, trainer.spread).as_dict()
    report.pop("mistakes")  # they quote the data
    right = [int(c > r) for c, r in zip(chosen, rejected, strict=True)]
    return report | {"right": right, "seconds": round(seconds), "num_train": len(train)}


def _pairs_of(scored: list[Scored]) -> list[Preference]:
    """For counting words, which learns from pairs: good answers beside bad ones."""
    good, bad = ([s for s in scored if s.score == label] for label in (1.0, 0.0))
    return [Preference(g.prompt, g.response, b.response) for g, b in zip(good, bad, strict=False)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--sets", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=10, help="adapters on this many top layers")
    parser.add_argument("--rows", type=int, default=ROWS, help="train on at most this many pairs; scores: four times")
    options = parser.parse_args()
    results = "reward_model" if options.rows == ROWS else "reward_model_more"
    measured = MeasuredRows(results)
    rows: list[dict[str, Any]] = []
    prompts: dict[str, list[str]] = {}
    for name in options.sets:
        train, valid = sentiment(options.data) if name == "sentiment" else preferences(options.data, name)
        random.Random(0).shuffle(train)
        train = train[: options.rows * (4 if name == "sentiment" else 1)]
        prompts[name] = prompts_of(valid)
        for seed in range(options.seeds):
            settings = COMMON | SETTINGS[name] | {"lora_layers": options.layers, "seed": seed}
            key = {"set": name, "seed": seed, "job": fingerprint([settings, len(train)])}
            rows.append(measured.row(key, partial(measure, train, valid, settings)))

    table = Table(
        "set", "pairs", "accuracy (95 %)", "longer wins", "counting words", "calibration", "length", "seconds"
    )
    summary: dict[str, dict[str, Any]] = {}
    for name in options.sets:
        mine = [r for r in rows if r["set"] == name]
        accuracy, pairs = fmean(r["accuracy"] for r in mine), mine[0]["num_pairs"]
        low, high = clustered_share_interval(
            list(map(fmean, zip(*(r["right"] for r in mine), strict=True))), prompts[name]
        )
        summary[name] = {
            "accuracy": round(accuracy, 3),
            "interval": [round(low, 3), round(high, 3)],
            "by_seed": [round(r["accuracy"], 3) for r in mine],
            "longer_wins": round(mine[0]["longer_wins"], 3),
            "bag_of_words": round(mine[0]["bag_of_words"], 3),
        }
        table.add_row(
            name,
            f"{pairs}",
            f"{accuracy:.1%} ({low:.1%} to {high:.1%})",
            f"{mine[0]['longer_wins']:.1%}",
            f"{mine[0]['bag_of_words']:.1%}",
            f"{fmean(r['calibration_error'] for r in mine):.2f}",
            f"{fmean(r['length_correlation'] for r in mine):+.2f}",
            f"{fmean(r['seconds'] for r in mine):.0f}",
        )
    Console(width=120).print(table)
    write_results(results, {"machine": machine(), "rows": rows, "summary": summary})
    measured.forget()


if __name__ == "__main__":
    main()
