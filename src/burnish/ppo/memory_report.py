"""How much memory a run will need, told before its first step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from burnish.decoder.base_identity import base_weights
from burnish.decoder.memory import held_bytes
from burnish.decoder.sharded import largest_piece, nbytes_here
from burnish.models.role import ScalarModel
from burnish.ppo.step_memory import GROWTH, HOLES, MEGABYTE, Work, sizes_of, work_of

if TYPE_CHECKING:
    from burnish.ppo.ppo_trainer import PPOTrainer

Row = tuple[str, float, str]
"""Name, megabytes, what they are."""


def memory_report(trainer: PPOTrainer, prompts: Sequence[str]) -> list[Row]:
    """One row per role; with prompts also what steps on them hold, and the peak of the whole process."""
    roles = _roles(trainer)
    if not prompts:
        return roles
    work = _work(trainer, prompts)
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
    return _peak(trainer, _work(trainer, prompts))


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


def _work(trainer: PPOTrainer, prompts: Sequence[str]) -> Work:
    lengths = [len(ids) for ids in trainer.generator.encoder.encode(list(prompts))]
    return work_of(sizes_of(trainer.base), trainer.config, lengths)


def _peak(trainer: PPOTrainer, work: Work) -> float:
    """What is held now, what training adds for good, and the largest of the phases, which take turns.

    Prompts that an earlier stage has read are held already.
    """
    device = trainer.base.device
    held = torch.cuda.memory_allocated(device) if device.type == "cuda" else held_bytes()
    prompts_to_read = max(work.prompts - trainer.base.prompt_cache.nbytes, 0)
    trained = sum(own.role.nbytes for own in trainer.model_trainer.updates.values())
    gathered = largest_piece(trainer.base.model)
    return held + gathered + HOLES * (GROWTH * trained + prompts_to_read + work.largest_phase)
