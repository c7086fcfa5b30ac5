"""The run folder: config, metrics, samples, adapters; written while the run goes on, readable by anything.

config.yaml      every setting of the run
metrics.jsonl    one line per PPO step (docs/metrics.md)
samples.jsonl    a few responses per step, each token with its log-probabilities, KL, value, advantage ...
adapters/        policy/ and value/ in peft's own format
result.json      held-out measurement before and after
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import torch
import yaml
from peft import load_peft_weights, set_peft_model_state_dict

from burnish.config import PPOConfig, TrainConfig
from burnish.errors import InputError
from burnish.metrics import METRICS
from burnish.models import SharedBase
from burnish.models.base_model import RoleModel, ScalarModel
from burnish.token_attribution import COLUMNS, SAPairs


class Run:
    """One run's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(cls, root: str | Path, name: str | None, config: PPOConfig) -> Run:
        """A new folder with the config in it; an existing run is never written over."""
        folder = Path(root) / (name or time.strftime("%Y%m%d-%H%M%S"))
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise InputError(f"{folder} exists already; choose another run_name, or move it away") from None
        except OSError as error:
            raise InputError(f"cannot create the run folder {folder}: {error.strerror or error}") from None
        (folder / "config.yaml").write_text(yaml.safe_dump(config.model_dump(), sort_keys=False), encoding="utf-8")
        return cls(folder)

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        folder = Path(folder)
        if not (folder / "config.yaml").is_file():
            raise InputError(f"{folder} is not a run folder: it has no config.yaml")
        return cls(folder)

    @property
    def config(self) -> PPOConfig:
        values = yaml.safe_load((self.folder / "config.yaml").read_text(encoding="utf-8"))
        return TrainConfig(**values) if "prompts" in values else PPOConfig(**values)

    @property
    def policy_folder(self) -> Path:
        return self.folder / "adapters" / "policy"

    # ------------------------------------------------------------------------------------------------- writing

    def log_step(self, results: dict[str, Any]) -> None:
        """The step's metrics, as one line."""
        self._append("metrics.jsonl", {name: results[name] for name in METRICS if name in results})

    def log_samples(self, results: dict[str, Any], prompts: list[str], tokenizer: Any, how_many: int) -> None:
        """The first responses of a step, token by token."""
        pairs: SAPairs = results["sa_pairs"]
        for number in range(min(how_many, len(prompts))):
            length = int(pairs.lengths[number])
            columns = {c.row_key: pairs[n][number, :length].tolist() for n, c in COLUMNS.items() if n in pairs}
            self._append(
                "samples.jsonl",
                {
                    "step": results["step"],
                    "prompt": prompts[number],
                    "response": results["generated_texts"][number],
                    "score": results["rewards"][number],
                    "tokens": [tokenizer.decode([i]) for i in columns["action"]],
                    **columns,
                },
            )

    def save_adapter(self, role: RoleModel) -> Path:
        """One role's adapter (and head), in peft's format. The folder appears complete or not at all."""
        base, name = role.base, role.adapter
        assert base.peft_model is not None
        assert name is not None
        target = self.folder / "adapters" / name
        scratch = self.folder / "adapters" / ".writing"
        shutil.rmtree(scratch, ignore_errors=True)
        base.peft_model.save_pretrained(scratch, selected_adapters=[name])
        written = scratch / name
        if base.scope == "response" and base.invocation:
            _set_invocation(written / "adapter_config.json", base.invocation)
        if isinstance(role, ScalarModel):
            role.save_head(written)
        shutil.rmtree(target, ignore_errors=True)
        written.rename(target)
        shutil.rmtree(scratch)
        return target

    def write_result(self, result: dict[str, Any]) -> None:
        (self.folder / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")

    def _append(self, file: str, row: dict[str, Any]) -> None:
        with (self.folder / file).open("a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")


def load_adapter(base: SharedBase, name: str, folder: Path) -> None:
    """Puts saved weights into an adapter of the same shape, and takes over the invocation it was trained with."""
    file = folder / "adapter_config.json"
    if not file.is_file():
        raise InputError(f"{folder} holds no adapter (no adapter_config.json); has the run finished a step?")
    assert base.peft_model is not None
    saved, ours = json.loads(file.read_text(encoding="utf-8")), base.peft_model.peft_config[name]
    for key in ("r", "lora_alpha", "layers_to_transform"):
        if saved[key] != getattr(ours, key):
            raise InputError(f"the adapter in {folder} has {key} {saved[key]}, this model's has {getattr(ours, key)}")
    if base.scope == "response":
        base.invocation = saved.get("alora_invocation_tokens") or []
    weights = load_peft_weights(str(folder), device=str(base.device))
    with torch.no_grad():
        set_peft_model_state_dict(base.peft_model, weights, adapter_name=name)


def _set_invocation(adapter_config: Path, invocation: list[int]) -> None:
    """Tells peft where the adapter begins to act: it searches a prompt for its last run of these tokens."""
    values = json.loads(adapter_config.read_text(encoding="utf-8"))
    values["alora_invocation_tokens"] = invocation
    adapter_config.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
