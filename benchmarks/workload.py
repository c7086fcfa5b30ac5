"""What every benchmark runs on: the embedded model, bundled text cut to wanted lengths, and a place for results."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from burnish import PPOTrainer
from burnish.base_setup.embedded import embedded_model_folder
from burnish.config import TrainConfig, load_train_config
from burnish.data import Split
from burnish.evaluation.measure import evaluate
from burnish.stages import measuring
from burnish.stages.demo import demo_settings
from burnish.stages.measuring import LENGTHS, matmul_rate
from burnish.stages.stage import STAGES

RESULTS = Path(__file__).parent / "results"
TLDR_CONFIG = Path(__file__).parent.parent / "configs" / "tldr.yaml"


def ppo_task(task: str, **overrides: object) -> tuple[TrainConfig, Split[str]]:
    """PPO against a rule, and its prompts; `overrides` replace single settings.

    `sentiment` is the demo's; `tldr` is configs/tldr.yaml on all bundled posts.
    """
    if task == "sentiment":
        settings = demo_settings("sentiment")
    else:
        model = {key: demo_settings("tldr")["model"][key] for key in ("model_name", "lora_layers", "lora_dropout")}
        settings = load_train_config(TLDR_CONFIG).model_dump() | model
        settings |= {"prompts": "bundled:tldr", "prompt_cache_mb": 1600}
        settings |= {"batch_size": 32, "mini_batch_size": 16}  # there are more prompts than in the example
    config = TrainConfig(**(settings | overrides))
    return config, STAGES["ppo"].load(config)


def prompts_of_length(shape: str | tuple[int, int], count: int, seed: int = 0) -> list[str]:
    """Prompts of bundled text, of so many tokens of the embedded model."""
    lengths = LENGTHS[shape] if isinstance(shape, str) else shape
    return measuring.prompts_of_length(AutoTokenizer.from_pretrained(embedded_model_folder()), lengths, count, seed)


def random_model(family: str, **sizes: Any) -> tuple[Any, Any]:
    """A model of any family with random weights, and the embedded model's tokenizer: speed and memory do not depend on
    what the weights are.
    """
    tokenizer = AutoTokenizer.from_pretrained(embedded_model_folder())
    special = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": None, "pad_token_id": None}
    torch.manual_seed(0)
    config = type(AutoConfig.for_model(family))(**{"vocab_size": len(tokenizer)} | special | sizes)
    return AutoModelForCausalLM.from_config(config), tokenizer


def before_and_after(trainer: PPOTrainer, prompts: Split[str]) -> tuple[dict[str, Any], dict[str, Any], list[Any]]:
    """Trains, and answers the held-out prompts twice each before and after it: both tables, and the steps."""
    held_out = [*prompts.held_out, *prompts.held_out]
    trainer.generator.agree_on_invocation([*prompts.train, *prompts.held_out])
    before = evaluate(trainer, held_out).table()
    history = trainer.train(prompts.train)
    return before, evaluate(trainer, held_out).table(), history


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    meminfo = Path("/proc/meminfo").read_text().splitlines()
    memory = next((line.split()[1] for line in meminfo if line.startswith("MemTotal")), "0")
    return {
        "cores": torch.get_num_threads(),
        "cpu": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
        "memory_gib": round(int(memory) / 2**20),
        "torch": torch.__version__,
        "matmul_gflops": round(matmul_rate()),
    }


def read_rows(file: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file; none if there is no file."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []


def fingerprint(job: Any) -> str:
    """Of all that a measurement depends on, so that one is never taken for another's."""
    return hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()[:12]


class MeasuredRows:
    """The rows of a long benchmark, kept as they come: stopped, it goes on where it was."""

    def __init__(self, name: str) -> None:
        self.file = RESULTS / f"{name}_rows.jsonl"

    def row(
        self,
        key: dict[str, Any],
        measure: Callable[[], dict[str, Any]],
        usable: Callable[[dict[str, Any]], bool] = lambda row: True,
    ) -> dict[str, Any]:
        """What `measure` finds, or what an earlier start of the script found for the very same key."""
        for row in self.known(**key):
            if usable(row):
                return row
        row = key | measure()
        print(json.dumps(row), flush=True)
        RESULTS.mkdir(exist_ok=True)
        with self.file.open("a") as out:
            out.write(json.dumps(row) + "\n")
        return row

    def known(self, **key: Any) -> list[dict[str, Any]]:
        """All rows of a key, or of a part of one."""
        return [row for row in read_rows(self.file) if key.items() <= row.items()]

    def forget(self) -> None:
        """All is measured and written elsewhere."""
        self.file.unlink(missing_ok=True)


def write_results(name: str, results: dict[str, Any]) -> None:
    """Keeps the results where docs/performance.md takes them from, and prints them as the last line."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results.get("summary", results)))
