"""Which base model it is: every bit of its weights, the settings that shape it, and how it reads a text."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from burnish.decoder.quantized import storages_in, tensors_of

ADAPTER_WEIGHT = re.compile(r"\.lora_\w+\.([^.]+)(?:\.|$)")  # peft: ...q_proj.lora_A.policy.weight
# Where a config came from and what runs it, which make no other model of it.
INCIDENTAL = ("transformers_version", "architectures", "dtype", "torch_dtype", "name_or_path", "quantization_config")
MERGED, MERGED_FROM = "merged LoRA", "merged from"  # as they are written beside an adapter


@dataclass(frozen=True)
class MergedLora:
    """A LoRA that is a part of the base: its folder, and what is in it."""

    folder: str
    fingerprint: str


class BaseIdentity:
    """Fingerprints of a base model's parts, each taken when it is first asked for."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        name: str = "",
        reading: dict[str, Any] | None = None,
        kept: Callable[[Callable[[], str]], str] | None = None,
    ) -> None:
        """`reading` is how prompts are given to it: the config's chat_template and system_prompt; None if unknown.

        `kept(compute)` gives the weights' fingerprint from where it is kept, or computes it.
        """
        self.name = name or getattr(model.config, "_name_or_path", "") or type(model).__name__
        self.dtype = " and ".join([str(model.dtype).removeprefix("torch."), *storages_in(model)])
        self.reading = reading
        self.merged: MergedLora | None = None
        self._model = model
        self._tokenizer = tokenizer
        self._kept = kept or (lambda compute: compute())

    def with_lora(self, lora: MergedLora) -> None:
        """A LoRA is about to be merged into its weights. Both stay known by what they are now: the last bits of their
        sum depend on the machine.
        """
        _ = self.weights
        self.merged = lora

    @cached_property
    def weights(self) -> str:
        return self._kept(lambda: fingerprint_of_weights(base_weights(self._model)))

    @cached_property
    def model_config(self) -> str:
        settings = self._model.config.to_dict()
        kept = {k: v for k, v in settings.items() if not k.startswith("_") and k not in INCIDENTAL}
        stop = getattr(self._model.generation_config, "eos_token_id", None)
        return _fingerprint([type(self._model).__name__, kept, stop])

    @cached_property
    def tokenizer(self) -> str:
        """What turns texts into tokens. How a batch was last padded or cut is no part of it."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        rules = json.loads(backend.to_str()) if backend is not None else self._tokenizer.get_vocab()
        kept = {k: v for k, v in rules.items() if k not in ("padding", "truncation")}
        return _fingerprint([kept, {k: str(v) for k, v in self._tokenizer.special_tokens_map.items()}])

    @cached_property
    def chat_template(self) -> str:
        return _fingerprint(self._tokenizer.chat_template)

    @property
    def parts(self) -> dict[str, str]:
        """By the names under which a change is reported."""
        return {
            "weights": self.weights,
            "model config": self.model_config,
            "tokenizer": self.tokenizer,
            "chat template": self.chat_template,
            **({MERGED: self.merged.fingerprint} if self.merged else {}),
        }

    @property
    def of_computation(self) -> tuple[str, ...]:
        """All that the keys and values of given tokens depend on."""
        return self.weights, self.merged.fingerprint if self.merged else "", self.model_config, str(self._model.device)

    def as_dict(self) -> dict[str, Any]:
        """For a file beside what was trained on it."""
        merged = {MERGED_FROM: self.merged.folder} if self.merged else {}
        return {"name": self.name, "dtype": self.dtype, **self.parts, **merged, "reading": self.reading}


def adapter_of(parameter: str) -> str | None:
    """The adapter that a weight belongs to, by the weight's name; None for one that looks like the base's own."""
    found = ADAPTER_WEIGHT.search(parameter)
    return found[1] if found else None


def base_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """All weights but those of adapters, each once, as they are stored, under the names they had before any adapter was
    grafted.
    """
    grafted = getattr(model, "peft_config", None) or {}
    seen: set[int] = set()
    for name, weight in sorted(model.state_dict(keep_vars=True).items()):
        if adapter_of(name) not in grafted and id(weight) not in seen:  # tied ones go by several names
            seen.add(id(weight))
            yield from tensors_of(name.replace(".base_layer.", "."), weight)


@torch.no_grad()
def fingerprint_of_weights(named: Iterable[tuple[str, Tensor]]) -> str:
    """Which weights they are: names, shapes, and every bit."""
    digest = hashlib.sha256()
    for name, tensor in named:
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]


def other_tensors(missing: Collection[str], unexpected: Collection[str]) -> str:
    """What is wrong with the tensors of a file, as the end of a sentence; empty if nothing is."""
    said = [f"lacks {len(missing)} of its tensors ({_some(missing)})"] if missing else []
    said += [f"holds {len(unexpected)} that it has no place for ({_some(unexpected)})"] if unexpected else []
    return " and ".join(said)


def _some(names: Collection[str]) -> str:
    return ", ".join([*sorted(names)[:3], *(["..."] if len(names) > 3 else [])])


def _fingerprint(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:32]
