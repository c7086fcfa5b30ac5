"""What all training stages share: one process per run folder, checkpoints, going on after a stop, clear ends."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from safetensors import SafetensorError

from burnish.checkpoints import Checkpoints, Saver, State
from burnish.config.files import DATA_KEYS
from burnish.config.model_config import ModelConfig
from burnish.config.stage_configs import RunFiles
from burnish.data import Split
from burnish.disk import free_space
from burnish.errors import DivergedError, InputError, NoCheckpointError, ResourceError, StoppedError, is_disk_full
from burnish.guards import StopSignals, is_out_of_memory
from burnish.kept import keep
from burnish.runs import Run
from burnish.terminal import plain
from burnish.training_state import compare_identity, fingerprint_of_texts

# What makes a run this run. Anything else may be changed when it goes on, and is told.
FIXED = (
    "model_name", "dtype", "lora_r", "lora_alpha", "lora_layers", "lora_target_modules", "adapter_scope",
    "chat_template", "system_prompt", "seed", "batch_size", "num_eval_prompts", "fields", "skip_bad",
)  # fmt: skip
# Where the run and its data lie. Data is compared by its fingerprint, so that it may be moved.
PLACES = ("run_dir", "run_name", *DATA_KEYS)
ADAM = 3  # weights, and the optimizer's two moments of each


class Saving:
    """A stage's hold on its run folder, from its first step to its last."""

    def __init__(self, console: Console, run: Run, config: Any, stop: StopSignals) -> None:
        files = config if isinstance(config, RunFiles) else RunFiles()
        self.console = console
        self.run = run
        self.config = config
        self.stop = stop
        self.checkpoints = Checkpoints(run.folder / "checkpoints", files.keep_checkpoints)
        self._every = (files.save_every, files.save_minutes)
        self._saver: Saver | None = None
        self._seconds_restoring = 0.0
        self._data = ""

    def begin(
        self,
        state_of: Callable[[], State],
        restore: Callable[[State], None],
        identity: dict[str, Any],
        from_step: int | None = None,
    ) -> int:
        """Goes on from the newest checkpoint, or from the one asked for; gives its step, 0 for a fresh start.

        Nothing in the run folder changes until the checkpoint is accepted. Then, in an order in which a kill between
        any two loses nothing: what will be made again is copied into a folder of its own, an old result is taken back,
        later checkpoints set aside, the logs cut, the config kept.
        """
        self._data = identity["data"]

        def with_identity() -> State:
            self.run.logs_to_disk()
            state = state_of()
            state.values |= {"identity": identity, "config": self.config.model_dump(mode="json")}
            return state

        started = time.monotonic()
        self._saver = Saver(self.checkpoints, with_identity, *self._every)
        found = self._find(from_step)
        if found is not None:
            step, state = found
            refuse_another_run(self.run, state.value("config"), self.config)  # config.yaml may have been edited
            for difference in compare_identity(state.value("identity"), identity):
                self.console.print(plain(difference), highlight=False)
            restore(state)
            self._saver.resume(state)
        else:
            step = 0
        growth = 1 if found else ADAM  # a fresh optimizer holds nothing yet
        self.console.print(self.checkpoints.check_space(growth * with_identity().nbytes, step), highlight=False)
        kept_up_to = step if found else -1  # a fresh start answers its probes again
        if left := keep(self.run, kept_up_to):
            anew = "" if found else "There is no checkpoint, so it begins anew. "
            told = f"{anew}What is made again is kept as it was in {left}"
            self.console.print(told, markup=False, highlight=False, soft_wrap=True)
        self.run.take_back_result()
        self.checkpoints.forget_after(step)
        self.run.forget_after(kept_up_to)
        self.run.begin(self.config)
        self._seconds_restoring = time.monotonic() - started if found else 0.0
        return step

    def _find(self, from_step: int | None) -> tuple[int, State] | None:
        if from_step is not None:
            return from_step, self.checkpoints.load(from_step)
        found = self.checkpoints.latest(lambda message: self.console.print(plain(message), highlight=False))
        if found is None and self.run.is_complete:
            raise NoCheckpointError(f"{self.run.folder} is finished and has no checkpoint to go on from")
        return found

    def after_step(self, step: int, score: float, is_last: bool) -> None:
        """Saves if it is due; ends the run, saved, if someone asked for that."""
        assert self._saver is not None
        stopped = self.stop.exit_code  # read once: a signal may come at any time
        self._saver.after_step(step, score, is_last, must_save=stopped is not None)
        if stopped is not None:
            raise StoppedError(f"stopped after step {step}, and saved. {go_on(self.run)}", stopped)

    @property
    def facts(self) -> dict[str, Any]:
        """For the run's result: what safety cost it (seconds spent on saving, and on finding and restoring a
        checkpoint), and the fingerprint of its data.
        """
        saving = self._saver.seconds if self._saver else 0.0
        return {
            "seconds_saving": round(saving, 2),
            "seconds_restoring": round(self._seconds_restoring, 2),
            "data_fingerprint": self._data,
        }

    def last_good(self) -> str:
        """What there is to go on from after numbers went wrong, for a person to copy."""
        steps = [c.step for c in self.checkpoints.all() if c.problem is None]
        if not steps:
            return "There is no checkpoint yet."
        earlier = f" (or {', '.join(map(str, steps[:-1]))}, from before the trouble)" if steps[1:] else ""
        whole, section = self.run.pipeline_folder, {"reward": "reward_model"}.get(self.run.stage, self.run.stage)
        setting = f"{section}.learning_rate=..." if whole else "learning_rate=..."
        return (
            f"The last good checkpoint is of step {steps[-1]}{earlier}: "
            f"burnish resume {shlex.quote(str(whole or self.run.folder))} --from STEP {setting}"
        )


