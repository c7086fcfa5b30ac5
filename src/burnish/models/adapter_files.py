"""Adapters on disk, in peft's own format."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from peft import get_peft_model_state_dict, load_peft_weights, set_peft_model_state_dict
from safetensors import SafetensorError

from burnish.base_setup.lora_files import CONFIG, OWN_CONFIG, SCOPE_FILE, WEIGHTS, read_json
from burnish.base_setup.lora_setup import other_shape
from burnish.base_setup.same_base import check_base
from burnish.decoder.base_identity import other_tensors
from burnish.decoder.shared_base import SharedBase
from burnish.errors import InputError
from burnish.models.role import RoleModel, ScalarModel
from burnish.processes import world
from burnish.runs.disk import folder_to_disk, fresh_folder
from burnish.runs.run import Run
from burnish.system.files import to_disk


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
    if base.identity.merged is not None:  # peft would load the bare base by its name, and say nothing
        name_of_base = f"{base.identity.name} with {base.identity.merged.folder} merged into it"
        _write_json(written / CONFIG, read_json(written / CONFIG) | {"base_model_name_or_path": name_of_base})
    if base.scope == "response" and base.invocation:
        # Tells peft where the adapter begins to act: it searches a prompt for its last run of these tokens.
        _write_json(written / CONFIG, read_json(written / CONFIG) | {"alora_invocation_tokens": base.invocation})
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
    if world.is_first():
        save_adapter(role, folder)
    return folder


def load_adapter(base: SharedBase, name: str, folder: Path) -> None:
    """Puts saved weights into an adapter of the same shape, and takes over the invocation it was trained with."""
    config = OWN_CONFIG if (folder / OWN_CONFIG).is_file() else CONFIG
    for file in (config, WEIGHTS, SCOPE_FILE):
        if not (folder / file).is_file():
            raise InputError(f"{folder} holds no adapter saved by burnish (no {file}); has its run finished?")
    assert base.peft_model is not None
    differs = other_shape(read_json(folder / config), base.peft_model.peft_config[name])
    if differs:
        raise InputError(f"the adapter in {folder} {differs} the run that made it")
    scope = read_json(folder / SCOPE_FILE)
    if scope.get("adapter_scope") != base.scope:
        raise InputError(
            f"the adapter in {folder} was trained with adapter_scope: {scope.get('adapter_scope')}; set that"
        )
    invocation = scope.get("invocation") or []
    if (base.invocation or base.invocation_is_loaded) and invocation != base.invocation:
        raise InputError(f"the adapter in {folder} begins at tokens {invocation}, others here at {base.invocation}")
    check_base(folder, scope.get("base"), base.identity)
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


def _write_json(file: Path, values: dict[str, Any]) -> None:
    file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
