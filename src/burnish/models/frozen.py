"""What a run stands on and does not train: the adapters of its reference and of its reward models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from burnish.decoder.base_identity import adapter_of, fingerprint_of_weights
from burnish.decoder.shared_base import SharedBase
from burnish.models.role import RoleModel, ScalarModel


def fingerprint_of_frozen(base: SharedBase, trained: Sequence[RoleModel], frozen: Iterable[ScalarModel] = ()) -> str:
    """Of every adapter that is not trained; `frozen` are reward models, whose heads belong to their adapters."""
    learned = {role.adapter for role in trained}
    adapters = base.peft_model.peft_config.keys() - learned if base.peft_model is not None else ()
    weights = [(n, p) for n, p in base.model.named_parameters() if adapter_of(n) in adapters]
    weights += [(f"head {i} {n}", p) for i, role in enumerate(frozen) for n, p in role.head.named_parameters()]
    return fingerprint_of_weights(weights)
