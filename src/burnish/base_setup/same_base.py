"""Is this the base that an adapter was trained on, and are prompts given to it in the same way?"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from burnish.decoder.base_identity import MERGED, MERGED_FROM, BaseIdentity
from burnish.errors import InputError


def check_base(folder: Path, then: Any, now: BaseIdentity) -> None:
    """`then` is what the adapter in `folder` says of its base."""
    if not isinstance(then, dict):
        warnings.warn(
            f"the adapter in {folder} was saved by an older version of burnish, which did not write down its base "
            f"model: whether it was trained on {now.name} cannot be checked",
            stacklevel=3,
        )
        return
    if then.get("dtype") == now.dtype and then.get("weights") != now.weights:
        raise InputError(
            f"the adapter in {folder} does not fit this base model: it was trained on {then.get('name')}, whose "
            f"weights are not those of {now.name}. Use the base that it was trained on, or train it again"
        )
    if then.get(MERGED) != now.parts.get(MERGED):
        here = None if now.merged is None else now.merged.folder
        same = ", which has changed since" if then.get(MERGED_FROM) == here else ""
        raise InputError(
            f"the adapter in {folder} was trained on {_base_with(then.get(MERGED_FROM))}, and here there is "
            f"{_base_with(here)}{same}. Set sft as in the run that made it, and bring back what it names"
        )
    _check_reading(folder, then, now)
    others = [part for part in ("model config", "tokenizer") if then.get(part) != now.parts[part]]
    if then.get("dtype") != now.dtype:
        others.append(f"number format ({then.get('dtype')}, here {now.dtype}, so weights cannot be compared)")
    if others:
        warnings.warn(
            f"the adapter in {folder} was trained on {then.get('name')} with another {' and '.join(others)}; its "
            "answers or scores may differ from those it was trained for",
            stacklevel=3,
        )


def _base_with(lora: str | None) -> str:
    return f"the base with the LoRA of {lora} merged into it" if lora else "the base alone"


def _check_reading(folder: Path, then: dict[str, Any], now: BaseIdentity) -> None:
    """Behind another system message or template an adapter meets prompts that it was not trained on."""
    read = then.get("reading")
    if not isinstance(read, dict) or now.reading is None:
        return
    differs = [f"{key}: {read.get(key)!r}" for key, value in now.reading.items() if read.get(key) != value]
    if differs:
        here = ", ".join(f"{key}: {value!r}" for key, value in now.reading.items())
        raise InputError(
            f"the adapter in {folder} was trained with {' and '.join(differs)}, and here it would read prompts with "
            f"{here}; set them as in the run that made it"
        )
    if now.reading["chat_template"] and then.get("chat template") != now.parts["chat template"]:
        raise InputError(
            f"the adapter in {folder} was trained with another chat template than the tokenizer of {now.name} has now; "
            "bring back that template, or train the adapter again"
        )
