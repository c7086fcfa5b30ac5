"""What all training stages share: one process per run folder, checkpoints, going on after a stop, clear ends."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.console import Console
from safetensors import SafetensorError

from burnish.checkpoints import Checkpoints, Saver, State
from burnish.config.stage_configs import RunFiles
from burnish.errors import InputError, ResourceError, StoppedError, is_disk_full
from burnish.guards import StopSignals
from burnish.runs import Run
from burnish.training_state import compare_identity

# What makes a run this run. Anything else may be changed when it goes on, and is told.
FIXED = (
    "model_name", "dtype", "lora_r", "lora_alpha", "lora_layers", "lora_target_modules", "adapter_scope",
    "chat_template", "system_prompt", "seed", "batch_size", "sft", "prompts", "eval_prompts", "num_eval_prompts",
    "demonstrations", "eval_demonstrations", "preferences", "eval_preferences", "scores", "fields", "skip_bad",
)  # fmt: skip


class Saving:
    """A stage's hold on its run folder, from its first step to its last."""

    def __init__(self, console: Console, run: Run, config: Any, stop: StopSignals) -> None:
        files = config if isinstance(config, RunFiles) else RunFiles()
        self.console = console
        self.run = run
        self.stop = stop
        self.checkpoints = Checkpoints(run.folder / "checkpoints", files.keep_checkpoints)
        self._every = (files.save_every, files.save_minutes)
        self._saver: Saver | None = None

    def begin(
        self,
        state_of: Callable[[], State],
        restore: Callable[[State], None],
        identity: dict[str, Any],
        from_step: int | None = None,
    ) -> int:
        """Goes on from the newest checkpoint, or from the one asked for; gives its step, 0 for a fresh start."""

        def with_identity() -> State:
            self.run.logs_to_disk()
            state = state_of()
            state.values["identity"] = identity
            return state

        self._saver = Saver(self.checkpoints, with_identity, *self._every)
        found = self._find(from_step)
        if found is not None:
            step, state = found
            for difference in compare_identity(state.values["identity"], identity):
                self.console.print(f"Differs, so the last bits may too: {difference}", highlight=False)
            restore(state)
            self._saver.resume(state)
        else:
            step = 0
        self.run.forget_after(step if found else -1)  # a fresh start answers its probes again
        self.checkpoints.forget_after(step)
        self.checkpoints.check_space(with_identity().nbytes)
        return step

    def _find(self, from_step: int | None) -> tuple[int, State] | None:
        if from_step is not None:
            return from_step, self.checkpoints.load(from_step)
        return self.checkpoints.latest(lambda message: self.console.print(message, highlight=False))

    def after_step(self, step: int, score: float, is_last: bool) -> None:
        """Saves if it is due; ends the run, saved, if someone asked for that."""
        assert self._saver is not None
        self._saver.after_step(step, score, is_last, must_save=self.stop.exit_code is not None)
        if self.stop.exit_code is not None and not is_last:
            raise StoppedError(f"stopped after step {step}, and saved. {go_on(self.run)}", self.stop.exit_code)

    @property
    def seconds(self) -> float:
        return self._saver.seconds if self._saver else 0.0


@contextmanager
def hold(console: Console, run: Run, config: Any) -> Iterator[Saving]:
    """The run folder is this process's alone, and a first Ctrl-C or SIGTERM waits for the step's end."""

    def announce(number: int) -> None:
        name = signal.Signals(number).name
        console.print(f"{name}: this step is finished and saved first; once more ends it at once.", highlight=False)
        console.show_cursor(True)

    with run.lock(), StopSignals(announce) as stop:
        try:
            yield Saving(console, run, config, stop)
            if stop.exit_code is not None and run.pipeline_folder:  # the other stages must not begin
                raise StoppedError(f"stopped, with the stage in {run.folder} done. {go_on(run)}", stop.exit_code)
        except (OSError, SafetensorError) as error:
            if not is_disk_full(error):
                raise
            raise ResourceError(
                f"the disk of {run.folder} is full. Checkpoints made before are intact; make room. {go_on(run)}"
            ) from error


def changed_settings(run: Run, config: Any) -> list[str]:
    """What is not as in the run's own config; a change that would make it another run is refused."""
    lines = run.differences(config)
    fixed = [line for k, line in lines.items() if k in FIXED]
    if fixed:
        raise InputError(
            f"{run.folder} was started with other settings ({'; '.join(fixed[:3])}), and these cannot change on the "
            "way; choose another run_name"
        )
    return list(lines.values())


def open_run(
    console: Console, config: Any, run_dir: str | Path, run_name: str | None, from_step: int | None
) -> tuple[Run, bool]:
    """The run, new or begun before, and whether there is nothing left to do. Settings that changed are told."""
    run = Run.new_or_unfinished(run_dir, run_name)
    changes = changed_settings(run, config) if run.was_begun else []
    for change in changes:
        console.print(f"Changed: {change}", highlight=False)
    finished = run.is_complete and not changes and from_step is None
    if finished:
        say_finished(console, run)
    return run, finished


def go_on(run: Run) -> str:
    """The command that continues, for a person to copy."""
    return f"Go on with: burnish resume {shlex.quote(str(run.pipeline_folder or run.folder))}"


def say_finished(console: Console, run: Run) -> None:
    console.print(f"{run.folder} is finished; there is nothing left to do.", highlight=False, soft_wrap=True)


def kept_start(run: Run, done: int, measure: Callable[[], float | None]) -> float | None:
    """A number measured before training, kept so that a run that goes on compares with the same."""
    if (run.folder / "start.json").is_file():
        return run.read("start.json")["value"]
    if done:
        return None
    value = measure()
    run.write("start.json", {"value": value})
    return value


def texts_of(records: Sequence[Any]) -> Iterator[str]:
    """Everything that a record says, for the data's fingerprint."""
    for record in records:
        for own in fields(record):
            yield str(getattr(record, own.name))
