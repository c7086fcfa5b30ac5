"""The SFT stage: demonstrations in, an adapter out that answers like them."""

from __future__ import annotations

import time
import warnings
from pathlib import Path

from rich.console import Console

from burnish import terminal
from burnish.base_setup.base_setup import only_readable
from burnish.config import SFTConfig
from burnish.data import Demonstration, Split, data_report, load_split, prompts_of
from burnish.data.records import count
from burnish.models.key_values import PromptCache
from burnish.runs import Run
from burnish.sft_trainer import SFTTrainer
from burnish.stages.leaks import keep_prompts
from burnish.stages.saving import finished_meanwhile, hold, kept_start, open_run, texts_of_split
from burnish.training_state import identity_of


def load_data(config: SFTConfig) -> tuple[Split[Demonstration], int]:
    """Training and held-out demonstrations, and how many rows were left out."""
    return load_split(
        "demonstrations",
        config.demonstrations,
        config.eval_demonstrations,
        config.num_eval_prompts,
        config.seed,
        config.fields,
        config.skip_bad,
    )


def run_sft(
    config: SFTConfig,
    data: Split[Demonstration],
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
    with terminal.busy(console, terminal.loading(config)):
        data, unreadable = only_readable(config, data)
    num_bad += unreadable
    run, finished = open_run(console, config, data, run_dir, run_name, from_step)
    if finished:
        return run
    was_complete = run.is_complete
    with terminal.busy(console, terminal.loading(config)), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        trainer = SFTTrainer(config)
        trainer.base.prompt_cache = prompts_read or trainer.base.prompt_cache
        trainer.invocation.agree(prompts_of([*data.train, *data.held_out]))
    with hold(console, run, config) as saving:
        if finished_meanwhile(console, run, was_complete):
            return run
        report = data_report(data, trainer.encoder.count_tokens, config.max_new_tokens, num_bad)
        console.print(terminal.data_table(report))
        updates = trainer.trainer.num_updates(len(data.train))
        console.print(
            f"SFT: {count(updates, 'update')}, {config.batch_size} demonstrations each. Run folder: {run.folder}",
            highlight=False,
        )
        identity = identity_of(trainer.base, ("sft",), texts_of_split(data))
        done = saving.begin(trainer.trainer.sound_state, trainer.trainer.restore, identity, from_step)
        keep_prompts(run, data)
        before = kept_start(run, done, lambda: trainer.measure(data.held_out)["loss"] if data.held_out else None)
        with terminal.updates(console, "SFT", updates, done) as show:

            def on_update(statistics: dict[str, float]) -> None:
                run.log(statistics)
                show(statistics)
                saving.after_step(int(statistics["update"]), -statistics["loss"], statistics["update"] == updates)

            trainer.train(data.train, on_update)
        after = trainer.measure(data.held_out)["loss"] if data.held_out else None
        run.save_adapter(trainer.model)
        run.write(
            "result.json",
            {"loss_before": before, "loss_after": after, "updates": updates, "data": report,
             "seconds": round(time.perf_counter() - started), **saving.facts},
        )  # fmt: skip
    if before is not None and after is not None:
        console.print(f"Held-out loss {before:.3f} before, {after:.3f} after (nats per token).", highlight=False)
    console.print(f"The SFT adapter is in {run.folder / 'adapters' / 'sft'}", highlight=False, soft_wrap=True)
    console.print(f"`burnish reward` and `burnish train` start from it with: sft: {run.folder}", highlight=False)
    return run
