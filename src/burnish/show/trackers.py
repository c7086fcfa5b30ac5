"""Metrics to where a team already looks: TensorBoard, Weights & Biases or trackio, by one config key."""

from __future__ import annotations

import importlib
import importlib.util
import secrets
from typing import Any, Protocol

from burnish.errors import InputError
from burnish.ppo.meanings import METRICS
from burnish.runs.run import Run
from burnish.text import without_secrets


class Tracker(Protocol):
    def log(self, results: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


class NoTracker:
    def log(self, results: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


class TensorBoard:
    """Event files in the run folder: `tensorboard --logdir runs`."""

    def __init__(self, run: Run, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=step + 1)

    def log(self, results: dict[str, Any]) -> None:
        for name, value in numbers_of(results).items():
            self._writer.add_scalar(name, value, results["step"])

    def close(self) -> None:
        self._writer.close()


class Hosted:
    """wandb and trackio, which share one way of being called."""

    def __init__(self, library: str, run: Run) -> None:
        self._library = importlib.import_module(library)
        more = {"id": _kept_id(run)} if library == "wandb" else {}  # trackio knows a run by its name
        try:
            settings = without_secrets(run.settings)
            self._library.init(project="burnish", name=run.name, config=settings, resume="allow", **more)
        except Exception as error:  # no account, no network, and whatever else they have
            raise InputError(f"tracker: {library} does not start: {error}") from None

    def log(self, results: dict[str, Any]) -> None:
        self._library.log(numbers_of(results), step=results["step"])

    def close(self) -> None:
        self._library.finish()


def check_tracker(name: str | None) -> None:
    """Refuses one that is not installed, before anything else is done."""
    if name is not None and importlib.util.find_spec(name) is None:
        raise InputError(f"tracker: {name} needs a package of that name; get it with: pip install {name}")


def open_tracker(name: str | None, run: Run, step: int = 0) -> Tracker:
    """For a run that is resumed after `step`: what was logged of later steps is replaced, or left as it is."""
    check_tracker(name)
    if name is None:
        return NoTracker()
    return TensorBoard(run, step) if name == "tensorboard" else Hosted(name, run)


def _kept_id(run: Run) -> str:
    """The same for a resumed run."""
    if not (run.folder / "tracker.json").is_file():
        run.write("tracker.json", {"id": secrets.token_hex(8)})
    return run.read("tracker.json")["id"]


def numbers_of(results: dict[str, Any]) -> dict[str, float]:
    """A step's metrics by name; the parts of the reward as reward_parts/NAME."""
    numbers = {n: float(results[n]) for n in METRICS if isinstance(results.get(n), int | float)}
    for group in ("reward_parts", "reward_costs", "seconds_by_process"):
        numbers |= {f"{group}/{name}": float(value) for name, value in results.get(group, {}).items()}
    return numbers
