"""TRL 1.16.0's DPO trainer, doing what it is told on standard input; prints one JSON line.

Runs in a virtual environment of its own. Set up as a TRL user would on this machine: LoRA of the given shape, the model
with adapters off as reference, float32, and without gradient checkpointing, which would make it slower. The learning
rate is constant, because training ends when the time is up. What the job does not name is TRL's default.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import DPOConfig, DPOTrainer

MOST_EPOCHS = 20  # far more than the time allows


class TimeLimit(TrainerCallback):
    """Ends training with the first update after so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.limit, self.seconds, self.updates = seconds, 0.0, 0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.started = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.updates += 1
        self.seconds = time.perf_counter() - self.started
        control.should_training_stop = self.seconds >= self.limit


def main() -> None:
    job = json.load(sys.stdin)
    torch.manual_seed(job["seed"])
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    tokenizer.pad_token = "<|endoftext|>"  # the model's own choice is its end-of-turn token, which answers end in
    limit = TimeLimit(job["max_seconds"])
    with tempfile.TemporaryDirectory() as output:
        trainer = DPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32),
            args=DPOConfig(
                output_dir=output,
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
                bf16=False,
                use_cpu=True,
                gradient_checkpointing=False,
                seed=job["seed"],
                per_device_train_batch_size=8,
                num_train_epochs=MOST_EPOCHS,
                learning_rate=job["learning_rate"],
                lr_scheduler_type="constant",
                max_length=None,
            ),
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(job["pairs"]),
            peft_config=LoraConfig(task_type="CAUSAL_LM", **job["lora"]),
            callbacks=[limit],
        )
        trainer.train()
    trainer.model.save_pretrained(job["output"])
    print(json.dumps({"seconds": limit.seconds, "updates": limit.updates}))


if __name__ == "__main__":
    main()
