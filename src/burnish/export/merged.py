"""A plain model for transformers: the base with the LoRA folded into its weights, tokenizer and settings beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig

from burnish.decoder.base_identity import adapter_of
from burnish.errors import InputError
from burnish.export.source import Source


def is_quantized(source: Source) -> bool:
    return source.config.quantize is not None or getattr(source.base.model, "hf_quantizer", None) is not None


def refuse_unmergeable(source: Source) -> None:
    if is_quantized(source):
        raise InputError(
            "the base of this run is quantized. A LoRA cannot be folded into rounded weights, nor can they be written "
            "in another form: rounded again, it would be another model. Export the adapter (--to adapter), and load it "
            "on the same quantized base"
        )


@torch.no_grad()
def merged_weights(source: Source, with_adapter: bool = True) -> dict[str, Tensor]:
    """All weights of the base by their own names, with what the adapter adds, or without it; the base stays."""
    model = source.base.model
    added = {
        f"{name}.weight": module.get_delta_weight(source.adapter)
        for name, module in model.named_modules()
        if with_adapter and isinstance(module, BaseTunerLayer) and source.adapter in getattr(module, "lora_A", {})
    }
    weights = {}
    for stored, weight in model.state_dict().items():
        if adapter_of(stored) is not None:
            continue
        name = stored.replace(".base_layer.", ".")
        delta = added.pop(name, None)
        weights[name] = weight.detach() if delta is None else (weight.float() + delta.float()).to(weight.dtype)
    assert not added, f"no weight is called {next(iter(added), '')}"
    return weights


def write_merged(source: Source, folder: Path, with_adapter: bool = True) -> None:
    refuse_unmergeable(source)
    with torch.device("meta"):  # its own random weights would only take memory
        model: Any = AutoModelForCausalLM.from_config(source.base.model.config, dtype=source.base.model.dtype)
    model.load_state_dict(merged_weights(source, with_adapter), strict=True, assign=True)
    model.tie_weights()
    model.generation_config = generation_config(source)
    model.config._name_or_path = ""
    model.save_pretrained(folder)
    source.base.tokenizer.save_pretrained(folder)


def generation_config(source: Source) -> GenerationConfig:
    """Answers as in training, unless asked for otherwise; those of SFT as the base's own settings have them."""
    own, drawn = source.base.model.generation_config, source.drawn_with
    if drawn is None:
        settings = GenerationConfig.from_dict(own.to_dict())
        if not settings.do_sample:  # without it these mean nothing, and transformers writes no such file
            settings.temperature = settings.top_k = settings.top_p = None
    else:  # nothing else of the base's settings: a penalty on repetition was not there in training
        settings = GenerationConfig(bos_token_id=own.bos_token_id, pad_token_id=own.pad_token_id, do_sample=True)
        settings.temperature, settings.top_k, settings.top_p = drawn.temperature, drawn.top_k, drawn.top_p
    settings.eos_token_id = source.base.stop_ids
    settings.max_new_tokens = source.config.max_new_tokens
    return settings
