"""PPO beside what people pick instead, from the same demonstrations and judgements of real TL;DR posts.

    python benchmarks/alternatives.py DATA [--seeds 1] [--demonstrations 160] [--held-out 48] [--steps 8] ...

DATA holds tldr/{train,valid}.jsonl (prompt, completion). One SFT model and one reward model, made as in
tldr_pipeline.py, serve all: SFT alone, its best of 4 answers, rejection-sampling fine-tuning (SFT on the best of 4
answers to each training post), DPO (TRL 1.16.0, on the pairs that the reward model learned from), and RLOO, GRPO and
PPO with burnish. The SFT adapter acts everywhere and is merged into the base, so that every way starts from, and counts
its KL from, the very same model. DPO gets the time that PPO took, RLOO and GRPO twice its steps. (The first of PPO's
steps trains the value model alone.) On posts that nobody was trained on: the reward model's score, the TL;DR rule and
ROUGE-L to the author's summary, one sampled answer each. SmolLM2-135M. Stopped, it goes on where it was.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, load_peft_weights, set_peft_model_state_dict
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer

from burnish import PPOTrainer
from burnish.base_setup.embedded import embedded_model_folder
from burnish.config import RewardModelConfig, SFTConfig, TrainConfig
from burnish.config.stage_configs import RunConfig
from burnish.evaluation.evaluation import Evaluation
from burnish.evaluation.measure import EVAL_SEED, evaluate
from burnish.evaluation.paired import compare
from burnish.models.adapter_files import load_adapter
from burnish.rewards.parts import parts_of
from burnish.runs.run import Run
from burnish.stages.demo import CRITIC
from burnish.stages.stage import STAGES
from peer import run_side
from pipelines import PPO, write
from tldr_pipeline import MODEL, TLDR, swapped
from workload import MeasuredRows, fingerprint, machine, read_rows, write_results

NUM_ANSWERS = 4
RECIPES: dict[str, dict[str, Any]] = {
    "RLOO": {"recipe": "rloo"},
    "GRPO": {"recipe": "grpo"},
    "PPO": {"gamma": 1.0, "lam": 1.0} | CRITIC,
}
# Of the recipes. More than the pipelines': there the adapter starts from SFT's, here from nothing, and moves less at
# first.
LEARNING_RATE = 3e-3
RULE = parts_of("tldr")


class Start:
    """What all ways of a seed begin with: the posts, the SFT model merged into its base, and the reward model."""

    def __init__(self, options: Namespace, folder: Path, seed: int) -> None:
        self.options, self.folder, self.seed = options, folder, seed
        folder.mkdir(parents=True, exist_ok=True)
        self.train = read_rows(options.data / "tldr" / "train.jsonl")[: options.demonstrations]
        valid = read_rows(options.data / "tldr" / "valid.jsonl")[: options.held_out]
        self.pairs = swapped(self.train, seed)
        self.files = {
            "train": write(folder / "train.jsonl", self.train),
            "valid": write(folder / "valid.jsonl", valid),
            "pairs": write(folder / "pairs.jsonl", self.pairs),
            "valid_pairs": write(folder / "valid_pairs.jsonl", swapped(valid, seed)),
        }

    def settings(self, name: str, **own: Any) -> dict[str, Any]:
        return MODEL | {"seed": self.seed, "run_dir": str(self.folder), "run_name": name} | own

    def sft_config(self, name: str = "sft", **own: Any) -> SFTConfig:
        data = {"demonstrations": self.files["train"], "eval_demonstrations": self.files["valid"], "epochs": 1}
        return SFTConfig(**self.settings(name, **TLDR["sft"] | data | own))

    @cached_property
    def model(self) -> str:
        """The folder of the SFT model, as a base of its own."""
        target = self.folder / "start"
        if not target.is_dir():
            run = run_stage(self.sft_config(adapter_scope="sequence"))
            folder = embedded_model_folder()
            base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            merged = PeftModel.from_pretrained(base, run.folder / "adapters" / "sft").merge_and_unload()
            merged.save_pretrained(self.folder / "merging")
            AutoTokenizer.from_pretrained(folder).save_pretrained(self.folder / "merging")
            (self.folder / "merging").rename(target)
        return str(target)

    @cached_property
    def reward_model(self) -> str:
        data = {"preferences": self.files["pairs"], "eval_preferences": self.files["valid_pairs"]}
        sizes = {"model_name": self.model, "batch_size": 8, "max_new_tokens": 60, "epochs": 2}
        settings = self.settings("reward", **TLDR["reward_model"] | sizes | data, temperature=PPO["temperature"])
        return str(run_stage(RewardModelConfig(**settings)).folder)

    def trainer(self, **own: Any) -> PPOTrainer:
        """Its policy is the SFT model, and so is its reference."""
        data: dict[str, Any] = {"prompts": self.files["train"], "eval_prompts": self.files["valid"]}
        data |= {"fields": {"reference": "completion"}, "steps": self.options.steps}
        data |= {"batch_size": self.options.batch_size, "mini_batch_size": min(16, self.options.batch_size)}
        reward = [{"kind": "model", "path": self.reward_model}]
        given = PPO | {"model_name": self.model, "reward": reward, "learning_rate": LEARNING_RATE} | data | own
        config = TrainConfig(**self.settings("unused", **given))
        trainer = PPOTrainer(config)
        split = STAGES["ppo"].load(config)
        self.prompts, self.held_out = split.train, split.held_out
        trainer.generator.agree_on_invocation(split.everything)
        return trainer

    @cached_property
    def judge(self) -> PPOTrainer:
        """Answers and judges; nothing trains it."""
        return self.trainer(recipe="rloo")

    def scores(self, prompts: Sequence[str], texts: Sequence[str]) -> list[float]:
        """The reward model's, of texts: alike for answers of every way, whoever has generated them."""
        found: list[float] = []
        for first in range(0, len(texts), 32):
            part = slice(first, first + 32)
            rewards = self.judge.reward_computer.compute_rewards(prompts[part], texts[part])
            found += [float(total) for total in rewards.totals]
        return found

    def measured(self, trainer: PPOTrainer, seed: int = EVAL_SEED) -> Evaluation:
        """One answer of the trainer's policy to each held-out post, with the rule as its second reward."""
        answers = evaluate(trainer, self.held_out, None, trainer.reward_of(RULE), seed)
        return replace(answers, reward=self.scores(answers.prompts, answers.texts))


