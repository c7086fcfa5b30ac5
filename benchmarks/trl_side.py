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
import time
from types import SimpleNamespace
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, TrainerCallback
from trl.experimental.ppo import PPOConfig, PPOTrainer

from burnish.base_setup.embedded import embedded_model_folder
from burnish.decoder.memory import peak_bytes
from burnish.evaluation.measure import EVAL_SEED
from burnish.rewards.rules import rule as rule_named


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


class StepClock(TrainerCallback):
    """Seconds of every step; between steps, off the clock, the held-out reward if there are held-out prompts."""

    def __init__(self, job: dict[str, Any], held_out_reward: Any) -> None:
        self.job, self.held_out_reward = job, held_out_reward
        self.seconds: list[float] = []
        self.rewards: list[float] = []
        self.updates = 0

    def count_update(self) -> None:
        self.updates += 1

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.last = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seconds.append(time.perf_counter() - self.last)
        if self.job.get("held_out"):
            self.rewards.append(self.held_out_reward())
            print(f"step {len(self.seconds)}: {sum(self.seconds):.0f} s, {self.rewards[-1]:.3f}", file=sys.stderr)
            passed = self.rewards[-1] >= self.job["goal"]
            if passed or sum(self.seconds) >= self.job.get("max_seconds", float("inf")):
                raise StopIteration  # TRL's loop looks at no flag between its steps
        self.last = time.perf_counter()


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
    folder = embedded_model_folder()
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    tokenizer.pad_token = "<|endoftext|>"  # the model's own choice is its end-of-turn token, which TRL would mask
    load = {"dtype": torch.float32}
    policy = AutoModelForCausalLM.from_pretrained(folder, **load)
    value = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1, **load)
    value.config.pad_token_id = policy.config.pad_token_id = tokenizer.pad_token_id
    torch.nn.init.zeros_(value.score.weight)
    rule = rule_named(job["reward"])
    encode = lambda texts: [tokenizer(t, add_special_tokens=False)["input_ids"] for t in texts]  # noqa: E731

    def held_out_reward() -> float:
        """As burnish.evaluation does it: one sampled response for each held-out prompt, under a seed of its own."""
        state = torch.get_rng_state()
        torch.manual_seed(EVAL_SEED)
        batch = tokenizer.pad({"input_ids": encode(job["held_out"])}, return_tensors="pt")
        with torch.no_grad():
            out = trainer.policy_model.generate(
                **batch, max_new_tokens=job["max_new_tokens"], do_sample=True, temperature=job["temperature"],
                top_k=0, top_p=1.0, pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
            )  # fmt: skip
        torch.set_rng_state(state)
        texts = tokenizer.batch_decode(out[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
        scores = rule(job["held_out"], texts)
        return sum(scores) / len(scores)

    clock = StepClock(job, held_out_reward)
    with tempfile.TemporaryDirectory() as output:
        trainer = PPOTrainer(
            args=config_of(job, output),
            processing_class=tokenizer,
            model=policy,
            ref_model=None,
            reward_model=RuleAsModule(rule, tokenizer, job["max_new_tokens"]),
            value_model=value,
            train_dataset=Dataset.from_dict({"input_ids": encode(job["prompts"])}),
            peft_config=LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32, target_modules="all-linear"),
            callbacks=[clock],
        )
        one_update_per_mini_batch(trainer, job)
        trainer.optimizer.optimizer.register_step_post_hook(lambda *_: clock.count_update())
        with contextlib.suppress(StopIteration):
            trainer.train()
    print(
        json.dumps(
            {
                "seconds": clock.seconds,
                "rewards": clock.rewards,
                "updates": clock.updates,
                "peak_gb": peak_bytes() / 1e9,
            }
        )
    )


if __name__ == "__main__":
    main()
