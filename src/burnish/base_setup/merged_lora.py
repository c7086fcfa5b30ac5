"""A LoRA as a part of the frozen base: merged into its weights when it is loaded (docs/design.md says why)."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from peft import (
    LoraConfig,
    PeftModel,
    get_peft_model,
    get_peft_model_state_dict,
    load_peft_weights,
    set_peft_model_state_dict,
)
from safetensors import SafetensorError
from torch import Tensor

from burnish.base_setup.lora_files import CONFIG, FOLD, SCOPE_FILE, SHAPING, is_foreign, read_json, read_lora
from burnish.base_setup.lora_setup import other_shape
from burnish.decoder.base_identity import BaseIdentity, MergedLora, fingerprint_of_weights, other_tensors
from burnish.decoder.decoder import TOLERANCE, output_of, probe
from burnish.errors import InputError, is_out_of_memory

NAME = "start"


def is_to_be_merged(folder: Path, ours: LoraConfig, scope: str) -> bool:
    """What another tool made is. So is an adapter of burnish's that acts everywhere, where those of this run have
    another shape or act on the response alone. Any other is loaded as the adapter that it is, or refused.
    """
    if is_foreign(folder):
        return True
    if read_json(folder / SCOPE_FILE).get("adapter_scope") != "sequence" or not (folder / CONFIG).is_file():
        return False
    return scope != "sequence" or other_shape(read_json(folder / CONFIG), ours) is not None


def merge_lora(model: Any, identity: BaseIdentity, folder: Path) -> None:
    """base <- base + LoRA, by peft's own merge, and what the merged model says is what peft says of the two."""
    saved = read_lora(folder)
    if getattr(model, "hf_quantizer", None) is not None:
        raise InputError(
            f"the LoRA in {folder} cannot be merged into a quantized base: rounded again, it would be another model. "
            "Use the base as it was before it was quantized, and leave quantize out"
        )
    weights = _weights_of(folder, model.device)
    settings = {key: saved[key] for key in SHAPING if key in saved}
    identity.with_lora(MergedLora(str(folder.resolve()), _fingerprint(settings, weights)))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", UserWarning)  # peft's, of tied weights: the comparison decides
        bare = _logits(model)
        grafted = _grafted(model, folder, settings, weights, saved.get("base_model_name_or_path"))
        beside = _logits(model)
        grafted.merge_and_unload()
        merged = _logits(model)
    if not (beside - merged).abs().max() <= _rounding(model.dtype, bare, beside):
        raise InputError(
            f"the LoRA in {folder} says something else when it is merged into this base: it adapts weights that are "
            "shared (tied embeddings) or read past their module. Use a LoRA on the linear modules of the layers"
        )


def _grafted(
    model: Any, folder: Path, settings: dict[str, Any], weights: dict[str, Tensor], base_name: str | None
) -> PeftModel:
    """The LoRA beside the base, with every tensor of its file in its place."""
    named = f" (its config names {base_name})" if base_name else ""
    try:
        lora = LoraConfig(task_type="CAUSAL_LM", inference_mode=True, **settings)
        grafted = get_peft_model(model, lora, adapter_name=NAME).eval()
        own = get_peft_model_state_dict(grafted, adapter_name=NAME, save_embedding_layers=False)
        problem = other_tensors(own.keys() - weights.keys(), weights.keys() - own.keys())
        if problem:
            raise InputError(
                f"the LoRA in {folder} does not fit this base model, or is damaged: its file {problem}. Use the base "
                f"that it was trained on{named}; if it brings more than a LoRA, {FOLD}"
            )
        set_peft_model_state_dict(grafted, weights, adapter_name=NAME)
    except (RuntimeError, ValueError, TypeError, KeyError) as error:
        if isinstance(error, InputError) or is_out_of_memory(error):
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1].strip().rstrip(".")
        raise InputError(
            f"the LoRA in {folder} does not fit this base model: {reason}. Use the base that it was trained on{named}"
        ) from None
    return grafted


def _weights_of(folder: Path, device: torch.device) -> dict[str, Tensor]:
    try:
        weights = load_peft_weights(str(folder), device=str(device))
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        if is_out_of_memory(error):
            raise
        raise InputError(f"the weights of the LoRA in {folder} are damaged: {str(error).splitlines()[0]}") from None
    broken = [name for name, tensor in weights.items() if not bool(torch.isfinite(tensor).all())]
    if broken:
        raise InputError(f"the LoRA in {folder} holds numbers that are not finite ({broken[0]}); train it again")
    return weights


def _fingerprint(settings: dict[str, Any], weights: dict[str, Tensor]) -> str:
    """Which LoRA it is: every bit, and the settings that say what they mean."""
    in_order = {key: sorted(value, key=str) if isinstance(value, list) else value for key, value in settings.items()}
    named = {key: value for key, value in in_order.items() if value}  # unset is the same, however it is written
    said = torch.tensor(list(json.dumps(named, sort_keys=True).encode()), dtype=torch.uint8)
    return fingerprint_of_weights([("settings", said), *sorted(weights.items())])


def _logits(model: Any) -> Tensor:
    ids, _ = probe(output_of(model)[0].weight)
    return model(input_ids=ids, use_cache=False).logits.float()


def _rounding(dtype: torch.dtype, bare: Tensor, beside: Tensor) -> Tensor:
    """How far logits may be apart. In half precision weights are rounded when they are merged; what is as large as half
    of all that the LoRA does is not rounding.
    """
    largest = beside.abs().max()
    if dtype in TOLERANCE:
        return TOLERANCE[dtype] * largest
    return torch.maximum(5e-2 * largest, 0.5 * (beside - bare).abs().max())