def run_stage(config: RunConfig) -> Run:
    stage = STAGES[config.stage]
    return stage.work(config, stage.load(config), Console(width=100))


# ------------------------------------------------------------------------------------------------------------ the ways

Way = Callable[[Start], tuple[Evaluation, float]]
"""Held-out answers, and the seconds that training took."""


def sft_alone(start: Start) -> tuple[Evaluation, float]:
    return start.measured(start.judge), 0.0


def best_of_n(start: Start) -> tuple[Evaluation, float]:
    """Nothing is trained; an answer costs as much as so many."""
    tries = [start.measured(start.judge, EVAL_SEED + k) for k in range(NUM_ANSWERS)]
    best = [max(tries, key=lambda t: t.reward[n]) for n in range(len(tries[0].reward))]
    chosen = {f.name: [getattr(own, f.name)[n] for n, own in enumerate(best)] for f in fields(Evaluation)}
    return Evaluation(**chosen | {"kl": []}), 0.0  # choosing is no policy of its own


def rejection_sampling(start: Start) -> tuple[Evaluation, float]:
    """SFT on the answers that the reward model likes best."""
    trainer, started = start.judge, time.perf_counter()
    draw = torch.Generator(trainer.base.device).manual_seed(start.seed)
    rows = []
    for first in range(0, len(start.prompts), 16):
        prompts = [p for p in start.prompts[first : first + 16] for _ in range(NUM_ANSWERS)]
        _, texts = trainer.generator.generate_sequences(prompts, draw)
        scores = start.scores(prompts, texts)
        for n in range(0, len(prompts), NUM_ANSWERS):
            best = max(range(n, n + NUM_ANSWERS), key=lambda k: scores[k])
            rows.append({"prompt": prompts[n], "completion": texts[best].strip()})
    file = write(start.folder / "best.jsonl", [row for row in rows if row["completion"]])
    run = run_stage(start.sft_config("rejection", demonstrations=file, model_name=start.model, epochs=2))
    seconds = time.perf_counter() - started
    learned = start.trainer(recipe="rloo")
    load_adapter(learned.base, "policy", run.folder / "adapters" / "sft")
    return start.measured(learned), seconds


def recipe(name: str, start: Start) -> tuple[Evaluation, float]:
    own = RECIPES[name]
    # A step of groups reads a quarter of the posts and has no value model, so it gets twice the steps.
    trainer = start.trainer(**own, steps=start.options.steps * (2 if "recipe" in own else 1))
    started = time.perf_counter()
    trainer.train(start.prompts)
    seconds = time.perf_counter() - started
    return start.measured(trainer), seconds


