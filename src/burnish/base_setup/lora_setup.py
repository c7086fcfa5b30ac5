"""Which modules of which layers get an adapter."""

from __future__ import annotations

from collections.abc import Sequence

from peft import LoraConfig
from torch import nn

from burnish.config import ModelConfig
from burnish.errors import InputError, nearest


def lora_config(config: ModelConfig, layers: Sequence[nn.Module]) -> LoraConfig:
    """peft's description of one adapter. Layers are always listed, and modules too: peft wants both or neither."""
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=_modules(config.lora_target_modules, layers[0]),
        layers_to_transform=_layers(config.lora_layers, len(layers)),
    )


def _layers(wanted: str | int | list[int], num_layers: int) -> list[int]:
    if isinstance(wanted, str):
        return list(range(num_layers))
    layers = list(range(num_layers - wanted, num_layers)) if isinstance(wanted, int) else sorted(set(wanted))
    if layers[0] < 0 or layers[-1] >= num_layers:
        raise InputError(
            f"lora_layers {wanted} does not fit this model, which has layers 0 to {num_layers - 1}; "
            f"use `all`, a number up to {num_layers}, or a list of those"
        )
    return layers


def _modules(wanted: str | list[str], layer: nn.Module) -> list[str]:
    linear = [name.split(".")[-1] for name, module in layer.named_modules() if isinstance(module, nn.Linear)]
    if wanted == "all-linear":
        return linear
    for name in wanted:
        if name not in linear:
            raise InputError(
                f"lora_target_modules: a layer of this model has no linear module {name!r}, only "
                f"{', '.join(linear)}{nearest(name, linear)}"
            )
    return list(wanted)
