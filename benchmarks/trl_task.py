"""What both of TRL's sides need: the model and its tokenizer, the held-out reward, a clock, and the last line."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from burnish.base_setup.embedded import embedded_model_folder
from burnish.decoder.memory import peak_bytes
from burnish.evaluation.measure import EVAL_SEED
from burnish.rewards.rules import rule as rule_named

LORA = LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32, target_modules="all-linear")


class Task:
    """The job's model, rule and prompts, as a TRL user would load them."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.folder = embedded_model_folder()
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder, padding_side="left")
        self.tokenizer.pad_token = "<|endoftext|>"  # the model's own is its end-of-turn token, which TRL would mask
        self.model = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32)
        self.model.config.pad_token_id = self.tokenizer.pad_token_id
        self.rule = rule_named(job["reward"])

    def encode(self, texts: list[str]) -> list[list[int]]:
        return [self.tokenizer(t, add_special_tokens=False)["input_ids"] for t in texts]

    def held_out_reward(self, policy: Any) -> float:
        """As burnish.evaluation does it: one sampled response for each held-out prompt, under a seed of its own."""
        job, tokenizer = self.job, self.tokenizer
        state = torch.get_rng_state()
        torch.manual_seed(EVAL_SEED)
        batch = tokenizer.pad({"input_ids": self.encode(job["held_out"])}, return_tensors="pt")
        with torch.no_grad():
            out = policy.generate(
                **batch, max_new_tokens=job["max_new_tokens"], do_sample=True, temperature=job["temperature"],
                top_k=0, top_p=1.0, pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
            )  # fmt: skip
        torch.set_rng_state(state)
        texts = tokenizer.batch_decode(out[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
        scores = self.rule(job["held_out"], texts)
        return sum(scores) / len(scores)


class StepClock(TrainerCallback):
    """Seconds of every step; between steps, off the clock, the held-out reward if there are held-out prompts."""

    def __init__(self, task: Task, updates_per_step: int = 1) -> None:
        """A trainer that counts optimizer steps makes `updates_per_step` of them for one batch of responses."""
        self.task, self.updates_per_step = task, updates_per_step
        self.seconds: list[float] = []
        self.rewards: list[float] = []
        self.updates = 0
        self._calls = 0
        self.policy: Any = None

    def count_update(self) -> None:
        self.updates += 1

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.last = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._calls += 1
        if self._calls % self.updates_per_step:
            return
        job = self.task.job
        self.seconds.append(time.perf_counter() - self.last)
        if job.get("held_out"):
            self.rewards.append(self.task.held_out_reward(self.policy))
            print(f"step {len(self.seconds)}: {sum(self.seconds):.0f} s, {self.rewards[-1]:.3f}", file=sys.stderr)
            passed = self.rewards[-1] >= job["goal"]
            if passed or sum(self.seconds) >= job.get("max_seconds", float("inf")):
                raise StopIteration  # TRL's PPO looks at no flag between its steps
        self.last = time.perf_counter()

    def report(self) -> None:
        course = {"seconds": self.seconds, "rewards": self.rewards, "updates": self.updates}
        print(json.dumps(course | {"peak_gb": peak_bytes() / 1e9}))
