"""`burnish models`: what a model is and what burnish would do with it, before its weights are loaded."""

from __future__ import annotations

import copy
from typing import Any

import torch
from rich.console import Console
from torch import nn
from transformers import AutoModelForCausalLM

from burnish.base_setup.base_setup import choose_device, choose_dtype, load_model_config
from burnish.base_setup.lora_setup import adaptable, unreachable
from burnish.base_setup.quantization import stored_by
from burnish.config import ModelConfig
from burnish.decoder.decoder import context_length
from burnish.decoder.shared_base import decoder_of
from burnish.decoder.whole_model import layers_of
from burnish.errors import BurnishError, InputError
from burnish.runs.disk import megabytes
from burnish.text import plain

FEW_LAYERS, FEW_TOKENS, FEW_EXPERTS = 2, 512, 4


def describe(console: Console, model_name: str) -> dict[str, Any]:
    """Its family, size and context; what of its work is shared; where adapters go: shown, and given."""
    config = ModelConfig(model_name=model_name)
    model_config = load_model_config(config)
    dtype = choose_dtype(config.dtype, choose_device(config.device))
    try:
        with torch.device("meta"):
            whole = AutoModelForCausalLM.from_config(model_config)
    except (ValueError, KeyError, AttributeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{model_name} is no causal language model that transformers knows: {reason}") from None
    count = sum(p.numel() for p in whole.parameters())
    layers = layers_of(whole.get_decoder())
    facts: dict[str, Any] = {
        "model": model_name,
        "family": model_config.model_type,
        "parameters": count,
        "layers": len(layers),
        "base_bytes": count * dtype.itemsize,
        "dtype": str(dtype).removeprefix("torch."),
        "quantised": _quantised(layers, count, dtype, stored_by(model_config)),
        "context": context_length(model_config),
        "work_shared": _sharing(model_config),
        "adapters_on": list(adaptable(layers, model_config.model_type)),
        "not_adapted": list(unreachable(layers)),
    }
    rows = {
        "family": facts["family"],
        "parameters": f"{count / 1e6:,.0f} million in {len(layers)} layers",
        "base in memory": f"{megabytes(facts['base_bytes'])} as {facts['dtype']}, for all roles",
        "quantised": facts["quantised"],
        "context": f"{facts['context']:,} tokens",
        "work shared": facts["work_shared"],
        "adapters on": ", ".join(facts["adapters_on"]),
    }
    if facts["not_adapted"]:
        rows["not adapted"] = f"{', '.join(facts['not_adapted'])} (peft cannot reach them)"
    for name, value in rows.items():
        console.print(plain(f"{name:16}{value}"), highlight=False, soft_wrap=True)
    return facts


def _quantised(layers: nn.ModuleList, count: int, dtype: torch.dtype, stored: str) -> str:
    """What the base would take with its linear layers in fewer bits."""
    if stored:
        return f"already, by {stored}: less memory than that"
    linear = [module.weight for module in layers.modules() if type(module) is nn.Linear]
    numbers, rows = sum(weight.numel() for weight in linear), sum(len(weight) for weight in linear)
    if not numbers:
        return "cannot be: no linear layers of torch's own"
    rest = (count - numbers) * dtype.itemsize
    int8, nf4 = numbers + 5 * rows, numbers / 2 + 4 * numbers / 64  # scale and zero of a row; the scale of a block
    return f"{megabytes(rest + int8)} with quantize: int8, {megabytes(rest + nf4)} with nf4"


def _sharing(model_config: Any) -> str:
    """Found out with a model of the same config, but of few layers and random weights."""
    small = copy.deepcopy(model_config)
    text = small.get_text_config()
    kinds = getattr(text, "layer_types", None)
    few = FEW_LAYERS
    while kinds and set(kinds[:few]) != set(kinds):
        few += 1
    text.num_hidden_layers = min(few, text.num_hidden_layers)
    if kinds and len(text.layer_types) > text.num_hidden_layers:  # some configs make them from that number
        text.layer_types = kinds[: text.num_hidden_layers]
    experts = max(FEW_EXPERTS, getattr(text, "num_experts_per_tok", None) or 0)
    for key, most in (("vocab_size", FEW_TOKENS), ("num_experts", experts), ("num_local_experts", experts)):
        if getattr(text, key, None):
            setattr(text, key, min(getattr(text, key), most))
    for key in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(text, key, None)
    try:
        decoder = decoder_of(AutoModelForCausalLM.from_config(small))
    except (BurnishError, ValueError, RuntimeError, TypeError, AttributeError, KeyError, IndexError) as error:
        return f"not known before it is loaded ({str(error).splitlines()[0]})"
    if decoder.shares_trunk:
        return "prompt and trunk, in both scopes"
    if decoder.shares_prompts:
        return f"prompt, in both scopes; called as a whole, because {decoder.reason}"
    return f"nothing, so it is slower; adapter_scope: sequence only, because {decoder.reason}"
