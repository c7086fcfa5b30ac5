"""Metrics to where a team already looks: TensorBoard, Weights & Biases or trackio, by one config key."""

from __future__ import annotations

from typing import Any, Protocol

from burnish.errors import InputError
from burnish.metrics import METRICS
from burnish.runs import Run


class Tracker(Protocol):
    def log(self, results: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


class NoTracker:
    def log(self, results: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


class TensorBoard:
    """Event files in the run folder: `tensorboard --logdir runs`."""

    def __init__(self, run: Run) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise InputError(_missing("tensorboard")) from None
        self._writer = SummaryWriter(str(run.folder / "tensorboard"))

    def log(self, results: dict[str, Any]) -> None:
        for name, value in numbers_of(results).items():
            self._writer.add_scalar(name, value, results["step"])

    def close(self) -> None:
        self._writer.close()


class Hosted:
    """wandb and trackio, which share one way of being called."""

    def __init__(self, library: str, run: Run) -> None:
        try:
            self._library = __import__(library)
        except ImportError:
            raise InputError(_missing(library)) from None
        self._library.init(project="burnish", name=run.folder.name, config=run.settings)

    def log(self, results: dict[str, Any]) -> None:
        self._library.log(numbers_of(results))

    def close(self) -> None:
        self._library.finish()


def open_tracker(name: str | None, run: Run) -> Tracker:
    if name is None:
        return NoTracker()
    return TensorBoard(run) if name == "tensorboard" else Hosted(name, run)


def numbers_of(results: dict[str, Any]) -> dict[str, float]:
    """A step's metrics by name; the parts of the reward as reward_parts/NAME."""
    numbers = {n: float(results[n]) for n in METRICS if isinstance(results.get(n), int | float)}
    return numbers | {f"reward_parts/{n}": float(v) for n, v in results.get("reward_parts", {}).items()}


def _missing(library: str) -> str:
    return f"tracker: {library} needs a package of that name; get it with: pip install {library}"
