"""A learned judge as a reward."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from burnish.errors import InputError
from burnish.rewards.part import RewardPart, Workshop


class ModelPart(RewardPart):
    """A reward model that `burnish reward` trained."""

    path_keys = ("path",)
    kind: Literal["model"] = "model"
    path: str
    """Folder of the reward run, or of its adapter."""

    def make(self, workshop: Workshop) -> Any:
        assert workshop.reward_model is not None
        return workshop.reward_model(self.path)

    def check(self, workshop: Workshop) -> None:
        if not Path(self.path).is_dir():
            raise InputError(f"the reward model's folder {self.path} does not exist; `burnish reward` makes one")
        if not (self._adapter / "head.safetensors").is_file():
            raise InputError(f"{self.path} holds no reward model; name the folder of a finished `burnish reward` run")

    def files(self) -> list[Path]:
        return sorted(self._adapter.glob("*.safetensors"))

    @property
    def _adapter(self) -> Path:
        of_run = Path(self.path) / "adapters" / "reward"
        return of_run if of_run.is_dir() else Path(self.path)

    def deeds(self) -> Iterator[str]:
        return iter(())  # weights run nothing
