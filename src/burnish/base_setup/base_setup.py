"""From a config to the shared base: model and tokenizer loaded, adapters grafted."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import huggingface_hub
import numpy as np
import torch
from peft import PeftModel
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from burnish.base_setup.kept_fingerprints import KeptFingerprint
from burnish.base_setup.lora_files import SCOPE_FILE, check_start, is_foreign, read_json
from burnish.base_setup.lora_setup import lora_config
from burnish.base_setup.merged_lora import is_to_be_merged, merge_lora
from burnish.base_setup.quantization import library_of, loading, refuse_stored_twice, settle, stored_by
from burnish.base_setup.same_base import check_base
from burnish.base_setup.sources import WAYS_OUT, full_name, model_source
from burnish.base_setup.tokenizer_setup import PromptEncoder
from burnish.config import ModelConfig
from burnish.config.stage_configs import RunConfig
from burnish.data import Split, prompts_of
from burnish.data.hub import hub_answers
from burnish.decoder.base_identity import BaseIdentity, other_tensors
from burnish.decoder.decoder import context_length
from burnish.decoder.quantized import storages_in
from burnish.decoder.sharded import shard
from burnish.decoder.shared_base import SharedBase
from burnish.decoder.whole_model import layers_of
from burnish.errors import InputError, is_out_of_memory
from burnish.processes import world

T = TypeVar("T")


class BaseSetup:
    """Loads the base once and prepares what every role stands on."""

    def __init__(
        self,
        config: ModelConfig,
        model: Any = None,
        tokenizer: Any = None,
        encoder: PromptEncoder | None = None,
        start: Path | None = None,
    ) -> None:
        """`model` and `tokenizer` may be given ready-made instead of being loaded by name; `encoder` is one that has
        its tokenizer loaded, and perhaps prompts read, already. `start` is the folder of the adapter that training
        starts from: it is merged into the base here, or left in `self.start` to be loaded.
        """
        seed_everything(config.seed)  # adapter initialisation follows the seed
        if (model is None) != (tokenizer is None):
            raise InputError("give both a model and its tokenizer, or neither")
        if isinstance(model, PeftModel):
            raise InputError(
                "the model that is given carries a peft adapter, and burnish grafts its own on the model below; give "
                "model.merge_and_unload()"
            )
        name, kept, is_given = "", None, model is not None
        if model is None:
            dtype = choose_dtype(config.dtype, choose_device(config.device))
            numbers = f"{dtype} {library_of(config.quantize)}".strip()
            name, kept = full_name(config), KeptFingerprint(lambda: _folder_of(config), numbers)
            tokenizer = encoder.tokenizer if encoder else load_tokenizer(config)
            model = _by_all(config, lambda: load_model(config))
            kept.loaded()
        elif config.quantize is not None and config.quantize not in storages_in(model):
            raise InputError(
                f"quantize: {config.quantize} is for a model that is loaded by its name, and this one was given as it "
                "is; load it quantised, or leave quantize out"
            )
        reading = {"chat_template": config.chat_template, "system_prompt": config.system_prompt}
        identity = BaseIdentity(model, tokenizer, name, reading, kept)
        self.start = start
        if start is not None and _by_all(config, lambda: _is_merged(config, model, identity, start, is_given)):
            self.start = None
        if config.shard:
            _spread(model, identity, config)
        self.base = SharedBase(model, tokenizer, config.adapter_scope, config.prompt_cache_mb * 2**20, identity)
        if not self.base.stop_ids:
            raise InputError(
                f"{config.model_name} names no end-of-text token, so no response could ever finish; "
                "set eos_token in its tokenizer or generation config"
            )
        layers = self.base.decoder.layers  # before anything is grafted on them
        self._lora = lora_config(config, layers, model.config.model_type)
        self.encoder = encoder or _encoder(config, tokenizer, model.config)

    def add_adapter(self, name: str) -> None:
        """A fresh adapter of the configured shape."""
        self.base.add_adapter(name, copy.deepcopy(self._lora))


def _is_merged(config: ModelConfig, model: Any, identity: BaseIdentity, start: Path, is_given: bool) -> bool:
    """Merges an adapter that has to be; says whether it was one."""
    check_start(str(start), start)
    ours = lora_config(config, layers_of(model.get_decoder()), model.config.model_type)
    if not is_to_be_merged(start, ours, config.adapter_scope):
        return False
    if is_given:
        raise InputError(
            f"the LoRA in {start} would have to be merged into the model that is given, which stays as it is; merge it "
            "first and leave sft out: model = PeftModel.from_pretrained(model, FOLDER).merge_and_unload()"
        )
    if not is_foreign(start):
        check_base(start, read_json(start / SCOPE_FILE).get("base"), identity)
    merge_lora(model, identity, start)
    return True


def _by_all(config: ModelConfig, work: Callable[[], T]) -> T:
    """Of processes that are about to share a base, all have done their part of the work before, or none goes on."""
    if not config.shard:
        return work()
    with world.all_again(), world.together():
        return work()


def _spread(model: Any, identity: BaseIdentity, config: ModelConfig) -> None:
    """Over all processes, if there are several. Which weights they are is found out before that: later no process has
    all of them.
    """
    with world.all_again():
        if world.size() > 1:
            with world.together():
                _ = identity.weights
            shard(model, layers_of(model.get_decoder()), choose_device(config.device), config.shard_offload)


def seed_everything(seed: int) -> None:
    """Adapters begin with random numbers, and a reward may use some: the same seed, the same run."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def load_tokenizer(config: ModelConfig) -> Any:
    return _from_pretrained(AutoTokenizer, config)


