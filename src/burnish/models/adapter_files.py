"""Adapters on disk, in peft's own format."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from peft import get_peft_model_state_dict, load_peft_weights, set_peft_model_state_dict
from safetensors import SafetensorError

from burnish.decoder.base_identity import BaseIdentity, other_tensors
from burnish.decoder.shared_base import SharedBase
from burnish.errors import InputError
from burnish.models.role import RoleModel, ScalarModel
from burnish.runs.disk import folder_to_disk, fresh_folder, inside, refuse_links, to_disk
from burnish.runs.run import Run

# An adapter's shape, as peft and as our config call it.
SHAPE = {
    "r": "lora_r",
    "lora_alpha": "lora_alpha",
    "layers_to_transform": "lora_layers",
    "target_modules": "lora_target_modules",
}
SCOPE_FILE = "burnish.json"  # what peft's own config cannot say: where the adapter acts, and on which base
CONFIG = "adapter_config.json"
# Without tokens to begin at, peft and servers would take a response-scope adapter for one that acts everywhere, and say
# something else without a word. None of them loads a folder without CONFIG, so its settings get another name.
OWN_CONFIG = "adapter_config.only-for-burnish.json"


def save_adapter(role: RoleModel, target: Path) -> None:
    """One role's adapter (and head). The folder appears complete or not at all."""
    base, name = role.base, role.adapter
    assert base.peft_model is not None
    assert name is not None
    scratch = fresh_folder(target.parent / f".writing-{target.name}")
    base.peft_model.save_pretrained(scratch, selected_adapters=[name], save_embedding_layers=False)
    written = scratch / name
    facts = {"adapter_scope": base.scope, "invocation": base.invocation, "base": base.identity.as_dict()}
    _write_json(written / SCOPE_FILE, facts)
    if base.scope == "response" and base.invocation:
        # Tells peft where the adapter begins to act: it searches a prompt for its last run of these tokens.
        _write_json(written / CONFIG, _read_json(written / CONFIG) | {"alora_invocation_tokens": base.invocation})
    elif base.scope == "response":
        (written / CONFIG).rename(written / OWN_CONFIG)
    if isinstance(role, ScalarModel):
        role.save_head(written)
    folder_to_disk(written)
    if target.exists():
        target.rename(scratch / "before")
    written.rename(target)
    to_disk(target.parent)
    shutil.rmtree(scratch)


def save_to_run(run: Run, role: RoleModel) -> Path:
    """The same, under a run's adapters/."""
    assert role.adapter is not None
    folder = run.path(f"adapters/{role.adapter}")
    save_adapter(role, folder)
    return folder


def adapter_folder(path: str | Path, role: str) -> Path:
    """Where a role's adapter lies: in a run's adapters/, or in the folder itself."""
    of_run = inside(Path(path), f"adapters/{role}")
    if not of_run.is_dir():
        return Path(path)
    refuse_links(of_run)
    return of_run


def load_adapter(base: SharedBase, name: str, folder: Path) -> None:
    """Puts saved weights into an adapter of the same shape, and takes over the invocation it was trained with."""
    config = OWN_CONFIG if (folder / OWN_CONFIG).is_file() else CONFIG
    for file in (config, "adapter_model.safetensors", SCOPE_FILE):
        if not (folder / file).is_file():
            raise InputError(f"{folder} holds no adapter saved by burnish (no {file}); has its run finished?")
    assert base.peft_model is not None
    saved, ours = _read_json(folder / config), base.peft_model.peft_config[name]
    for key, setting in SHAPE.items():
        theirs, wanted = _plain(saved.get(key)), _plain(getattr(ours, key))
        if theirs != wanted:
            raise InputError(
                f"the adapter in {folder} has {setting} {theirs}, this config asks for {wanted}; set {setting} as in "
                "the run that made it"
            )
    scope = _read_json(folder / SCOPE_FILE)
    if scope.get("adapter_scope") != base.scope:
        raise InputError(
            f"the adapter in {folder} was trained with adapter_scope: {scope.get('adapter_scope')}; set that"
        )
    invocation = scope.get("invocation") or []
    if (base.invocation or base.invocation_is_loaded) and invocation != base.invocation:
        raise InputError(f"the adapter in {folder} begins at tokens {invocation}, others here at {base.invocation}")
    _check_base(folder, scope.get("base"), base.identity)
    base.act_from(invocation, loaded=True)
    try:
        with torch.no_grad():
            weights = load_peft_weights(str(folder), device=str(base.device))
            own = get_peft_model_state_dict(base.peft_model, adapter_name=name, save_embedding_layers=False)
            problem = other_tensors(own.keys() - weights.keys(), weights.keys() - own.keys())
            if problem:
                raise InputError(
                    f"the adapter in {folder} is incomplete or damaged: its file {problem}. Bring back the file as it "
                    "was saved, or train the adapter again"
                )
            set_peft_model_state_dict(base.peft_model, weights, adapter_name=name)
    except (RuntimeError, SafetensorError) as error:
        raise InputError(
            f"the adapter in {folder} does not fit this base model: {str(error).splitlines()[0]}"
        ) from None


def _check_base(folder: Path, then: Any, now: BaseIdentity) -> None:
    """The base must be the one that the adapter was trained on, and prompts must be given to it in the same way."""
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


def _plain(value: Any) -> Any:
    """A set of names has no order; JSON keeps it as a list."""
    return sorted(value) if isinstance(value, set | list) else value


def _read_json(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file} is damaged: {error}") from None


def _write_json(file: Path, values: dict[str, Any]) -> None:
    file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
