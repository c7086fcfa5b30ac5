"""The reward stage: people's judgements in, a reward model out, and an honest word on how good it is."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from burnish import terminal
from burnish.base_setup.base_setup import only_readable
from burnish.config import RewardModelConfig
from burnish.data import Preference, Scored, Split, data_report, load_split, prompts_of
from burnish.data.records import count
from burnish.models.key_values import PromptCache
from burnish.reward_report import RewardReport, reward_report, score_report
from burnish.reward_trainer import RewardTrainer
from burnish.runs import Run
from burnish.safe_text import headline
from burnish.stages.leaks import keep_prompts
from burnish.stages.saving import finished_meanwhile, hold, open_run, texts_of_split
from burnish.training_state import identity_of

Judgements = Split[Preference | Scored]
LONGEST_SHOWN = 160  # of a text in the table of mistakes; result.json has them whole


def load_data(config: RewardModelConfig) -> tuple[Judgements, int]:
    """Training and held-out judgements, and how many rows were left out."""
    common = (config.num_eval_prompts, config.seed, config.fields, config.skip_bad)
    splits: list[Split[Any]] = []
    num_bad = 0
    for kind, source, eval_source in (
        ("preferences", config.preferences, config.eval_preferences),
        ("scores", config.scores, None),
    ):
        if source is not None:
            split, bad = load_split(kind, source, eval_source, *common)
            splits.append(split)
            num_bad += bad
    # A prompt that is held out in one of the files is held out in both.
    held_out = {p for split in splits for p in prompts_of(split.held_out)}
    together = [j for split in splits for j in (*split.train, *split.held_out)]
    train = [j for j in together if j.prompt not in held_out]
    return Judgements(train, [j for j in together if j.prompt in held_out]), num_bad


def run_reward(
    config: RewardModelConfig,
    data: Judgements,
    run_dir: str | Path,
    run_name: str | None,
    console: Console,
    num_bad: int = 0,
    prompts_read: PromptCache | None = None,
    from_step: int | None = None,
) -> Run:
    """Trains, judges the judge, and leaves a run folder behind; a run that was begun before goes on."""
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
        trainer = RewardTrainer(config)
        trainer.base.prompt_cache = prompts_read or trainer.base.prompt_cache
        trainer.invocation.agree(prompts_of([*data.train, *data.held_out]))
    with hold(console, run, config) as saving:
        if finished_meanwhile(console, run, was_complete):
            return run
        kinds = {kind: _of_kind(data, kind) for kind in (Preference, Scored)}
        tables = {
            kind.__name__.lower(): data_report(split, trainer.encoder.count_tokens, config.max_new_tokens, num_bad)
            for kind, split in kinds.items()
            if split.train or split.held_out
        }
        for table in tables.values():
            console.print(terminal.data_table(table))
        updates = trainer.trainer.num_updates(len(data.train))
        console.print(
            f"Reward model: {count(updates, 'update')}, {config.batch_size} judgements each. Run folder: {run.folder}",
            highlight=False,
        )
        identity = identity_of(trainer.base, ("reward",), texts_of_split(data))
        done = saving.begin(trainer.trainer.sound_state, trainer.trainer.restore, identity, from_step)
        keep_prompts(run, data)
        with terminal.updates(console, "reward model", updates, done) as show:

            def on_update(statistics: dict[str, float]) -> None:
                run.log(statistics)
                show(statistics)
                saving.after_step(int(statistics["update"]), -statistics["loss"], statistics["update"] == updates)

            trainer.train(data.train, on_update)
        run.save_adapter(trainer.model)
        judged = _judge_pairs(console, trainer, kinds[Preference]) | _judge_scores(console, trainer, kinds[Scored])
        result = {"updates": updates, "data": tables} | judged
        run.write("result.json", result | {"seconds": round(time.perf_counter() - started)} | saving.facts)
    console.print(f"The reward model is in {run.folder / 'adapters' / 'reward'}", highlight=False, soft_wrap=True)
    console.print(f"`burnish train` learns from it with: reward: {run.folder}", highlight=False)
    return run


def _judge_pairs(console: Console, trainer: RewardTrainer, pairs: Split[Preference]) -> dict[str, Any]:
    """Is it any good? Shown, and given for the result."""
    if not pairs.held_out:
        return {}
    with terminal.busy(console, f"judging {len(pairs.held_out)} held-out pairs"):
        prompts = prompts_of(pairs.held_out)
        chosen = trainer.scores(prompts, [p.chosen for p in pairs.held_out])
        rejected = trainer.scores(prompts, [p.rejected for p in pairs.held_out])
        report = reward_report(pairs.train, pairs.held_out, chosen, rejected, trainer.spread)
    console.print(_report_table(report))
    _print_mistakes(console, report)
    console.print(report.verdict, highlight=False)
    return {"report": report.as_dict(), "verdict": report.verdict}


def _judge_scores(console: Console, trainer: RewardTrainer, scored: Split[Scored]) -> dict[str, Any]:
    if not scored.held_out:
        return {}
    given = trainer.scores(prompts_of(scored.held_out), [s.response for s in scored.held_out])
    report = score_report(scored.held_out, given)
    console.print(report.verdict, highlight=False)
    return report.as_dict() | {"verdict_on_scores": report.verdict}


def _of_kind(data: Judgements, kind: type) -> Split[Any]:
    return Split([j for j in data.train if isinstance(j, kind)], [j for j in data.held_out if isinstance(j, kind)])


def _report_table(report: RewardReport) -> Table:
    low, high = report.accuracy_interval
    table = Table("held-out pairs", f"{report.num_pairs}", title="is this reward model any good?")
    table.add_row("accuracy (95 % interval)", f"{report.accuracy:.1%} ({low:.1%} to {high:.1%})")
    table.add_row("  choosing the longer answer", f"{report.longer_wins:.1%}")
    table.add_row("  counting words", f"{report.bag_of_words:.1%}")
    table.add_row("margin, chosen - rejected", f"{report.margin:+.2f}")
    table.add_row("calibration error", f"{report.calibration_error:.2f}")
    table.add_row("correlation of score and length", f"{report.length_correlation:+.2f}")
    return table


def _print_mistakes(console: Console, report: RewardReport) -> None:
    if not report.mistakes:
        return
    table = Table(
        "prompt", "people chose", "the model prefers", "margin", title="what it gets most wrong", show_lines=True
    )
    for mistake in report.mistakes:
        texts = (mistake.prompt, mistake.chosen, mistake.rejected)
        table.add_row(*(terminal.plain(headline(t, LONGEST_SHOWN)) for t in texts), f"{mistake.margin:+.2f}")
    console.print(table)