@contextmanager
def hold(console: Console, run: Run, config: Any) -> Iterator[Saving]:
    """The run folder is this process's alone; a first Ctrl-C or SIGTERM waits for the step's end; a full disk, memory
    that ran out and numbers that went wrong end with what there is to go on from.
    """
    with run.lock(), stop_signals(console) as stop:
        if stop.exit_code is not None:  # asked for while a pipeline loaded this stage's model
            raise StoppedError(f"stopped before the first step of {run.folder}. {go_on(run)}", stop.exit_code)
        saving = Saving(console, run, config, stop)
        try:
            yield saving
        except DivergedError as error:
            raise DivergedError(f"{error}\n{saving.last_good()}") from error
        except (OSError, SafetensorError) as error:
            if not is_disk_full(error):
                raise
            raise ResourceError(
                f"the disk of {run.folder} is full ({free_space(run.folder)} free). Checkpoints made before are "
                f"intact; make room. {go_on(run)}"
            ) from error
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise ResourceError(
                f"memory ran out. Lower batch_size, max_new_tokens, activation_mb or prompt_cache_mb, or end other "
                f"programs. Checkpoints made before are intact. {go_on(run)}"
            ) from error


def stop_signals(console: Console) -> StopSignals:
    """A request to stop is told, and waits."""

    def announce(number: int) -> None:
        name = signal.Signals(number).name
        console.print(f"{name}: this step is finished and saved first; once more ends it at once.", highlight=False)
        console.show_cursor(True)

    return StopSignals(announce)


def differences(then: Mapping[str, Any], config: ModelConfig) -> dict[str, str]:
    """Settings that are not as they were, as `key: then -> now`; where the run and its data lie are none of them.

    A key that an older version did not know had its default. A model that is not where it was has been moved; where the
    old one is still there, the new one is another.
    """
    now = config.model_dump(mode="json")
    before = {k: f.get_default(call_default_factory=True) for k, f in type(config).model_fields.items()} | dict(then)
    keys = [k for k in before if k not in PLACES and not _same(before[k], now.get(k), is_path=k == "sft")]
    return {k: f"{k}: {before[k]!r} -> {now.get(k)!r}" for k in keys}


