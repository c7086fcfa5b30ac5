"""A learned judge as a reward."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from burnish.errors import InputError
from burnish.rewards.part import RewardPart, Workshop


class JudgedPart(RewardPart):
    """What all learned judges have in common."""

    def check(self, workshop: Workshop) -> None:
        for path in self.judges:
            if not Path(path).is_dir():
                raise InputError(f"the reward model's folder {path} does not exist; `burnish reward` makes one")
            if not (_adapter(path) / "head.safetensors").is_file():
                raise InputError(f"{path} holds no reward model; name the folder of a finished `burnish reward` run")

    def files(self) -> list[Path]:
        return [file for path in self.judges for file in sorted(_adapter(path).glob("*.safetensors"))]

    def deeds(self) -> Iterator[str]:
        return iter(())  # weights run nothing


class ModelPart(JudgedPart):
    """A reward model that `burnish reward` trained."""

    path_keys = model_keys = ("path",)
    kind: Literal["model"] = "model"
    path: str
    """Folder of the reward run, or of its adapter."""

    @property
    def judges(self) -> list[str]:
        return [self.path]

    def make(self, workshop: Workshop) -> Any:
        assert workshop.reward_model is not None
        return workshop.reward_model(self.path)


def _adapter(path: str) -> Path:
    of_run = Path(path) / "adapters" / "reward"
    return of_run if of_run.is_dir() else Path(path)