def dpo(rate: float, seconds: float, start: Start) -> tuple[Evaluation, float]:
    """TRL's, on the same pairs, for as long as PPO took."""
    learned = start.trainer(recipe="rloo", adapter_scope="sequence", reward="tldr")
    encoder, tokenizer = learned.generator.encoder, learned.base.tokenizer
    prompts = [tokenizer.decode(ids) for ids in encoder.encode([pair["prompt"] for pair in start.pairs])]
    assert learned.base.peft_model is not None
    shape = learned.base.peft_model.peft_config["policy"]
    job = {
        "model": start.model,
        "pairs": [pair | {"prompt": prompt} for pair, prompt in zip(start.pairs, prompts, strict=True)],
        "lora": {key: getattr(shape, key) for key in ("r", "lora_alpha", "layers_to_transform")}
        | {"target_modules": sorted(shape.target_modules)},
        "learning_rate": rate,
        "max_seconds": seconds,
        "seed": start.seed,
        "output": str(start.folder / f"dpo-{rate:g}"),
    }
    done = run_side("trl_dpo", job)
    weights = load_peft_weights(job["output"], device=str(learned.base.device))
    loaded = set_peft_model_state_dict(learned.base.peft_model, weights, adapter_name="policy")
    assert not loaded.unexpected_keys, loaded.unexpected_keys[:3]
    return start.measured(learned), done["seconds"]


# ------------------------------------------------------------------------------------------------------------- the rows


def row_of(way: Way, start: Start) -> dict[str, Any]:
    answers, seconds = way(start)
    return {
        "seconds": round(seconds),
        "measures": answers.table(),
        "rewards": [round(reward, 4) for reward in answers.reward],
    }


def shown(rows: list[dict[str, Any]]) -> Table:
    table = Table("seed", "way", "reward", "rule", "ROUGE-L", "KL", "better than SFT on", "training")
    for row in rows:
        cells = [
            "{:.2f} ± {:.2f}".format(*row["measures"][name]) if name in row["measures"] else ""
            for name in ("reward", "second_reward", "rouge_l", "kl")
        ]
        won = f"{row['wins']} of {row['wins'] + row['losses']}" if "wins" in row else ""
        table.add_row(f"{row['seed']}", row["way"], *cells, won, f"{row['seconds']} s")
    return table


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0, help="report other seeds than settings were chosen on")
    parser.add_argument("--demonstrations", type=int, default=160)
    parser.add_argument("--held-out", type=int, default=48)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--dpo-learning-rates", type=float, nargs="+", default=[1e-4, 5e-4])
    parser.add_argument("--folder", type=Path, default=Path("runs") / "alternatives")
    options = parser.parse_args()
    sizes = [options.demonstrations, options.held_out, options.steps, options.batch_size]
    job = fingerprint([sizes, MODEL, TLDR, PPO, RECIPES, LEARNING_RATE])
    measured = MeasuredRows("alternatives")
    rows: list[dict[str, Any]] = []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        start = Start(options, options.folder / f"{job}-{seed}", seed)
        key = {"seed": seed, "job": job}
        ways: dict[str, Way] = {"SFT": sft_alone, f"best of {NUM_ANSWERS}": best_of_n}
        ways |= {"rejection sampling": rejection_sampling} | {name: partial(recipe, name) for name in RECIPES}
        own = [measured.row({"way": name} | key, partial(row_of, way, start)) for name, way in ways.items()]
        for rate in options.dpo_learning_rates:
            by_dpo = partial(dpo, rate, own[len(ways) - 1]["seconds"])  # PPO's is the last of the ways
            own.append(measured.row({"way": f"DPO, rate {rate:g}"} | key, partial(row_of, by_dpo, start)))
        for row in own[1:]:
            against = compare(own[0]["rewards"], row["rewards"])
            row |= {"wins": against.wins, "losses": against.losses, "interval": against.interval}
        rows += own
    Console(width=120).print(shown(rows))
    summary = [[row["seed"], row["way"], round(row["measures"]["reward"][0], 3)] for row in rows]
    write_results("alternatives", {"machine": machine(), "sizes": sizes, "rows": rows, "summary": summary})
    measured.forget()


if __name__ == "__main__":
    main()
