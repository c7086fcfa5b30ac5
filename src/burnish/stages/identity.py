"""What a run must find again to be the same run: data, frozen weights; and what it needs to be so to the bit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from burnish.data import Split
from burnish.decoder.shared_base import SharedBase
from burnish.models.frozen import fingerprint_of_frozen
from burnish.models.role import RoleModel, ScalarModel
from burnish.processes import world
from burnish.runs.checkpoints import versions
from burnish.runs.same_run import fingerprint_of_texts


def identity_of(
    base: SharedBase, trained: Sequence[RoleModel], data: Split[Any], frozen: Iterable[ScalarModel] = ()
) -> dict[str, Any]:
    """`frozen` are reward models, whose heads belong to their adapters."""
    return {
        "data": fingerprint_of_texts(data.texts()),
        "base model": base.identity.parts,
        "frozen adapters": fingerprint_of_frozen(base, trained, frozen),
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "processes": world.size(),
        "device": str(base.device),
    }
