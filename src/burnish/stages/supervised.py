"""What the SFT and reward stages share: updates made and saved, measured before and after, result kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from burnish.base_setup.tokenizer_setup import PromptEncoder
from burnish.config.stage_configs import SupervisedConfig
from burnish.data import Split, data_summary
from burnish.errors import count
from burnish.models.adapter_files import save_to_run
from burnish.processes import world
from burnish.runs.run import Run
from burnish.show import terminal
from burnish.stages.identity import identity_of
from burnish.stages.leaks import keep_prompts
from burnish.stages.opening import opened
from burnish.stages.stage import COMMAND, Beginning
from burnish.supervised.reward_trainer import RewardTrainer
from burnish.supervised.sft_trainer import SFTTrainer
from burnish.text import plain


@dataclass(frozen=True)
class SupervisedStage:
    """What is one stage's own."""

    name: str
    """As it is called in a sentence."""
    unit: str
    """What a batch is made of."""
    trainer_of: Callable[..., SFTTrainer | RewardTrainer]
    measure_start: Callable[[Any, Split[Any]], float | None]
    """Before training, given the trainer and the data; None where there is nothing to measure."""
    conclude: Callable[[Console, Any, Split[Any], float | None], dict[str, Any]]
    """After training, given what was measured before: shows how good it has become, and gives it for the result."""
    how_to_use: Callable[[Run], str]

    def run(
        self,
        config: SupervisedConfig,
        data: Split[Any],
        console: Console,
        beginning: Beginning = COMMAND,
    ) -> Run:
        """As in `Work` (stage.py)."""
        started = time.perf_counter()

        def load(encoder: PromptEncoder) -> SFTTrainer | RewardTrainer:
            return self.trainer_of(config, encoder=encoder)

        with opened(console, config, data, load, lambda _: None, beginning) as (run, work):
            if work is None:
                return run
            trainer, data, saving = work.trainer, work.data, work.saving
            tables = {
                kind: data_summary(split, work.encoder, config.max_new_tokens) for kind, split in _by_kind(data).items()
            }
            for table in tables.values():
                console.print(terminal.data_table(table))
            epochs = trainer.epochs
            updates = epochs.num_updates(len(data.train))
            size = f"{count(updates, 'update')}, {config.batch_size} {self.unit} each"
            console.print(plain(f"{self.name}: {size}. Run folder: {run.folder}"), highlight=False)
            terminal.print_start(console, trainer.base.identity.merged)
            identity = identity_of(trainer.base, [trainer.model], data)
            done = saving.begin(epochs.sound_state, epochs.restore, identity, beginning.from_step)
            keep_prompts(run, data)
            saving.journal.doing(done, updates, "training")
            before = _kept_start(run, done, lambda: self.measure_start(trainer, data))
            with terminal.updates(console, self.name, updates, done) as show:

                def on_update(statistics: dict[str, float]) -> None:
                    with world.together():
                        run.log(statistics)
                        show(statistics)
                    saving.after_step(int(statistics["update"]), -statistics["loss"], statistics["update"] == updates)

                trainer.train(data.train, on_update)
            with world.together():
                save_to_run(run, trainer.model)
            result = {"updates": updates, "data": tables} | self.conclude(console, trainer, data, before)
            run.write("result.json", result | {"seconds": round(time.perf_counter() - started)} | saving.facts)
        console.print(plain(self.how_to_use(run)), highlight=False, soft_wrap=True)
        return run


def _by_kind(data: Split[Any]) -> dict[str, Split[Any]]:
    """Records of different kinds are reported apart."""
    found = {}
    for kind in dict.fromkeys(type(record) for record in data.everything):
        train, held_out = ([r for r in side if type(r) is kind] for side in (data.train, data.held_out))
        found[kind.__name__.lower()] = Split(train, held_out, data.num_left_out)
    return found


def _kept_start(run: Run, done: int, measure: Callable[[], float | None]) -> float | None:
    """A number measured before training, kept so that a resumed run compares with the same."""
    kept = world.by_first(lambda: run.read("start.json") if run.has("start.json") else None)
    if kept is not None:
        return kept["value"]
    if done:
        return None
    value = measure()
    run.write("start.json", {"value": value})
    return value
