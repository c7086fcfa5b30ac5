"""How much memory a run will need, told before its first step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from burnish.decoder.base_identity import base_weights
from burnish.decoder.head import CHUNK_BYTES
from burnish.decoder.memory import held_bytes
from burnish.decoder.sharded import nbytes_here
from burnish.decoder.shared_base import PREFILL_TOKENS
from burnish.models.role import ScalarModel
from burnish.processes import world

if TYPE_CHECKING:
    from burnish.ppo.ppo_trainer import PPOTrainer

MEGABYTE = 2**20
HOLES = 1.2  # the next tensor does not always fit where the last one was: a fifth more than is in use, as measured
Row = tuple[str, float, str]
"""Name, megabytes, what they are."""


def memory_report(trainer: PPOTrainer, prompts: Sequence[str]) -> list[Row]:
    """One row per role; with prompts also what steps on them hold, and the peak of the whole process."""
    roles = _roles(trainer)
    if not prompts:
        return roles
    work = _work(trainer, [len(ids) for ids in trainer.generator.encoder.encode(list(prompts))])
    rows = [
        ("prompts", work.prompts, "at most: the base's reading of prompts, kept for when they come back"),
        ("rollout", work.room + work.context, "keys, values and trunk of one batch"),
        ("training", work.training, "one pass of a micro-batch, cut to activation_mb"),
    ]
    if trainer.base.device.type == "cpu":
        rows.append(("at its peak", _peak(trainer, work), "predicted, the process and its libraries included"))
    return [*roles, *((name, size / MEGABYTE, what) for name, size, what in rows if size)]


def predicted_peak(trainer: PPOTrainer, prompts: Sequence[str]) -> float:
    """The most bytes that steps on these prompts will hold: in this process, or of a CUDA device, where the prediction
    has not been measured yet.
    """
    return _peak(trainer, _work(trainer, [len(ids) for ids in trainer.generator.encoder.encode(list(prompts))]))


def _roles(trainer: PPOTrainer) -> list[Row]:
    base = sum(nbytes_here(weight) for _, weight in base_weights(trainer.base.model))  # as they are stored
    has_sft = trainer.sft_model.adapter is not None
    rows: list[Row] = [
        ("base", base / MEGABYTE, "frozen, shared by every role" + ("" if has_sft else "; also the reference")),
    ]
    for name, updates in trainer.model_trainer.updates.items():
        what = "adapter, head" if isinstance(updates.role, ScalarModel) else "adapter"
        rows.append((name, 4 * updates.role.nbytes / MEGABYTE, f"{what}, gradients and Adam's state"))
    if has_sft:
        rows.insert(1, ("reference", trainer.sft_model.nbytes / MEGABYTE, "the SFT stage's adapter, frozen"))
    models = trainer.reward_computer.models
    if models:
        return [*rows, ("reward", sum(m.nbytes for m in models) / MEGABYTE, "adapter and head")]
    return [*rows, ("reward", 0.0, f"{trainer.reward_computer.name}, not a model")]


@dataclass(frozen=True)
class _Work:
    """Bytes that steps hold beside the models."""

    prompts: float
    """The base's reading of prompts, kept."""
    room: float
    """Keys and values of one batch while it is decoded."""
    context: float
    """What stays of them for scoring and training, with the trunk."""
    reading: float
    """Reading prompts, before a batch has its room: what all layers record, and one layer at work."""
    sampling: float
    """Logits of one token for every sequence, as they come and as the sampler works on them."""
    scoring: float
    """The reference's logits and the policy's, for a chunk of the states of a batch."""
    training: float
    """One pass of a micro-batch, and the head's work on a chunk of its states."""


def _work(trainer: PPOTrainer, prompt_lengths: list[int]) -> _Work:
    base, config = trainer.base, trainer.config
    number = base.decoder.number_bytes
    batch = -(-config.batch_size // world.size())  # this process's share, rounded up
    longest, new = max(prompt_lengths), config.max_new_tokens
    prefix = base.suffix_start(longest)
    suffix = longest - prefix + new - 1
    prompt_tokens = sum(prompt_lengths) if prefix else 0
    readers = config.responses_per_prompt if base.shares_prefixes else 1  # sequences that share a prefix

    read_at_once = prefix if config.prompt_cache_mb else min(PREFILL_TOKENS, batch // readers * prefix)
    trunk = suffix * base.hidden_size * number if base.trunk_depth else 0
    per_sequence = suffix * base.activation_bytes + prefix * base.prefix_activation_bytes / readers
    per_sequence += base.state_activation_bytes
    most = min(config.micro_batch_size or batch, config.mini_batch_size or batch)
    sequences = max(1, min(most, int(config.activation_mb * MEGABYTE // max(per_sequence, 1))))
    whole = min(CHUNK_BYTES, batch * new * base.head.shape[0] * 4)  # one tensor of a chunk's logits
    kept = min(CHUNK_BYTES, sequences * new * config.top_k * base.hidden_size * 4)  # or of the rows of kept tokens
    in_training = 5 * whole if config.kl_in != "reward" else 2 * kept if config.top_k else 3 * whole
    state = base.decoder.state_bytes  # of one text
    kept_prefix = prefix * base.adapted_key_bytes / readers + (state if prefix else 0)
    states = batch * new * base.hidden_size * number
    kept_states = len(prompt_lengths) * state if prefix else 0
    return _Work(
        prompts=min(config.prompt_cache_mb * MEGABYTE, prompt_tokens * base.key_bytes + kept_states),
        room=batch * ((prefix / readers + longest - prefix + new) * base.key_bytes + state),
        context=batch * (kept_prefix + trunk + new * config.top_k * 4) + states,
        reading=read_at_once * (base.key_bytes + base.decoder.work_bytes) + state,
        sampling=5 * batch * base.head.shape[0] * 4,
        scoring=5 * whole + 2 * states,
        training=sequences * per_sequence + in_training,
    )


def _peak(trainer: PPOTrainer, work: _Work) -> float:
    """What is held now, what training adds for good, and the largest of the phases, which take turns.

    Prompts that an earlier stage has read are held already.
    """
    device = trainer.base.device
    held = torch.cuda.memory_allocated(device) if device.type == "cuda" else held_bytes()
    prompts_to_read = max(work.prompts - trainer.base.prompt_cache.nbytes, 0)
    for_good = 3 * sum(own.role.nbytes for own in trainer.model_trainer.updates.values()) + prompts_to_read
    decoding = work.room + work.context + work.sampling
    later = work.context + max(work.scoring, work.training)
    return held + HOLES * (for_good + max(work.reading, decoding, later))
