"""A LoRA's folder, whoever made it: its files, and what of it can become a part of the frozen base."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from burnish.errors import InputError
from burnish.runs.disk import inside, refuse_links

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
SCOPE_FILE = "burnish.json"  # what peft's own config cannot say: where the adapter acts, and on which base
# Without tokens to begin at, peft and servers would take a response-scope adapter for one that acts everywhere, and say
# something else without a word. None of them loads a folder without CONFIG, so its settings get another name.
OWN_CONFIG = "adapter_config.only-for-burnish.json"

# What a LoRA computes, as peft's config has it. All of this is exact when it is merged.
SHAPING = (
    "r",
    "lora_alpha",
    "target_modules",
    "target_parameters",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "rank_pattern",
    "alpha_pattern",
    "use_rslora",
    "use_dora",
    "fan_in_fan_out",
)
# What was said of its training, or of the machine that it ran on.
INCIDENTAL = (
    "peft_type",
    "peft_version",
    "task_type",
    "auto_mapping",
    "base_model_name_or_path",
    "revision",
    "inference_mode",
    "lora_dropout",
    "init_lora_weights",
    "loftq_config",
    "eva_config",
    "corda_config",
    "lora_ga_config",
    "runtime_config",
    "megatron_core",
    "qalora_group_size",
)
PLAIN_BEGINNINGS = (True, False, None, "gaussian", "orthogonal", "eva")  # others change the base's own weights
CANNOT_BE_MERGED = {
    "modules_to_save": "brings whole modules of its own",
    "trainable_token_indices": "brings embeddings of its own",
    "layer_replication": "repeats layers of its base",
    "bias": "brings biases of its own",
    "lora_bias": "brings biases of its own",
}
FOLD = (
    "fold it into its base with peft (PeftModel.from_pretrained(base, FOLDER).merge_and_unload(), then save_pretrained "
    "of model and tokenizer) and give that folder as model_name"
)


def adapter_folder(path: str | Path, role: str) -> Path:
    """Where a role's adapter lies: in a run's adapters/, or in the folder itself."""
    of_run = inside(Path(path), f"adapters/{role}")
    if not of_run.is_dir():
        return Path(path)
    refuse_links(of_run)
    return of_run


def is_foreign(folder: Path) -> bool:
    """Whether it was made elsewhere: burnish writes down where its adapters act, and on which base."""
    return not (folder / SCOPE_FILE).is_file()


def check_start(named: str, folder: Path) -> None:
    """Refuses what cannot be a start, as far as the files tell it; `named` is as the config has it."""
    if not (folder / WEIGHTS).is_file():
        raise InputError(f"sft: {named} holds no SFT adapter{_way_out(folder)}")
    if is_foreign(folder):
        read_lora(folder)


def _way_out(folder: Path) -> str:
    if (folder / "adapter_model.bin").is_file():
        return " but adapter_model.bin, a kind of file that could run code; save it with peft as safetensors"
    return (
        "; name the folder of a finished run of `burnish sft`, or that of a LoRA in peft's format "
        f"({CONFIG} and {WEIGHTS})"
    )


def read_lora(folder: Path) -> dict[str, Any]:
    """The settings of a LoRA that can be merged into a base. Any other is refused, with the way out."""
    if not (folder / CONFIG).is_file():
        raise InputError(f"{folder} holds no LoRA in peft's format: it has no {CONFIG}")
    saved = read_json(folder / CONFIG)
    kind = saved.get("peft_type") if isinstance(saved, dict) else None
    if kind != "LORA":
        raise InputError(f"the adapter in {folder} is no LoRA (peft_type: {kind}), and only a LoRA can be a start")
    if saved.get("alora_invocation_tokens"):
        raise InputError(
            f"the adapter in {folder} is an activated LoRA that burnish did not make: it acts only after its "
            "invocation tokens, so it cannot be a part of the base. Start from an ordinary LoRA, or from `burnish sft`"
        )
    if saved.get("init_lora_weights", True) not in PLAIN_BEGINNINGS:
        raise InputError(
            f"the LoRA in {folder} began with init_lora_weights: {saved['init_lora_weights']}, which changes the "
            f"base's own weights too; {FOLD}"
        )
    for key, value in saved.items():
        if key in (*SHAPING, *INCIDENTAL) or not value or (key, value) == ("bias", "none"):
            continue
        reason = CANNOT_BE_MERGED.get(key, "does something that burnish cannot merge exactly")
        raise InputError(f"the LoRA in {folder} {reason} ({key}: {value!r:.60}); {FOLD}")
    return saved


def read_json(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file} is damaged: {error}") from None
