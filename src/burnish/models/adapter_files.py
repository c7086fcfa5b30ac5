"""Adapters on disk, in peft's own format."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from peft import load_peft_weights, set_peft_model_state_dict
from safetensors import SafetensorError

from burnish.disk import folder_to_disk, to_disk
from burnish.errors import InputError
from burnish.models.base_model import RoleModel, ScalarModel
from burnish.models.shared_base import SharedBase

# An adapter's shape, as peft and as our config call it.
SHAPE = {
    "r": "lora_r",
    "lora_alpha": "lora_alpha",
    "layers_to_transform": "lora_layers",
    "target_modules": "lora_target_modules",
}
SCOPE_FILE = "burnish.json"  # what peft's own config cannot say: where the adapter acts


def save_adapter(role: RoleModel, target: Path) -> None:
    """One role's adapter (and head). The folder appears complete or not at all."""
    base, name = role.base, role.adapter
    assert base.peft_model is not None
    assert name is not None
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.parent / f".writing-{target.name}"
    shutil.rmtree(scratch, ignore_errors=True)
    base.peft_model.save_pretrained(scratch, selected_adapters=[name], save_embedding_layers=False)
    written = scratch / name
    _write_json(written / SCOPE_FILE, {"adapter_scope": base.scope, "invocation": base.invocation})
    if base.scope == "response" and base.invocation:
        # Tells peft where the adapter begins to act: it searches a prompt for its last run of these tokens.
        config = _read_json(written / "adapter_config.json")
        _write_json(written / "adapter_config.json", config | {"alora_invocation_tokens": base.invocation})
    if isinstance(role, ScalarModel):
        role.save_head(written)
    folder_to_disk(written)
    if target.exists():
        target.rename(scratch / "before")
    written.rename(target)
    to_disk(target.parent)
    shutil.rmtree(scratch)


def adapter_folder(path: str | Path, role: str) -> Path:
    """Where a role's adapter lies: in a run's adapters/, or in the folder itself."""
    inside = Path(path) / "adapters" / role
    return inside if inside.is_dir() else Path(path)


def load_adapter(base: SharedBase, name: str, folder: Path) -> None:
    """Puts saved weights into an adapter of the same shape, and takes over the invocation it was trained with."""
    for file in ("adapter_config.json", "adapter_model.safetensors", SCOPE_FILE):
        if not (folder / file).is_file():
            raise InputError(f"{folder} holds no adapter saved by burnish (no {file}); has its run finished?")
    assert base.peft_model is not None
    saved, ours = _read_json(folder / "adapter_config.json"), base.peft_model.peft_config[name]
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
    base.invocation, base.invocation_is_loaded = invocation, True
    try:
        with torch.no_grad():
            weights = load_peft_weights(str(folder), device=str(base.device))
            set_peft_model_state_dict(base.peft_model, weights, adapter_name=name)
    except (RuntimeError, SafetensorError) as error:
        raise InputError(
            f"the adapter in {folder} does not fit this base model: {str(error).splitlines()[0]}"
        ) from None


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
