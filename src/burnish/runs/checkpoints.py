"""Checkpoints: all that a run needs to resume as if nothing had happened.

A checkpoint is a folder `step-000010`. It is written under another name, every file is forced to the disk, the manifest
with all sizes and hashes comes last, then the folder is renamed: it is whole, or it is not there. Damage that comes
later is found by the hashes; a damaged checkpoint is set aside, and the one before it is used. Tensors are kept in
safetensors, everything else in JSON.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from burnish.errors import BurnishError, NoCheckpointError, ResourceError, is_disk_full
from burnish.runs.disk import (
    folder_to_disk,
    free_name,
    free_space,
    fresh_folder,
    inside,
    megabytes,
    refuse_links,
    to_disk,
)

if TYPE_CHECKING:
    from torch import Tensor

MANIFEST = "MANIFEST.json"
TENSORS = "tensors.safetensors"
VALUES = "values.json"
FORMAT = 4
NO_LONGER_READ = {3: "it is of a run whose KL was charged over the kept set alone, which this version no longer does"}
"""Formats of earlier versions that bear the same number as this one, and why they are refused."""
SPARE_BYTES = 50 * 2**20  # what a run writes beside its checkpoints


@dataclass
class State:
    """Tensors by name, and whatever JSON can hold."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors.values())

    def value(self, name: str) -> Any:
        if name not in self.values:
            raise NoCheckpointError(f"the checkpoint does not hold {name!r}; it was made by another kind of run")
        return self.values[name]

    def part(self, name: str) -> State:
        """What was added under a name."""
        tensors = {k.removeprefix(f"{name}/"): t for k, t in self.tensors.items() if k.startswith(f"{name}/")}
        return State(tensors, self.value(name))

    def add(self, name: str, state: State) -> State:
        """Takes in another state under a name."""
        self.tensors |= {f"{name}/{k}": t for k, t in state.tensors.items()}
        self.values[name] = state.values
        return self


@dataclass(frozen=True)
class Checkpoint:
    """One that is on the disk. `problem` says why it cannot be used."""

    step: int
    folder: Path
    nbytes: int
    problem: str | None


