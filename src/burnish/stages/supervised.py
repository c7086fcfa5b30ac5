"""What the SFT and reward stages share: data checked, run opened, updates made and saved, result kept."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from burnish import terminal
from burnish.base_setup.base_setup import check_prompts, leave_out_unreadable
from burnish.config.stage_configs import SupervisedConfig
from burnish.data import Split, data_report, prompts_of
from burnish.data.records import count
from burnish.models.key_values import PromptCache
from burnish.reward_trainer import RewardTrainer
from burnish.runs import Run
from burnish.sft_trainer import SFTTrainer
from burnish.stages.leaks import keep_prompts
from burnish.stages.saving import finished_meanwhile, hold, open_run, texts_of_split
from burnish.training_state import identity_of


@dataclass(frozen=True)
class SupervisedStage:
    """What is one stage's own."""

    name: str
    """As it stands in a sentence."""
    role: str
    """Whose adapter is trained."""
    unit: str
    """What an update takes several of."""
    trainer_of: Callable[[Any], SFTTrainer | RewardTrainer]
    measure_start: Callable[[Any, Split[Any]], float | None]
    """Before training, given the trainer and the data; None where there is nothing to measure."""
    conclude: Callable[[Console, Any, Split[Any], float | None], dict[str, Any]]
    """After training, given what was measured before: shows how good it has become, and gives it for the result."""
    how_to_use: Callable[[Run], str]


def run_supervised(
    stage: SupervisedStage,
    config: SupervisedConfig,
    data: Split[Any],
    run_dir: str | Path,
    run_name: str | None,
    console: Console,
    num_bad: int = 0,
    prompts_read: PromptCache | None = None,
    from_step: int | None = None,
) -> Run:
    """Trains, and leaves a run folder behind; a run that was begun before goes on.

    `prompts_read` is what the base has read for another stage already.
    """
    started = time.perf_counter()
    data, unreadable = leave_out_unreadable(config, data)
    run, finished = open_run(console, config, data, run_dir, run_name, from_step)
    if finished:
        return run
    was_complete = run.is_complete
    with terminal.busy(console, terminal.loading(config)):
        check_prompts(config, prompts_of([*data.train, *data.held_out]))
        trainer = stage.trainer_of(config)
        trainer.base.prompt_cache = prompts_read or trainer.base.prompt_cache
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            trainer.invocation.agree(prompts_of([*data.train, *data.held_out]))
    with hold(console, run, config) as saving:
        if finished_meanwhile(console, run, was_complete):
            return run
        tables = {
            kind: data_report(split, trainer.encoder.count_tokens, config.max_new_tokens, num_bad + unreadable)
            for kind, split in _by_kind(data).items()
        }
        for table in tables.values():
            console.print(terminal.data_table(table))
        updates = trainer.trainer.num_updates(len(data.train))
        size = f"{count(updates, 'update')}, {config.batch_size} {stage.unit} each"
        console.print(terminal.plain(f"{stage.name}: {size}. Run folder: {run.folder}"), highlight=False)
        identity = identity_of(trainer.base, (stage.role,), texts_of_split(data))
        done = saving.begin(trainer.trainer.sound_state, trainer.trainer.restore, identity, from_step)
        keep_prompts(run, data)
        before = _kept_start(run, done, lambda: stage.measure_start(trainer, data))
        with terminal.updates(console, stage.name, updates, done) as show:

            def on_update(statistics: dict[str, float]) -> None:
                run.log(statistics)
                show(statistics)
                saving.after_step(int(statistics["update"]), -statistics["loss"], statistics["update"] == updates)

            trainer.train(data.train, on_update)
        run.save_adapter(trainer.model)
        result = {"updates": updates, "data": tables} | stage.conclude(console, trainer, data, before)
        run.write("result.json", result | {"seconds": round(time.perf_counter() - started)} | saving.facts)
    console.print(terminal.plain(stage.how_to_use(run)), highlight=False, soft_wrap=True)
    return run


def _by_kind(data: Split[Any]) -> dict[str, Split[Any]]:
    """Records of different kinds are reported apart."""
    kinds = dict.fromkeys(type(record) for record in (*data.train, *data.held_out))
    return {
        kind.__name__.lower(): Split(*([r for r in side if type(r) is kind] for side in (data.train, data.held_out)))
        for kind in kinds
    }


def _kept_start(run: Run, done: int, measure: Callable[[], float | None]) -> float | None:
    """A number measured before training, kept so that a run that goes on compares with the same."""
    if (run.folder / "start.json").is_file():
        return run.read("start.json")["value"]
    if done:
        return None
    value = measure()
    run.write("start.json", {"value": value})
    return value
