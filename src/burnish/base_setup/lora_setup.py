"""Which modules of which layers get an adapter."""

from __future__ import annotations

from typing import Any

from peft import LoraConfig
from torch import nn
from transformers.pytorch_utils import Conv1D

from burnish.config import ModelConfig
from burnish.errors import InputError, nearest

# Mamba's layers read these weights past the module: peft refuses the one, and an adapter on the other would do nothing.
WITH_MAMBA_LAYERS = ("mamba", "mamba2", "falcon_mamba", "falcon_h1", "nemotron_h")
READ_PAST_THE_MODULE = ("out_proj", "dt_proj")

# An adapter's shape, as peft and as our config call it.
SHAPE = {
    "r": "lora_r",
    "lora_alpha": "lora_alpha",
    "layers_to_transform": "lora_layers",
    "target_modules": "lora_target_modules",
}


def lora_config(config: ModelConfig, layers: nn.ModuleList, model_type: str) -> LoraConfig:
    """peft's description of one adapter. Layers are always listed, and modules too: peft wants both or neither."""
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=_modules(config.lora_target_modules, adaptable(layers, model_type)),
        layers_to_transform=_layers(config.lora_layers, len(layers)),
        revision=config.revision,  # so that peft fetches the same base
    )


def other_shape(saved: dict[str, Any], ours: LoraConfig) -> str | None:
    """In what a saved adapter's shape differs from ours, as a sentence's middle; None if in nothing."""
    for key, setting in SHAPE.items():
        theirs, wanted = _plain(saved.get(key)), _plain(getattr(ours, key))
        if theirs != wanted:
            return f"has {setting} {theirs}, this config asks for {wanted}; set {setting} as in"
    return None


def _plain(value: Any) -> Any:
    """A set of names has no order; JSON keeps it as a list."""
    return sorted(value) if isinstance(value, set | list) else value


def adaptable(layers: nn.ModuleList, model_type: str) -> list[str]:
    """Names of the modules that can get an adapter. Layers may be of several kinds, so that none has all of them."""
    found = (named for layer in layers for named in layer.named_modules())
    names = dict.fromkeys(name.split(".")[-1] for name, module in found if isinstance(module, nn.Linear | Conv1D))
    return [name for name in names if not (model_type in WITH_MAMBA_LAYERS and name in READ_PAST_THE_MODULE)]


def unreachable(layers: nn.ModuleList) -> list[str]:
    """Weights of experts that are one tensor with three sides, and no linear module."""
    modules = (module for layer in layers for module in layer.named_modules() if not isinstance(module[1], nn.Conv1d))
    found = ((f"{path}.{name}", weight) for path, m in modules for name, weight in m.named_parameters(recurse=False))
    return list(dict.fromkeys(name.split(".", 1)[-1] for name, weight in found if weight.dim() == 3))


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


def _modules(wanted: str | list[str], linear: list[str]) -> list[str]:
    if wanted == "all-linear":
        return linear
    for name in wanted:
        if name not in linear:
            raise InputError(
                f"lora_target_modules: no layer of this model has a linear module {name!r}, only "
                f"{', '.join(linear)}{nearest(name, linear)}"
            )
    return list(wanted)
