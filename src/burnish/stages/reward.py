"""The reward stage: people's judgements in, a reward model out, and an honest word on how good it is."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from burnish.data import Preference, Scored, Split, prompts_of
from burnish.runs.run import Run
from burnish.show import terminal
from burnish.stages.supervised import SupervisedStage
from burnish.supervised.reward_report import RewardReport, reward_report, score_report
from burnish.supervised.reward_trainer import RewardTrainer
from burnish.text import headline, plain

Judgements = Split[Preference | Scored]
LONGEST_SHOWN = 160  # of a text in the table of mistakes; result.json has them whole


def _conclude(console: Console, trainer: RewardTrainer, data: Judgements, _: float | None) -> dict[str, Any]:
    """Is it any good? Shown, and given for the result."""
    return _judge_pairs(console, trainer, _of_kind(data, Preference)) | _judge_scores(
        console, trainer, _of_kind(data, Scored)
    )


def _judge_pairs(console: Console, trainer: RewardTrainer, pairs: Split[Preference]) -> dict[str, Any]:
    if not pairs.held_out:
        return {}
    with terminal.busy(console, f"judging {len(pairs.held_out)} held-out pairs"):
        prompts = prompts_of(pairs.held_out)
        chosen = trainer.scores(prompts, [p.chosen for p in pairs.held_out])
        rejected = trainer.scores(prompts, [p.rejected for p in pairs.held_out])
        report = reward_report(pairs.train, pairs.held_out, chosen, rejected, trainer.spread)
    console.print(_report_table(report))
    _print_mistakes(console, report)
    console.print(plain(report.verdict), highlight=False)
    return {"report": report.as_dict(), "verdict": report.verdict}


def _judge_scores(console: Console, trainer: RewardTrainer, scored: Split[Scored]) -> dict[str, Any]:
    if not scored.held_out:
        return {}
    given = trainer.scores(prompts_of(scored.held_out), [s.response for s in scored.held_out])
    report = score_report(scored.held_out, given)
    console.print(plain(report.verdict), highlight=False)
    return report.as_dict() | {"verdict_on_scores": report.verdict}


def _of_kind(data: Judgements, kind: type) -> Split[Any]:
    return Split([j for j in data.train if isinstance(j, kind)], [j for j in data.held_out if isinstance(j, kind)])


def _report_table(report: RewardReport) -> Table:
    low, high = report.accuracy_interval
    table = Table("held-out pairs", f"{report.num_pairs}", title="is this reward model any good?")
    table.add_row("accuracy (95 % interval)", f"{report.accuracy:.1%} ({low:.1%} to {high:.1%})")
    table.add_row("  choosing the longer answer", f"{report.longer_wins:.1%}")
    table.add_row("  a bag-of-words classifier", f"{report.bag_of_words:.1%}")
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
        table.add_row(*(plain(headline(t, LONGEST_SHOWN)) for t in texts), f"{mistake.margin:+.2f}")
    console.print(table)


def _how_to_use(run: Run) -> str:
    return (
        f"The reward model is in {run.folder / 'adapters' / 'reward'}\n"
        f"`burnish train` learns from it with: reward: {run.folder}"
    )


run = SupervisedStage(
    "Reward model", "judgements", RewardTrainer, lambda trainer, data: None, _conclude, _how_to_use
).run