def load_model_config(config: ModelConfig) -> Any:
    return _from_pretrained(AutoConfig, config)


def load_model(config: ModelConfig) -> Any:
    """A model by name, on its device. Weights come as safetensors; code from a hub is never run."""
    device = choose_device(config.device)
    dtype = choose_dtype(config.dtype, device)
    files = load_model_config(config)
    refuse_stored_twice(config.model_name, config.quantize, files)
    options: dict[str, Any] = {
        "config": files,
        "dtype": dtype,
        "use_safetensors": True,
        "output_loading_info": True,
    }
    if config.quantize is not None:
        options |= loading(config.quantize, device, dtype)
    elif stored_by(files):
        options["device_map"] = {"": device}
    model, found = _from_pretrained(AutoModelForCausalLM, config, **options)
    _refuse_other_tensors(config.model_name, found)
    settle(model, config.model_name, config.quantize, dtype)
    with world.all_again():
        stays = config.shard and world.size() > 1  # layer by layer it gets its place when it is shared out
    return model if "device_map" in options or stays else model.to(device)


def _refuse_other_tensors(model_name: str, found: Mapping[str, Collection[str]]) -> None:
    """What a file lacks, transformers would fill with random numbers; what is too much belongs to another model."""
    problem = other_tensors(found["missing_keys"], found["unexpected_keys"])
    if problem:
        raise InputError(
            f"the model {model_name!r} is not the one that its config.json describes: its weights file {problem}. Get "
            "the model again, or correct its config.json"
        )


def readable(config: RunConfig, encoder: PromptEncoder, data: Split[Any]) -> Split[Any]:
    """The data whose prompts the model can read, known before its weights are loaded. Others are refused, or, with
    `skip_bad`, left out and counted.
    """
    if not config.skip_bad:
        encoder.encode(prompts_of(data.everything))
        return data
    unreadable = {p for p in prompts_of(data.everything) if encoder.try_encode(p)[1]}
    train, held_out = (
        [r for r, p in zip(side, prompts_of(side), strict=True) if p not in unreadable]
        for side in (data.train, data.held_out)
    )
    if not train:
        raise InputError(f"none of the {len(data.train)} training rows has a prompt that the model can read")
    left_out = len(data.everything) - len(train) - len(held_out)
    return Split(train, held_out, data.num_left_out + left_out)


def load_encoder(config: ModelConfig, tokenizer: Any = None) -> PromptEncoder:
    """How the model reads prompts; needs none of its weights."""
    tokenizer = tokenizer or load_tokenizer(config)
    return _encoder(config, tokenizer, load_model_config(config))


def _encoder(config: ModelConfig, tokenizer: Any, model_config: Any) -> PromptEncoder:
    context = context_length(model_config)
    return PromptEncoder(tokenizer, context, config.max_new_tokens, config.chat_template, config.system_prompt)


def _folder_of(config: ModelConfig) -> Path | None:
    """Where the model's files lie: its own folder, or that of the hub's cache; None if it is not there yet."""
    source = model_source(config)
    if Path(source).is_dir():
        return Path(source)
    with suppress(ValueError):  # what is no hub id is refused when it is loaded
        cached = huggingface_hub.try_to_load_from_cache(source, "config.json", revision=config.revision)
        return Path(cached).parent if isinstance(cached, str) else None
    return None


def _from_pretrained(kind: Any, config: ModelConfig, /, **options: Any) -> Any:
    source = model_source(config)
    is_folder = Path(source).is_dir()
    local_only = is_folder or not hub_answers()
    if config.revision is not None:
        options["revision"] = config.revision
    try:
        return kind.from_pretrained(source, trust_remote_code=False, local_files_only=local_only, **options)
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
        if is_out_of_memory(error):
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        hub = " (no model hub answers from here)" if local_only and not is_folder else ""
        raise InputError(f"cannot load the model {full_name(config)!r}{hub}: {reason}\n{WAYS_OUT}") from None


def choose_device(wanted: str) -> torch.device:
    if ":" in wanted and world.size() > 1:
        raise InputError(f"device {wanted!r} is a single one, and several processes have one each; name no number")
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.zeros(0, device=wanted).device
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {wanted!r} cannot be used here: {str(error).splitlines()[0]}") from None


def choose_dtype(wanted: str, device: torch.device) -> torch.dtype:
    if wanted != "auto":
        return getattr(torch, wanted)
    return torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported() else torch.float32
