"""TRL 1.16.0's GRPO and RLOO trainers, doing what they are told on standard input; prints one JSON line.

Runs in a virtual environment of its own, which peer.py creates. Set up as a TRL user would on this machine: LoRA on all
linear layers, the base with adapters off as reference, float32, and without gradient checkpointing, which would make it
slower. Everything that the job does not name is TRL's default.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from typing import Any

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from trl_task import LORA, StepClock, Task

TRAINERS = {"grpo": (GRPOConfig, GRPOTrainer), "rloo": (RLOOConfig, RLOOTrainer)}


def main() -> None:
    job = json.load(sys.stdin)
    torch.manual_seed(job["seed"])
    task = Task(job)
    config, trainer_class = TRAINERS[job["algorithm"]]
    num_mini_batches = job["num_mini_batches"]
    updates_per_step = num_mini_batches * job["epochs"]

    def reward(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        return list(task.rule(prompts, completions))

    clock = StepClock(task, updates_per_step)
    with tempfile.TemporaryDirectory() as output:
        args = config(
            output_dir=output,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            bf16=False,
            use_cpu=True,
            gradient_checkpointing=False,
            seed=job["seed"],
            max_steps=job["steps"] * updates_per_step,
            per_device_train_batch_size=job["batch_size"] // num_mini_batches,
            gradient_accumulation_steps=1,
            steps_per_generation=num_mini_batches,
            num_iterations=job["epochs"],
            num_generations=job["responses_per_prompt"],
            max_completion_length=job["max_new_tokens"],
            temperature=job["temperature"],
            top_k=0,
            top_p=1.0,
            beta=job["kl_coef"],
            learning_rate=job["learning_rate"],
            lr_scheduler_type="constant",
        )
        trainer = trainer_class(
            model=task.model,
            reward_funcs=reward,
            args=args,
            train_dataset=Dataset.from_dict({"prompt": job["prompts"]}),
            processing_class=task.tokenizer,
            peft_config=LORA,
            callbacks=[clock],
        )
        clock.policy = trainer.model
        trainer.create_optimizer()
        trainer.optimizer.register_step_post_hook(lambda *_: clock.count_update())
        with contextlib.suppress(StopIteration):
            trainer.train()
    clock.report()


if __name__ == "__main__":
    main()