def _same(then: Any, now: Any, is_path: bool = False) -> bool:
    if is_path and isinstance(then, str) and isinstance(now, str):
        return then == now or not Path(then).exists()
    if isinstance(then, list) and isinstance(now, list):
        return len(then) == len(now) and all(map(_same, then, now))
    if isinstance(then, dict) and isinstance(now, dict):
        model = then.get("kind") == "model"
        return then.keys() == now.keys() and all(_same(then[k], now[k], model and k == "path") for k in then)
    return then == now


def refuse_another_run(run: Run, then: Mapping[str, Any], config: ModelConfig) -> dict[str, str]:
    """What is not as it was; a change that would make it another run is refused."""
    lines = differences(then, config)
    fixed = [line for k, line in lines.items() if k in FIXED]
    if fixed:
        raise InputError(
            f"{run.folder} was started with other settings ({'; '.join(fixed[:3])}), and these cannot change on the "
            "way; choose another run_name"
        )
    return lines


def open_run(
    console: Console,
    config: Any,
    data: Split[Any],
    run_dir: str | Path,
    run_name: str | None,
    from_step: int | None,
) -> tuple[Run, bool]:
    """The run, new or begun before, and whether there is nothing left to do. Settings that changed are told.

    A finished run goes on only for more steps, or from the checkpoint asked for: its settings are those that made it.
    """
    run = Run.new_or_unfinished(run_dir, run_name)
    changes = refuse_another_run(run, run.settings, config) if run.was_begun else {}
    if run.is_complete and has_other_data(run, data):
        raise InputError(f"{run.folder} is finished, with other data; choose another run_name, or move it away")
    if run.is_complete and from_step is None:
        if not changes:
            say_finished(console, run)
            return run, True
        if not asks_for_more(run, config):
            raise InputError(
                f"{run.folder} is finished, with other settings ({'; '.join(list(changes.values())[:3])}); choose "
                f"another run_name, or go on from one of its checkpoints: burnish resume {run.folder} --from STEP ..."
            )
    for change in changes.values():
        console.print(plain(f"Changed: {change}"), highlight=False)
    return run, False


def asks_for_more(run: Run, config: Any) -> bool:
    """More steps than a finished run has made."""
    return getattr(config, "steps", 0) > run.settings.get("steps", 0)


def has_other_data(run: Run, data: Split[Any]) -> bool:
    """Whether a finished run was made with other data, as far as its result knows."""
    made_with = run.read("result.json").get("data_fingerprint")
    return made_with is not None and made_with != fingerprint_of_texts(texts_of_split(data))


def go_on(run: Run) -> str:
    """The command that continues, for a person to copy."""
    if not (run.pipeline_folder or run.was_begun):
        return "It had not begun: give the same command again"
    return go_on_with(run.pipeline_folder or run.folder)


def go_on_with(folder: Path) -> str:
    return f"Go on with: burnish resume {shlex.quote(str(folder))}"


def finished_meanwhile(console: Console, run: Run, was_complete: bool) -> bool:
    """Whether another process was faster, which is then told. `was_complete`: it was finished before, and goes on."""
    if run.is_complete and not was_complete:
        say_finished(console, run)
        return True
    return False


def say_finished(console: Console, run: Run) -> None:
    console.print(plain(f"{run.folder} is finished; there is nothing left to do."), highlight=False, soft_wrap=True)


def texts_of_split(data: Split[Any]) -> Iterator[str]:
    """Everything that the data says, and what of it is held out, for its fingerprint."""
    yield from texts_of(data.train)
    yield "held out"
    yield from texts_of(data.held_out)


def texts_of(records: Sequence[Any]) -> Iterator[str]:
    """Everything that prompts and other records say."""
    for record in records:
        if isinstance(record, str):
            yield str(record)
            yield repr((getattr(record, "reference", None), getattr(record, "messages", None)))
        elif is_dataclass(record):
            yield from texts_of([getattr(record, own.name) for own in fields(record)])
        else:
            yield str(record)
