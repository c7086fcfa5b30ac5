"""`burnish models`: what a model is and what burnish would do with it, before its weights are loaded."""

from __future__ import annotations

import copy
from typing import Any

import torch
from peft import get_peft_model
from rich.console import Console
from torch import nn
from transformers import AutoModelForCausalLM

from burnish.base_setup.base_setup import choose_device, choose_dtype, load_model_config
from burnish.base_setup.lora_setup import adaptable, lora_config, unreachable
from burnish.base_setup.quantization import stored_by
from burnish.config import PPOConfig
from burnish.decoder.decoder import Decoder, context_length
from burnish.decoder.memory import give_back, held_bytes
from burnish.decoder.shared_base import SharedBase, decoder_of
from burnish.decoder.whole_model import WholeModel, layers_of
from burnish.errors import BurnishError, InputError
from burnish.ppo.step_memory import GROWTH, HOLES, BaseSizes, sizes_of, work_of
from burnish.runs.disk import megabytes
from burnish.text import plain

FEW_LAYERS, FEW_TOKENS, FEW_EXPERTS = 2, 512, 4
USUAL_PROMPT, MANY_PROMPTS = 256, 1000  # tokens, and how many that may come back


def describe(console: Console, model_name: str) -> dict[str, Any]:
    """Its family, size and context; what of its work is shared; where adapters go; what a PPO step will take: shown,
    and given.
    """
    config = PPOConfig(model_name=model_name)
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
    few = of_few_layers(model_config)
    decoder, why_not = _decoder_of(few)
    facts: dict[str, Any] = {
        "model": model_name,
        "family": model_config.model_type,
        "parameters": count,
        "layers": len(layers),
        "base_bytes": count * dtype.itemsize,
        "dtype": str(dtype).removeprefix("torch."),
        "quantised": _quantised(layers, count, dtype, stored_by(model_config)),
        "context": context_length(model_config),
        "work_shared": _sharing(decoder) if decoder else f"not known before it is loaded ({why_not})",
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
    if decoder is not None and choose_device(config.device).type == "cpu":
        scope = config.adapter_scope if decoder.shares_prompts else "sequence"
        del decoder
        facts["peak_bytes"] = peak = _peak(config, whole, few, scope, facts["base_bytes"], dtype)
        setting = f"{config.batch_size} responses of {config.max_new_tokens} tokens to prompts of {USUAL_PROMPT}"
        told = f"{megabytes(peak)} at its peak, predicted for the defaults: {setting}" if peak else "not known yet"
        rows["a PPO step"] = told
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


def of_few_layers(model_config: Any) -> Any:
    """The same config with few layers of every kind, few tokens and few experts: a model of it, with random weights,
    can be tried out.
    """
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
    return small


def _decoder_of(model_config: Any) -> tuple[Decoder | WholeModel | None, str]:
    """None, and why, where no such model can be built."""
    try:
        return decoder_of(AutoModelForCausalLM.from_config(model_config)), ""
    except (BurnishError, ValueError, RuntimeError, TypeError, AttributeError, KeyError, IndexError) as error:
        return None, str(error).splitlines()[0]


def _sharing(decoder: Decoder | WholeModel) -> str:
    if decoder.shares_trunk:
        return "prompt and trunk, in both scopes"
    if decoder.shares_prompts:
        return f"prompt, in both scopes; called as a whole, because {decoder.reason}"
    return f"nothing, so it is slower; adapter_scope: sequence only, because {decoder.reason}"


def _peak(config: PPOConfig, whole: Any, few: Any, scope: str, base_bytes: int, dtype: torch.dtype) -> int | None:
    """The predicted peak of a step with everything as the defaults have it, this process and its libraries included;
    None where the model has to be loaded to know it.
    """
    family, layers = whole.config.model_type, layers_of(whole.get_decoder())
    vocabulary = whole.get_output_embeddings().weight.shape[0]
    try:
        sizes = sizes_from_few(config, few, scope, len(layers)).in_numbers(vocabulary, dtype.itemsize)
    except (RuntimeError, ValueError, TypeError, AttributeError, KeyError, IndexError):
        return None
    adapted = get_peft_model(whole, lora_config(config, layers, family))  # of no memory, as the model itself
    adapters = 2 * sum(p.numel() * 4 for name, p in adapted.named_parameters() if "lora_" in name)  # policy and value
    work = work_of(sizes, config, [USUAL_PROMPT] * MANY_PROMPTS)
    give_back()
    held = held_bytes() + base_bytes + adapters
    return round(held + HOLES * (GROWTH * adapters + work.prompts + work.largest_phase))


def sizes_from_few(config: PPOConfig, few: Any, scope: str, num_layers: int) -> BaseSizes:
    """Of a base with so many layers, from a few of them with adapters: work grows with their number."""
    base = SharedBase(AutoModelForCausalLM.from_config(few), None, scope)
    base.add_adapter("policy", lora_config(config, base.decoder.layers, few.model_type))
    return sizes_of(base).with_layers(num_layers / base.num_layers)
