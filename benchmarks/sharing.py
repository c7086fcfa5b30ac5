"""What sharing is worth: a PPO step on the same model, with more and less of its work shared.

    python benchmarks/sharing.py [llama lfm2 ...]     # about 3 minutes on one core; stopped, it goes on where it was

Random models of 8 layers, hidden size 512. A Llama is run in all ways that there are: on the fast path, called as a
whole with the prompt shared, and with nothing shared; families with convolutions and recurrences in the two ways that
they have. 4 prompts of 128 tokens, new ones in every step, 32 new tokens (stop tokens ignored), adapters on all layers,
one epoch of PPO with a value model. The ways take turns in one process, forwards in one round and backwards in the
next; the first round warms up. A ratio is the median over rounds of a way's step beside the first way's in that round.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from statistics import median
from typing import Any

from burnish import PPOConfig, PPOTrainer
from burnish.decoder import shared_base
from burnish.decoder.whole_model import WholeModel
from burnish.stages.measuring import ignore_stop_tokens
from workload import MeasuredRows, machine, prompts_of_length, random_model, write_results

ROUNDS = 4
PROMPT_TOKENS = 128
SIZES = {
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "intermediate_size": 1536,
    "max_position_embeddings": 1024,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "lfm2": {
        "layer_types": (["conv"] * 3 + ["full_attention"]) * 2,
        "block_auto_adjust_ff_dim": False,
        "block_dim": 512,
        "block_ff_dim": 1536,
    },
    "qwen3_5_text": {
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
        "linear_num_key_heads": 8,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
    },
}


class NothingShared(WholeModel):
    """As if it could not go on from what it kept."""

    def _continues(self, *_: Any) -> str:
        return "it is measured so"


def as_a_whole(model: Any) -> WholeModel:
    return WholeModel(model, "it is measured so")


def ways_of(family: str) -> dict[str, tuple[Any, str]]:
    """By name: what decodes, and the scope."""
    shared, alone = as_a_whole, partial(NothingShared, reason="it is measured so")
    ways = {"prompt, response": (shared, "response"), "prompt, sequence": (shared, "sequence")}
    ways |= {"nothing, sequence": (alone, "sequence")}
    if family != "llama":
        return ways
    walked = shared_base.decoder_of
    return {"fast path, response": (walked, "response"), "fast path, sequence": (walked, "sequence")} | ways


def by_length(prompts: list[str], responses: list[str]) -> list[float]:
    return [float(len(response)) for response in responses]


def trainer_of(family: str, decoder: Any, scope: str) -> PPOTrainer:
    config = PPOConfig(
        batch_size=4, max_new_tokens=32, epochs=1, steps=ROUNDS, adapter_scope=scope, target_kl_stop=None, max_kl=None
    )
    walked, shared_base.decoder_of = shared_base.decoder_of, decoder
    try:
        trainer = PPOTrainer(config, by_length, *random_model(family, **SIZES | FAMILIES[family]))
    finally:
        shared_base.decoder_of = walked
    ignore_stop_tokens(trainer)
    return trainer


def measure(family: str) -> dict[str, Any]:
    """Seconds of a step by way, a number for each round."""
    trainers = {name: trainer_of(family, *way) for name, way in ways_of(family).items()}
    seconds: dict[str, list[float]] = {name: [] for name in trainers}
    for number in range(ROUNDS):
        prompts = prompts_of_length((PROMPT_TOKENS, PROMPT_TOKENS), 4, seed=number)
        for name in trainers if number % 2 == 0 else reversed(trainers):
            trainers[name].generator.agree_on_invocation(prompts)
            start = time.perf_counter()
            trainers[name].ppo_step(prompts)
            if number:
                seconds[name].append(round(time.perf_counter() - start, 3))
    return {"seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=list(FAMILIES))
    families = parser.parse_args().families
    measured = MeasuredRows("sharing")
    for family in families:
        measured.row({"family": family, "rounds": ROUNDS}, partial(measure, family))
    rows = [row for family in FAMILIES for row in measured.known(family=family, rounds=ROUNDS)[:1]]
    summary = {}
    for row in rows:
        first = next(iter(row["seconds"].values()))
        summary[row["family"]] = {
            name: [round(median(own), 2), round(median(a / b for a, b in zip(own, first, strict=True)), 2)]
            for name, own in row["seconds"].items()
        }
    write_results("sharing", {"machine": machine(), "rows": rows, "summary": summary})
    if len(rows) == len(FAMILIES):
        measured.forget()


if __name__ == "__main__":
    main()
