"""What all training stages share: one process per run folder, checkpoints, resuming after a stop, clear ends."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from safetensors import SafetensorError

from burnish.config.stage_configs import RunConfig
from burnish.errors import (
    BurnishError,
    DivergedError,
    InputError,
    LostProcessError,
    NoCheckpointError,
    ResourceError,
    StoppedError,
    is_disk_full,
    is_out_of_memory,
)
from burnish.processes import world
from burnish.runs.checkpoints import Checkpoints, State
from burnish.runs.disk import free_space
from burnish.runs.journal import Journal
from burnish.runs.kept import keep
from burnish.runs.log import keep_log
from burnish.runs.run import Run
from burnish.runs.same_run import Now, Then, may_resume
from burnish.runs.stop import StopSignals, request_name, stop_signals
from burnish.text import plain

ADAM = 3  # weights, and the optimizer's two moments of each
AVERAGED_STEPS = 5  # a single step's reward is mostly luck: the best checkpoint is the best mean of these


class Saving:
    """A stage's hold on its run folder, from its first step to its last."""

    def __init__(
        self, console: Console, run: Run, config: RunConfig, stop: StopSignals, journal: Journal | None = None
    ) -> None:
        self.console = console
        self.run = run
        self.config = config
        self.stop = stop
        self.journal = journal or Journal(run)
        self.checkpoints = Checkpoints(run.folder / "checkpoints", config.keep_checkpoints)
        self.best: tuple[int, float] | None = None
        self._state_of: Callable[[], State] = State
        self._rewards: list[float] = []
        self._last_save, self._last_step = time.monotonic(), 0
        self._seconds_saving = self._seconds_restoring = 0.0
        self._data = ""

    # -------------------------------------------------------------------------------------------------- the start

    def begin(
        self,
        state_of: Callable[[], State],
        restore: Callable[[State], None],
        identity: dict[str, Any],
        from_step: int | None = None,
    ) -> int:
        """Resumes from the newest checkpoint, or from the one asked for; gives its step, 0 for a fresh start.

        Nothing in the run folder changes until the checkpoint is accepted. Then, in an order in which a kill between
        any two loses nothing: what will be made again is copied into a folder of its own, an old result is taken back,
        later checkpoints set aside, the logs cut, the config kept.
        """
        self._data = identity["data"]

        def whole_state() -> State:
            state = state_of()
            state.values |= {"identity": identity, "config": self.config.model_dump(mode="json")}
            return state

        self._state_of = whole_state
        started = time.monotonic()
        refuse_other_data(identity)
        found: tuple[int, State] | None = None
        with world.together():
            if world.is_first():
                found = self._find(from_step)
                if found is not None:
                    self._accept(found[1], identity)
        found = _of_first(found)
        step = 0
        with world.together():
            if found is not None:
                step, state = found
                restore(state)
                self._restore_own(state)
        growth = 1 if found else ADAM  # a fresh optimizer holds nothing yet
        world.by_first(lambda: self._prepare(step if found else None, growth * whole_state().nbytes))
        self._seconds_restoring = time.monotonic() - started if found else 0.0
        return step

    def _accept(self, state: State, identity: dict[str, Any]) -> None:
        """Once more, now that all is known: config.yaml may have been edited, files may have changed."""
        then = Then(state.value("config"), state.value("identity"))
        for change in may_resume(self.run.folder, then, Now(self.config, identity)).identity:
            self._print(change)

    def _prepare(self, step: int | None, nbytes: int) -> None:
        """The folder, for what comes after `step`; None: for a fresh start."""
        self._print(self.checkpoints.check_space(nbytes, step or 0))
        kept_up_to = -1 if step is None else step  # a fresh start answers its probes again
        if left := keep(self.run, kept_up_to):
            fresh = "There is no checkpoint, so it starts again. " if step is None else ""
            told = f"{fresh}What is made again is kept as it was in {left}"
            self.console.print(told, markup=False, highlight=False, soft_wrap=True)
        self.run.take_back_result()
        self.checkpoints.forget_after(step or 0)
        self.run.forget_after(kept_up_to)
        self.run.begin(self.config)
        self.journal.begin(step or 0)
        keep_log(self.run)
        if self.stop.exit_code is not None:  # asked for while the model was loaded
            self.journal.told_to_stop(request_name(self.stop.exit_code - 128))

    def _find(self, from_step: int | None) -> tuple[int, State] | None:
        if from_step is not None:
            return from_step, self.checkpoints.load(from_step)
        found = self.checkpoints.latest(self._print)
        if found is None and self.run.is_complete:
            raise NoCheckpointError(f"{self.run.folder} is finished and has no checkpoint to resume from")
        return found

    def _restore_own(self, state: State) -> None:
        own = state.value("saver")
        self.best = tuple(own["best"]) if own["best"] else None
        self._rewards, self._last_step = list(own["rewards"]), int(own["step"])

    # ----------------------------------------------------------------------------------------------- between steps

    def after_step(self, step: int, reward: float, is_last: bool) -> None:
        """Saves if it is due; ends the run, saved, if someone asked for that, of whichever process."""
        self.hear_journal()
        stopped = int(world.largest(self.stop.exit_code or 0)) or None  # read once: a signal may come at any time
        world.by_first(lambda: self._save_if_due(step, reward, is_last or stopped is not None))
        if stopped is not None:
            raise StoppedError(f"stopped after step {step}, and saved. {resume_command(self.run)}", stopped)

    def hear_journal(self) -> None:
        """What is asked for there counts as a first Ctrl-C, for a pipeline too."""
        if self.stop.exit_code is None and self.journal.asks_to_stop:
            self.stop.exit_code = 128 + signal.SIGINT

    def _save_if_due(self, step: int, reward: float, at_once: bool) -> None:
        self._rewards.append(reward)
        by_steps = self.config.save_every and step % self.config.save_every == 0
        by_time = time.monotonic() - self._last_save > 60 * self.config.save_minutes
        if (by_steps or by_time or at_once) and step != self._last_step:
            self._save(step)

    def _save(self, step: int) -> None:
        """The best checkpoint is the one with the best mean reward of the last steps."""
        started = time.monotonic()
        self._rewards = self._rewards[-AVERAGED_STEPS:]
        mean = sum(self._rewards) / len(self._rewards)
        if self.best is None or mean > self.best[1]:
            self.best = (step, mean)
        self.run.logs_to_disk()
        state = self._state_of()
        state.values["saver"] = {"best": self.best, "rewards": self._rewards, "step": step}
        self.checkpoints.save(step, state, self.best[0])
        self._last_save, self._last_step = time.monotonic(), step
        self._seconds_saving += self._last_save - started

    # ---------------------------------------------------------------------------------------------------- the end

    @property
    def facts(self) -> dict[str, Any]:
        """For the run's result: what safety cost it (seconds spent on saving, and on finding and restoring a
        checkpoint), and the fingerprint of its data.
        """
        return {
            "seconds_saving": round(self._seconds_saving, 2),
            "seconds_restoring": round(self._seconds_restoring, 2),
            "data_fingerprint": self._data,
        }

    def last_good(self) -> str:
        """What there is to resume from after numbers went wrong, for a person to copy."""
        steps = [c.step for c in self.checkpoints.all() if c.problem is None]
        if not steps:
            return "There is no checkpoint yet."
        earlier = f" (or {', '.join(map(str, steps[:-1]))}, from before the trouble)" if steps[1:] else ""
        whole = self.run.pipeline_folder
        setting = f"{self.config.section}.learning_rate=..." if whole else "learning_rate=..."
        return (
            f"The last good checkpoint is of step {steps[-1]}{earlier}: "
            f"burnish resume {shlex.quote(str(whole or self.run.folder))} --from STEP {setting}"
        )

    def _print(self, sentence: str) -> None:
        self.console.print(plain(sentence), highlight=False)


