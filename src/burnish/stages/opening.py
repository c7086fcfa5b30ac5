"""How every training stage begins: data that the model can read, a run folder that may be used, a trainer, loaded."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from rich.console import Console

from burnish.base_setup.base_setup import load_encoder, readable
from burnish.base_setup.invocation import Invocation
from burnish.base_setup.tokenizer_setup import PromptEncoder
from burnish.config.stage_configs import RunConfig
from burnish.data import Split, prompts_of
from burnish.decoder.shared_base import SharedBase
from burnish.processes import world
from burnish.runs.run import Run
from burnish.runs.same_run import changes_since
from burnish.runs.saving import Saving, hold, say_finished
from burnish.show import terminal
from burnish.stages.stage import Beginning, run_of
from burnish.text import plain


class Trainer(Protocol):
    """What all three trainers have."""

    base: SharedBase
    invocation: Invocation


T = TypeVar("T", bound=Trainer)


@dataclass(frozen=True)
class Opened(Generic[T]):
    """A stage that is about to train."""

    run: Run
    trainer: T
    encoder: PromptEncoder
    data: Split[Any]
    saving: Saving


@contextmanager
def opened(
    console: Console,
    config: RunConfig,
    data: Split[Any],
    load: Callable[[PromptEncoder], T],
    check: Callable[[Split[Any]], None],
    beginning: Beginning,
) -> Iterator[tuple[Run, Opened[T] | None]]:
    """The run, and what is to be done in it: nothing, if it is finished. Whatever is wrong with the input is found
    before `load` loads the model.
    """
    run = run_of(config, beginning)
    encoder: PromptEncoder | None = beginning.encoder
    with world.together():
        if config.skip_bad:  # what the model cannot read is no part of the data
            encoder = encoder or load_encoder(config)
            data = readable(config, encoder, data)

    def is_done() -> bool:
        changes = changes_since(run, config, data, beginning.from_step) if run.was_begun else None
        for change in changes.settings if changes is not None and not changes.nothing_to_do else ():
            console.print(plain(change), highlight=False)
        return changes is not None and changes.nothing_to_do

    if world.by_first(is_done):
        say_finished(console, run)
        yield run, None
        return
    if config.shard and world.size() == 1:
        console.print("shard: true changes nothing here: one process holds the whole base.", highlight=False)
    was_complete = run.is_complete
    with world.together(), world.alone():  # each by itself, and all or none
        check(data)
    with terminal.busy(console, terminal.loading(config)), world.together(), world.alone():
        encoder = encoder or load_encoder(config)
        data = readable(config, encoder, data)
    with terminal.busy(console, terminal.loading(config)), world.together(), world.alone():
        trainer = load(encoder)
        trainer.base.prompt_cache = beginning.prompts_read or trainer.base.prompt_cache
        with warnings.catch_warnings():  # a missing ending is announced in the run's own words
            warnings.simplefilter("ignore", UserWarning)
            trainer.invocation.agree(prompts_of(data.everything))
    with hold(console, run, config) as saving:
        if world.by_first(lambda: run.is_complete and not was_complete):  # another process was faster
            say_finished(console, run)
            yield run, None
        else:
            yield run, Opened(run, trainer, encoder, data, saving)
