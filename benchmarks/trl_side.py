"""TRL 1.12.0's PPO trainer, doing what it is told on standard input; prints one JSON line.

Runs in a virtual environment of its own, which peer.py creates. It is set up as a TRL user would on this machine:
LoRA on the policy, the base with adapters off as reference, a value model of its own, float32, and without gradient
checkpointing, which would make it slower. The reward is burnish's rule, handed over as the torch module that TRL wants.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from types import SimpleNamespace
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification
from trl.experimental.ppo import PPOConfig, PPOTrainer

from trl_task import LORA, StepClock, Task


class RuleAsModule(torch.nn.Module):
    """TRL asks a reward model for hidden states and for a `score` of them: here every state is the score."""

    base_model_prefix = "backbone"

    def __init__(self, rule: Any, tokenizer: Any, num_response_tokens: int) -> None:
        super().__init__()
        self.backbone = self._states
        self.score = torch.nn.Identity()
        self.rule, self.tokenizer, self.num_response_tokens = rule, tokenizer, num_response_tokens

    def _states(self, input_ids: torch.Tensor, **_: Any) -> SimpleNamespace:
        split = input_ids.shape[1] - self.num_response_tokens
        prompts = self.tokenizer.batch_decode(input_ids[:, :split], skip_special_tokens=True)
        responses = self.tokenizer.batch_decode(input_ids[:, split:], skip_special_tokens=True)
        scores = torch.tensor(self.rule(prompts, responses))  # [B]
        return SimpleNamespace(hidden_states=[scores[:, None, None].expand(*input_ids.shape, 1)])


def config_of(job: dict[str, Any], output: str) -> PPOConfig:
    """The job in TRL's words."""
    micro = job["micro_batch_size"]
    return PPOConfig(
        output_dir=output,
        report_to=[],
        save_strategy="no",
        num_sample_generations=0,
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        seed=job["seed"],
        total_episodes=job["steps"] * job["batch_size"],
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=job["batch_size"] // micro,
        num_mini_batches=job.get("num_mini_batches", 1),
        local_rollout_forward_batch_size=job["batch_size"],
        num_ppo_epochs=job["epochs"],
        response_length=job["max_new_tokens"],
        temperature=job["temperature"],
        kl_coef=job["kl_coef"],
        learning_rate=job["learning_rate"],
        gamma=1.0,
        stop_token=None if job["ignore_stop_tokens"] else "eos",
    )


def one_update_per_mini_batch(trainer: PPOTrainer, job: dict[str, Any]) -> None:
    """Otherwise TRL steps once per rollout, or, in the last rollout of the prompts, after every micro-batch."""
    mini_batch = job["batch_size"] // job.get("num_mini_batches", 1)
    trainer.accelerator.gradient_accumulation_steps = mini_batch // job["micro_batch_size"]
    trainer.accelerator.gradient_state.plugin_kwargs["sync_with_dataloader"] = False


def main() -> None:
    job = json.load(sys.stdin)
    torch.manual_seed(job["seed"])
    task = Task(job)
    value = AutoModelForSequenceClassification.from_pretrained(task.folder, num_labels=1, dtype=torch.float32)
    value.config.pad_token_id = task.tokenizer.pad_token_id
    torch.nn.init.zeros_(value.score.weight)
    clock = StepClock(task)
    with tempfile.TemporaryDirectory() as output:
        trainer = PPOTrainer(
            args=config_of(job, output),
            processing_class=task.tokenizer,
            model=task.model,
            ref_model=None,
            reward_model=RuleAsModule(task.rule, task.tokenizer, job["max_new_tokens"]),
            value_model=value,
            train_dataset=Dataset.from_dict({"input_ids": task.encode(job["prompts"])}),
            peft_config=LORA,
            callbacks=[clock],
        )
        clock.policy = trainer.policy_model
        one_update_per_mini_batch(trainer, job)
        trainer.optimizer.optimizer.register_step_post_hook(lambda *_: clock.count_update())
        with contextlib.suppress(StopIteration):
            trainer.train()
    clock.report()


if __name__ == "__main__":
    main()
