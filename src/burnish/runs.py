"""The run folder: config, metrics, samples, adapters; written while the run goes on, readable by anything.

config.yaml      every setting of the run
metrics.jsonl    one line per PPO step (docs/metrics.md)
samples.jsonl    a few responses per step, each token with its log-probabilities, KL, value, advantage ...
adapters/        policy/ and value/ in peft's own format
result.json      held-out measurement before and after
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import yaml

from burnish.config import PPOConfig, TrainConfig
from burnish.errors import InputError
from burnish.metrics import METRICS
from burnish.models.adapter_files import save_adapter
from burnish.models.base_model import RoleModel
from burnish.sa_pairs import COLUMNS, SAPairs


class Run:
    """One run's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def new(cls, root: str | Path, name: str | None = None) -> Run:
        """A run that does not exist yet: nothing is written until `begin`. An existing one is never written over."""
        folder = Path(root) / (name or time.strftime("%Y%m%d-%H%M%S"))
        if folder.exists():
            raise InputError(f"{folder} exists already; choose another run_name, or move it away")
        return cls(folder)

    def begin(self, config: PPOConfig) -> Run:
        """Makes the folder and puts the config into it."""
        text = yaml.safe_dump(config.model_dump(), sort_keys=False)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "config.yaml").write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot write to the run folder {self.folder}: {error.strerror or error}") from None
        return self

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        folder = Path(folder)
        if not folder.is_dir():
            raise InputError(f"there is no folder {folder}; runs are kept in runs/, unless you chose another run_dir")
        if not (folder / "config.yaml").is_file():
            raise InputError(f"{folder} is not a run folder: it has no config.yaml")
        return cls(folder)

    @property
    def config(self) -> PPOConfig:
        file = self.folder / "config.yaml"
        try:
            values = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError):
            values = None
        if not isinstance(values, dict):
            raise InputError(f"{file} is damaged: it holds no settings")
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
        """One role's adapter (and head), under adapters/."""
        assert role.adapter is not None
        folder = self.folder / "adapters" / role.adapter
        save_adapter(role, folder)
        return folder

    def write_result(self, result: dict[str, Any]) -> None:
        (self.folder / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")

    def _append(self, file: str, row: dict[str, Any]) -> None:
        with (self.folder / file).open("a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")