@contextmanager
def hold(console: Console, run: Run, config: RunConfig) -> Iterator[Saving]:
    """The run folder is this process's alone; a first Ctrl-C or SIGTERM waits for the step's end; a full disk, memory
    that ran out and numbers that went wrong end with what there is to resume from.
    """
    journal = Journal(run)
    with locked(run), stop_signals(console, journal) as stop:
        stopped = int(world.largest(stop.exit_code or 0))
        if stopped:  # asked for while a pipeline loaded this stage's model
            raise StoppedError(f"stopped before the first step of {run.folder}. {resume_command(run)}", stopped)
        saving = Saving(console, run, config, stop, journal)
        with saving.journal.hears_warnings(), _noted(saving.journal):
            try:
                yield saving
                saving.hear_journal()
            except DivergedError as error:
                raise DivergedError(f"{error}\n{saving.last_good()}") from error
            except LostProcessError as error:
                raise LostProcessError(
                    f"{error}; this step is lost. Checkpoints made before are intact. {resume_command(run)}"
                ) from error
            except (OSError, SafetensorError) as error:
                if not is_disk_full(error):
                    raise
                raise ResourceError(
                    f"the disk of {run.folder} is full ({free_space(run.folder)} free). Checkpoints made before are "
                    f"intact; make room. {resume_command(run)}"
                ) from error
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                raise ResourceError(
                    f"memory ran out. Lower batch_size, max_new_tokens, activation_mb or prompt_cache_mb, or end other "
                    f"programs. Checkpoints made before are intact. {resume_command(run)}"
                ) from error


