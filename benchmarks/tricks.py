"""What single ideas are worth, each beside what it replaced, on this machine.

python benchmarks/tricks.py
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from peft.tuners.lora import Linear as LoraLinear
from rich.console import Console
from rich.table import Table

from burnish import PPOConfig, PPOTrainer
from burnish.base_setup.embedded import EMBEDDED_NAME
from burnish.decoder.head import Head, selected_logprobs
from burnish.decoder.key_values import PromptCache
from workload import machine, prompts_of_length, write_results

HIDDEN, VOCABULARY, INTERMEDIATE, LAYERS = 576, 49152, 1536, 30  # SmolLM2-135M's


def fastest(run: Callable[[], Any], repeats: int = 5) -> float:
    run()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def products_both_ways(rows: int) -> tuple[float, float]:
    """A decoder's largest weights, one after the other as in decoding: x W^T, and W x^T."""
    weights = [torch.randn(INTERMEDIATE, HIDDEN) for _ in range(LAYERS)]
    x = torch.randn(rows, HIDDEN)
    return fastest(lambda: [F.linear(x, w) for w in weights]), fastest(lambda: [(w @ x.T).T for w in weights])


def logprobs(states: int) -> tuple[float, float]:
    """Log-probabilities over the whole vocabulary and their gradient: torch's chunked loss, and ours."""
    hidden, head = torch.randn(states, HIDDEN, requires_grad=True), torch.randn(VOCABULARY, HIDDEN)
    action = torch.randint(0, VOCABULARY, (states,))

    def theirs() -> None:
        options = torch.nn.LinearCrossEntropyOptions()
        F.linear_cross_entropy(hidden, head, action, reduction="none", options=options).sum().backward()

    def ours() -> None:
        selected_logprobs(hidden, Head(head), action, None).sum().backward()

    return fastest(theirs, 2), fastest(ours, 2)


def reading(shape: str) -> tuple[float, float]:
    """Sixteen prompts read by the base: one by one, as those that are kept must be, and together."""
    trainer = PPOTrainer(PPOConfig(model_name=EMBEDDED_NAME, reward="sentiment"))
    base, prompts = trainer.base, [tuple(ids) for ids in trainer.generator.encoder.encode(prompts_of_length(shape, 16))]
    by_length = sorted(prompts, key=len)

    def read(cache_bytes: int) -> float:
        base.prompt_cache = PromptCache(cache_bytes)
        return fastest(lambda: base._prefill(by_length), 2)

    with torch.no_grad():
        return read(2**30), read(0)


def training_seconds(variant: str) -> float:
    """One epoch of both models over 16 sequences of 200-400 prompt tokens, ordinary LoRA on all layers."""
    config = PPOConfig(
        model_name=EMBEDDED_NAME,
        batch_size=16,
        epochs=1,
        max_new_tokens=16,
        adapter_scope="sequence",
        reward="sentiment",
    )
    trainer = PPOTrainer(config)
    if variant == "peft's forward":
        for module in trainer.base.model.modules():
            if type(module) is LoraLinear:
                del module.forward
    prompts = prompts_of_length("tldr", 16)
    steps = [trainer.ppo_step(prompts) for _ in range(2)]
    return min(s["seconds_train_policy_model"] + s["seconds_train_value_model"] for s in steps)


def in_own_process(variant: str) -> float:
    done = subprocess.run([sys.executable, __file__, variant], capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def main() -> None:
    if len(sys.argv) > 1:
        print(training_seconds(sys.argv[1]))
        return
    rows: dict[str, tuple[float, float]] = {}
    for number in (16, 32, 64):
        rows[f"product of {number} rows: x Wᵀ, or W xᵀ"] = products_both_ways(number)
    rows["log-probabilities of 512 states: F.linear_cross_entropy, or ours"] = logprobs(512)
    rows["16 prompts of 16-64 tokens: read one by one, or together"] = reading("short")
    rows["16 prompts of 200-400 tokens: read one by one, or together"] = reading("tldr")
    fast = in_own_process("as it is")
    rows["training pass: peft's forward, or ours"] = (in_own_process("peft's forward"), fast)
    table = Table("idea", "before", "after", "times faster")
    for name, (before, after) in rows.items():
        table.add_row(name, f"{before:.3f} s", f"{after:.3f} s", f"{before / after:.2f}")
    Console(width=110).print(table)
    summary = {name: round(before / after, 2) for name, (before, after) in rows.items()}
    write_results("tricks", {"machine": machine(), "rows": rows, "summary": summary})


if __name__ == "__main__":
    main()
