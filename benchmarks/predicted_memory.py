"""The memory that a run is told it will need, beside what it takes: models of several kinds, in both scopes.

    python benchmarks/predicted_memory.py      # about 4 minutes on one core; stopped, it goes on where it was

Random models of 60 to 200 million parameters, each in a fresh process: loaded, the peak predicted, then one PPO step
of 8 responses of 32 tokens to prompts of 96 tokens (stop tokens ignored), adapters on all layers, otherwise the
defaults. `off` is the prediction beside the peak of the whole process; `off, work` leaves out on both sides what the
process held when the prediction was made: libraries and base.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from functools import partial
from typing import Any

from workload import MeasuredRows, machine, prompts_of_length, random_model, write_results

SIZES = {
    "hidden_size": 768,
    "num_hidden_layers": 8,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "intermediate_size": 2048,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3_moe": {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 512},
    "gpt_oss": {
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "intermediate_size": 768,
    },
    "gpt_neox": {"intermediate_size": 3072},
    "lfm2": {
        "layer_types": (["conv"] * 3 + ["full_attention"]) * 2,
        "block_auto_adjust_ff_dim": False,
        "block_dim": 768,
        "block_ff_dim": 2048,
    },
    "qwen3_5_text": {
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
        "linear_num_key_heads": 6,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    },
}
SCOPES = ("response", "sequence")
MEGABYTE = 2**20


def measure(family: str, scope: str) -> dict[str, Any]:
    """One step, in this process."""
    from burnish import PPOConfig, PPOTrainer
    from burnish.decoder.memory import held_bytes, peak_bytes
    from burnish.ppo.memory_report import predicted_peak
    from burnish.stages.measuring import ignore_stop_tokens

    config = PPOConfig(
        batch_size=8, max_new_tokens=32, epochs=1, steps=1, adapter_scope=scope, target_kl_stop=None, max_kl=None
    )
    model, tokenizer = random_model(family, **SIZES | FAMILIES[family])
    trainer = PPOTrainer(config, lambda prompts, responses: [float(len(r)) for r in responses], model, tokenizer)
    ignore_stop_tokens(trainer)
    prompts = prompts_of_length((96, 96), 8)
    trainer.generator.agree_on_invocation(prompts)
    held, predicted = held_bytes(), predicted_peak(trainer, prompts)
    trainer.ppo_step(prompts)
    sizes = {"held": held, "predicted": predicted, "peak": peak_bytes()}
    count = sum(p.numel() for n, p in model.named_parameters() if "lora_" not in n)
    return {name: round(size / MEGABYTE) for name, size in sizes.items()} | {
        "parameters": count,
        "sharing": trainer.base.decoder.sharing,
    }


def in_fresh_process(family: str, scope: str) -> dict[str, Any]:
    """Its peak is its own."""
    job = [sys.executable, __file__, "--job", family, scope]
    return json.loads(subprocess.run(job, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=list(FAMILIES))
    parser.add_argument("--job", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        print(json.dumps(measure(*options.job)))
        return
    measured = MeasuredRows("predicted_memory")
    for family in options.families:
        for scope in SCOPES:
            measured.row({"family": family, "scope": scope}, partial(in_fresh_process, family, scope))
    rows = [row for f in FAMILIES for s in SCOPES for row in measured.known(family=f, scope=s)[:1]]
    summary = {f"{row['family']}, {row['scope']}": round(row["predicted"] / row["peak"] - 1, 3) for row in rows}
    write_results("predicted_memory", {"machine": machine(), "rows": rows, "summary": summary})
    if len(rows) == len(FAMILIES) * len(SCOPES):
        measured.forget()


if __name__ == "__main__":
    main()
