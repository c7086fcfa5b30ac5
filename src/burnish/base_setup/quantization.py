"""Frozen bases in 8 or 4 bits: the library that stores them, whether it runs here, and what a model was loaded as."""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from burnish.decoder.memory import give_back
from burnish.decoder.quantized import is_plain, storages_in
from burnish.errors import InputError

PACKAGES = {"int8": "torchao", "nf4": "bitsandbytes"}
WAYS_OUT = "use another device, the other kind of quantize, or none"


def loading(kind: str, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Options with which transformers stores linear layers as `kind`, each as soon as it is read."""
    _check_that_it_runs(kind, device, dtype)
    how: Any
    if kind == "int8":
        from torchao.quantization import Int8WeightOnlyConfig
        from transformers import TorchAoConfig

        how = TorchAoConfig(Int8WeightOnlyConfig())
    else:
        from transformers import BitsAndBytesConfig

        how = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=kind, bnb_4bit_compute_dtype=dtype)
    return {"quantization_config": how, "device_map": {"": device}}


def library_of(kind: str | None) -> str:
    """The library and its version: what the bits of a stored weight depend on, beside the weight. Empty for none."""
    if kind is None:
        return ""
    _check_library(kind)
    return f"{PACKAGES[kind]} {version(PACKAGES[kind])}"


def _check_library(kind: str) -> None:
    if find_spec(PACKAGES[kind]) is None:
        raise InputError(
            f'quantize: {kind} needs the package {PACKAGES[kind]}; get it with: pip install "burnish[quantize]"'
        )


def _check_that_it_runs(kind: str, device: torch.device, dtype: torch.dtype) -> None:
    """A small weight is stored and read again on the device: no table of devices would stay true."""
    _check_library(kind)
    plain = torch.linspace(-1, 1, 64 * 64, dtype=dtype, device=device).reshape(64, 64)
    try:
        if kind == "int8":
            from torchao.quantization import Int8WeightOnlyConfig, quantize_

            layer = nn.Linear(64, 64, bias=False, dtype=dtype, device=device).requires_grad_(False)
            layer.weight.copy_(plain)
            quantize_(layer, Int8WeightOnlyConfig())
            weight: Any = layer.weight
            read = weight.dequantize()
        else:
            from bitsandbytes.functional import dequantize_4bit, quantize_4bit

            read = dequantize_4bit(*quantize_4bit(plain, quant_type=kind))
        right = bool((read - plain).abs().max() < 0.2)  # the widest gap between 4-bit numbers is 0.3
    except Exception as error:  # whatever a library raises where it has no kernel
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"quantize: {kind} does not run on {device} ({reason:.200}); {WAYS_OUT}") from None
    if not right:
        raise InputError(f"quantize: {kind} gives wrong numbers on {device}; {WAYS_OUT}")


def refuse_stored_twice(model_name: str, kind: str | None, model_config: Any) -> None:
    if kind is not None and stored_by(model_config):
        raise InputError(
            f"the model {model_name!r} is stored quantised already, by {stored_by(model_config)}; leave quantize out"
        )


def stored_by(model_config: Any) -> str:
    """The method by which a model's files are quantised; empty for a plain model."""
    stored = getattr(model_config, "quantization_config", None)
    method = stored.get("quant_method") if isinstance(stored, dict) else getattr(stored, "quant_method", None)
    return str(getattr(method, "value", method) or "")


def settle(model: Any, model_name: str, kind: str | None, dtype: torch.dtype) -> None:
    """A model that was loaded quantised computes in `dtype`, whatever it was stored from."""
    if kind is not None and not storages_in(model):
        raise InputError(
            f"no linear layer of {model_name!r} could be stored as {kind}, because it has none of torch's own; leave "
            "quantize out"
        )
    if stored_by(model.config) and not storages_in(model):
        raise InputError(
            f"the model {model_name!r} is stored quantised by {stored_by(model.config)}, in a way that burnish does "
            "not train on; use the model as it was before, with quantize: int8 or nf4"
        )
    if not storages_in(model):
        return
    for weight in model.parameters():
        if is_plain(weight):
            half = weight.dtype in (torch.float16, torch.bfloat16)  # as transformers leaves what is not quantised
            # A copy: what is a view of the mapped file would keep all of it, linear layers too, in memory.
            weight.data = weight.data.to(dtype if half else weight.dtype, copy=True)
    for module in model.modules():
        if type(module).__name__ == "Linear4bit":
            module.compute_dtype, module.compute_type_is_set = dtype, True
            module.weight.quant_state.dtype = dtype  # not rounded to the format that it was stored from
            # On some CPUs it would repack its weight at its first use, and compute in bfloat16 from then on.
            module.support_avx512bf16_for_cpu = False
    give_back()  # the dense weights that were read on the way