@contextmanager
def _noted(journal: Journal) -> Iterator[None]:
    """How the work ended is in the journal, unless not even that can be written any more."""
    try:
        yield
    except BaseException as error:
        stopped = isinstance(error, StoppedError | KeyboardInterrupt)
        told = str(error) if isinstance(error, BurnishError) else f"{type(error).__name__}: {error}"
        with suppress(OSError, BurnishError):
            journal.end("stopped" if stopped else "failed", told)
        raise
    journal.end("finished")


@contextmanager
def locked(run: Run) -> Iterator[None]:
    """The run folder is held by the first process, for all of them."""
    with ExitStack() as held:
        with world.together():
            if world.is_first():
                held.enter_context(run.lock())
        yield


def refuse_other_data(identity: dict[str, Any]) -> None:
    """All processes must have read the same data and the same base, with the same versions: then the weights that they
    begin with, which follow from the seed, are the same too.
    """
    if world.size() == 1:
        return
    read = ("data", "base model", "frozen adapters", "versions")
    first, *others = world.gather({name: identity[name] for name in read})
    for number, other in enumerate(others, 1):
        wrong = [name for name in read if other[name] != first[name]]
        if wrong:
            raise InputError(
                f"process {number} has read other {' and '.join(wrong)} than the first; all machines need the same "
                "files, and the same versions of what reads them"
            )


def _of_first(found: tuple[int, State] | None) -> tuple[int, State] | None:
    """The first process's checkpoint, for all: the others need not see its folder."""
    if world.size() == 1:
        return found
    known = world.gather(None if found is None else [found[0], found[1].values])[0]
    tensors = world.tensors_of_first(None if found is None else found[1].tensors)
    return None if known is None else (known[0], State(tensors, known[1]))


def resume_command(run: Run) -> str:
    """The command that resumes it, for a person to copy."""
    if not (run.pipeline_folder or run.was_begun):
        return "It had not begun: give the same command again"
    return resume_folder(run.pipeline_folder or run.folder)


def resume_folder(folder: Path) -> str:
    return f"Resume with: burnish resume {shlex.quote(str(folder))}"


def say_finished(console: Console, run: Run) -> None:
    console.print(plain(f"{run.folder} is already finished; nothing to do."), highlight=False, soft_wrap=True)
