"""How much memory a run will need, told before its first step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from burnish.memory import held_bytes
from burnish.models import RewardModel
from burnish.models.shared_base import PREFILL_TOKENS

if TYPE_CHECKING:
    from burnish.ppo_trainer.ppo_trainer import PPOTrainer

MEGABYTE = 2**20
Row = tuple[str, float, str]
"""Name, megabytes, what they are."""


def memory_report(trainer: PPOTrainer, prompts: Sequence[str]) -> list[Row]:
    """One row per role; with prompts also what steps on them hold, and the peak of the whole process."""
    roles = _roles(trainer)
    if not prompts:
        return roles
    work = _work(trainer, [len(ids) for ids in trainer.generator.encoder.encode(list(prompts))])
    rows = [*roles, *((name, size / MEGABYTE, what) for name, size, what in work)]
    if trainer.base.device.type == "cpu":
        rows.append(
            ("at its peak", _peak(trainer, work) / MEGABYTE, "predicted, the process and its libraries included")
        )
    return rows


def _roles(trainer: PPOTrainer) -> list[Row]:
    base = sum(p.numel() * p.element_size() for n, p in trainer.base.model.named_parameters() if "lora_" not in n)
    rows: list[Row] = [
        ("base", base / MEGABYTE, "frozen, shared by every role; also the reference"),
        ("policy", 4 * trainer.policy.nbytes / MEGABYTE, "adapter, gradients and Adam's state"),
        ("value", 4 * trainer.value_model.nbytes / MEGABYTE, "adapter, head, gradients and Adam's state"),
    ]
    reward = trainer.reward_computer.reward
    if isinstance(reward, RewardModel):
        return [*rows, ("reward", reward.nbytes / MEGABYTE, "adapter and head")]
    return [*rows, ("reward", 0.0, f"{trainer.reward_computer.name}, not a model")]


def _work(trainer: PPOTrainer, prompt_lengths: list[int]) -> list[tuple[str, float, str]]:
    """Bytes that steps hold beside the models: kept prompts, a rollout, a training pass."""
    base, config = trainer.base, trainer.config
    longest, batch, new = max(prompt_lengths), config.batch_size, config.max_new_tokens
    in_response_scope = base.scope == "response"
    adapted = base.num_layers - base.trunk_depth
    suffix = (base.num_adapted_prompt_tokens if in_response_scope else longest) + new
    prefix = longest + new - suffix

    kept = min(config.prompt_cache_mb * MEGABYTE, sum(prompt_lengths) * base.key_bytes) if in_response_scope else 0
    room = batch * (longest + new) * base.key_bytes
    shared = batch * prefix * base.key_bytes * adapted / base.num_layers
    trunk = batch * suffix * base.hidden_size * base.head.element_size() if base.trunk_depth else 0
    per_sequence = suffix * base.activation_bytes(prefix / suffix, config.top_k)
    most = min(config.micro_batch_size or batch, config.mini_batch_size or batch)
    a_pass = per_sequence * max(1, min(most, config.activation_mb * MEGABYTE // per_sequence))
    rows = [
        ("prompts", kept, "at most: the base's reading of prompts, kept for when they come back"),
        ("rollout", room + shared + trunk, "keys, values and trunk of one batch"),
        ("training", a_pass, "one pass of a micro-batch, cut to activation_mb"),
    ]
    return [row for row in rows if row[1]]


def _peak(trainer: PPOTrainer, work: list[tuple[str, float, str]]) -> float:
    """What the process holds now, what training adds for good, and the largest of the phases, which take turns."""
    base, needs = trainer.base, {name: size for name, size, _ in work}
    for_good = 3 * (trainer.policy.nbytes + trainer.value_model.nbytes) + needs.get("prompts", 0)
    # Reading prompts: what all layers record, twice (as recorded, and cut to each prompt), and one layer at work.
    config = base.model.config
    one_layer = (3 * config.intermediate_size + 6 * config.hidden_size) * base.head.element_size()
    reading = PREFILL_TOKENS * (2 * base.key_bytes + one_layer)
    # Logits of one token for every sequence, as they come and as the sampler works on them.
    sampling = 5 * trainer.config.batch_size * base.head.shape[0] * 4
    phases = (needs["rollout"] + max(reading, sampling), needs["rollout"] / 2 + needs["training"])
    return held_bytes() + for_good + max(phases)
