"""Weights that a library stores in fewer bits: which they are, the numbers they stand for, the tensors they consist of.

torchao keeps int8 weights with a scale for each row, bitsandbytes 4-bit ones with a scale for each block of 64. Their
types are known by name, so that nothing is imported where no weight is stored so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


def storage_of(weight: Any) -> str | None:
    """`int8`, `nf4` or `fp4`; None for a plain weight, and for one that is stored in a way unknown here."""
    library, kind = type(weight).__module__.partition(".")[0], type(weight).__name__
    if library == "torchao" and kind == "Int8Tensor":
        # Rows with a scale, symmetric, and numbers that are multiplied with them as they are.
        by_row = weight.dim() == 2 and weight.scale.shape == (weight.shape[0], 1)
        symmetric = weight.zero_point is None or not bool(weight.zero_point.any())
        plain_numbers = weight.act_quant_kwargs is None and weight.act_pre_scale is None
        return "int8" if by_row and symmetric and plain_numbers else None
    if library == "bitsandbytes" and kind == "Params4bit" and weight.quant_state is not None:
        return str(weight.quant_state.quant_type)
    return None


def storages_in(model: nn.Module) -> list[str]:
    """How linear layers of a model are stored, each way once; none for a plain model."""
    found = {storage_of(m.weight) for m in model.modules() if isinstance(m, nn.Linear)}
    return sorted(way for way in found if way is not None)


def is_plain(weight: Tensor) -> bool:
    return type(weight) in (Tensor, nn.Parameter)


def is_sharded(weight: Tensor) -> bool:
    """Whether this process has a part of it only; plain while it is put together (sharded.py)."""
    return type(weight).__name__ == "DTensor"


def dense(weight: Any, dtype: torch.dtype) -> Tensor:
    """The numbers of a weight whose storage is known, made anew; a plain weight itself.  -> [out, in]"""
    if is_plain(weight):
        return weight
    if type(weight).__name__ == "Params4bit":
        from bitsandbytes.functional import dequantize_4bit

        return dequantize_4bit(weight.data, weight.quant_state).to(dtype)
    # What weight.dequantize() gives, to the bit, in two passes over the numbers instead of five.
    return weight.qdata.to(dtype).mul_(weight.scale)


def tensors_of(name: str, weight: Any) -> Iterator[tuple[str, Tensor]]:
    """The plain tensors that a weight consists of. (The scales of 4-bit ones are entries of their own in a state.)"""
    if type(weight).__module__.partition(".")[0] == "torchao":
        for part in weight.__tensor_flatten__()[0]:
            yield f"{name}.{part}", getattr(weight, part)
    else:
        yield name, weight.data