class Checkpoints:
    """A run's checkpoints. The last `keep` and the best one stay."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder = folder
        self.keep = keep

    def save(self, step: int, state: State, best_step: int | None = None) -> Path:
        """Durable once this returns. Older ones are removed only then."""
        target = self._folder(step)
        scratch = self.folder / f".writing-{step:06d}"
        try:
            self._remove_scratch()
            fresh_folder(scratch)
            _save_tensors(state.tensors, scratch / TENSORS)
            (scratch / VALUES).write_text(json.dumps(state.values), encoding="utf-8")
            files = {name: _fingerprint(scratch / name) for name in (TENSORS, VALUES)}
            manifest = {"format": FORMAT, "step": step, "versions": versions(), "files": files}
            (scratch / MANIFEST).write_text(json.dumps(manifest | {"sha256": _digest(manifest)}))
            folder_to_disk(scratch)
            if target.exists():  # nothing is removed before the new one is durable
                target.rename(free_name(self.folder / f"left-{step:06d}"))
            scratch.rename(target)
            to_disk(self.folder)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(scratch, ignore_errors=True)
            raise _cannot_save(error, self.folder, state.nbytes) from error
        self._remove_old(step, best_step)
        return target

    def load(self, step: int) -> State:
        """The state after a step; a checkpoint that is not as it was written is refused."""
        folder = self._folder(step)
        problem = _problem(folder)
        if problem:
            raise NoCheckpointError(f"checkpoint {folder} cannot be used: {problem}{self._others(step)}")
        return _state_in(folder)

    def latest(self, on_damaged: Callable[[str], None] = lambda message: None) -> tuple[int, State] | None:
        """The newest one that verifies, or None where none was ever made. Damaged ones are set aside."""
        for step in sorted(self._steps(), reverse=True):
            folder = self._folder(step)
            problem = _problem(folder)
            if problem is None:
                return step, _state_in(folder)
            aside = free_name(self.folder / f"damaged-{step:06d}")
            folder.rename(aside)
            on_damaged(
                f"checkpoint of step {step} is damaged ({problem}); it is now {aside}, and the one before it is used"
            )
        if any(self.folder.glob("damaged-*")):  # from now or from before: a fresh start would hide what was lost
            raise NoCheckpointError(
                f"no checkpoint in {self.folder} verifies; damaged ones were renamed, nothing was removed"
            )
        return None

    def steps(self) -> list[int]:
        """Those there are, oldest first; whether they verify is found out when one is loaded."""
        return sorted(self._steps())

    def all(self) -> list[Checkpoint]:
        """Oldest first, each verified."""
        return [self._look_at(step) for step in sorted(self._steps())]

    def forget_after(self, step: int) -> None:
        """Those of later steps, which will be made again, are set aside under another name."""
        for later in [s for s in self._steps() if s > step]:
            self._folder(later).rename(free_name(self.folder / f"left-{later:06d}"))

    def check_space(self, nbytes: int, step: int = 0) -> str:
        """Room for all checkpoints that will be there at one time, before hours are spent; says what they will take.

        Those after `step` will be set aside, and their room with them.
        """
        there = self.folder
        while not there.exists():
            there = there.parent
        needed = nbytes * (self.keep + 2) + SPARE_BYTES  # the best one, and the one being written
        have = sum(_size_of(self._folder(s)) for s in self._steps() if s <= step)
        free = shutil.disk_usage(there).free
        if needed - have > free:
            raise ResourceError(
                f"checkpoints need {megabytes(needed)} in {self.folder}, and {megabytes(free)} are free; make room, "
                "lower keep_checkpoints, or choose another run_dir"
            )
        all_of_them = megabytes(nbytes * (self.keep + 2))
        return f"Checkpoints take {megabytes(nbytes)} each, {all_of_them} at most; {megabytes(free)} are free."

    # ------------------------------------------------------------------------------------------------- inside

    def _steps(self) -> Iterator[int]:
        folder = self._inside()
        for path in folder.glob("step-*") if folder.is_dir() else ():
            if re.fullmatch(r"step-\d{6,}", path.name):
                yield int(path.name.removeprefix("step-"))

    def _folder(self, step: int) -> Path:
        return self._inside(f"step-{step:06d}")

    def _inside(self, name: str = "") -> Path:
        """A path in the run folder that no link leads out of."""
        return inside(self.folder.parent, f"{self.folder.name}/{name}")

    def _look_at(self, step: int) -> Checkpoint:
        folder = self._folder(step)
        try:
            problem = _problem(folder)
        except NoCheckpointError as error:
            problem = str(error)
        return Checkpoint(step, folder, _size_of(folder), problem)

    def _remove_old(self, newest: int, best_step: int | None) -> None:
        older = sorted((s for s in self._steps() if s < newest), reverse=True)
        for step in older[self.keep - 1 :]:
            if step != best_step:  # renamed first: one that is half removed must not look damaged
                self._folder(step).rename(self.folder / f".removing-{step:06d}")
        self._remove_scratch()

    def _remove_scratch(self) -> None:
        for path in self.folder.glob(".*ing-*"):
            shutil.rmtree(path, ignore_errors=True)

    def _others(self, step: int) -> str:
        usable = [str(c.step) for c in self.all() if c.problem is None and c.step != step]
        return f"; usable: {', '.join(usable)}" if usable else ""


def _save_tensors(tensors: dict[str, Tensor], file: Path) -> None:
    from safetensors.torch import save_file  # brings torch, which looking at checkpoints does not need

    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, file)


def _state_in(folder: Path) -> State:
    from safetensors.torch import load_file

    return State(load_file(folder / TENSORS), json.loads((folder / VALUES).read_text(encoding="utf-8")))


def _size_of(folder: Path) -> int:
    return sum(f.stat().st_size for f in folder.iterdir() if f.is_file())


def _problem(folder: Path) -> str | None:
    """Why a checkpoint cannot be trusted; None if every byte is as it was written.

    One that cannot be read now, or not by this version, may still be good: that is an error, not damage.
    """
    refuse_links(folder)
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest.pop("sha256") != _digest(manifest):
            return f"{MANIFEST} is damaged"
        files, written_as, step = manifest["files"], manifest["format"], manifest["step"]
        known = {name: (entry["bytes"], entry["sha256"]) for name, entry in files.items()}
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except OSError as error:
        raise NoCheckpointError(f"cannot read {folder / MANIFEST}: {error.strerror}; nothing was changed") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is damaged"
    if written_as in NO_LONGER_READ:
        raise NoCheckpointError(f"{folder} cannot be resumed: {NO_LONGER_READ[written_as]}. Start a new run")
    if written_as != FORMAT:
        raise NoCheckpointError(
            f"{folder} has format {written_as}, this version of burnish reads {FORMAT}; resume with the version that "
            f"wrote it: {manifest.get('versions')}"
        )
    if folder.name != f"step-{step:06d}" or set(known) != {TENSORS, VALUES}:
        return f"{MANIFEST} belongs to another checkpoint"
    for name, (size, digest) in known.items():
        try:
            if (folder / name).stat().st_size != size:
                return f"{name} has {(folder / name).stat().st_size} bytes, not {size}"
            if _fingerprint(folder / name)["sha256"] != digest:
                return f"{name} is not what was written"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            raise NoCheckpointError(f"cannot read {folder / name}: {error.strerror}; nothing was changed") from None
    return None


def versions() -> dict[str, str]:
    """Of what a run's last bits depend on."""
    return {name: version(name) for name in ("burnish", "torch", "transformers", "peft")}


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _fingerprint(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        return {"bytes": file.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}


def _cannot_save(error: Exception, folder: Path, nbytes: int) -> BurnishError:
    what = "the disk is full" if is_disk_full(error) else str(error)
    return ResourceError(
        f"cannot save a checkpoint of {megabytes(nbytes)} in {folder}: {what} ({free_space(folder)} free). Checkpoints "
        "made before are intact; make room, then `burnish resume`"
    )
