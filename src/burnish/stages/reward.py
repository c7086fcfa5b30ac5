"""The reward stage: people's judgements in, a reward model out, and an honest word on how good it is."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from burnish import terminal
from burnish.config import RewardModelConfig
from burnish.data import Preference, Scored, Split, load_split, prompts_of
from burnish.reward_report import RewardReport, reward_report, score_report
from burnish.reward_trainer import RewardTrainer
from burnish.runs import Run
from burnish.safe_text import headline
from burnish.stages.supervised import SupervisedStage, run_supervised

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


def run_reward(config: RewardModelConfig, data: Judgements, *place: Any, **more: Any) -> Run:
    """Trains on judgements, and judges the judge; the rest is as in `run_supervised`."""
    return run_supervised(REWARD, config, data, *place, **more)


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
    console.print(terminal.plain(report.verdict), highlight=False)
    return {"report": report.as_dict(), "verdict": report.verdict}


def _judge_scores(console: Console, trainer: RewardTrainer, scored: Split[Scored]) -> dict[str, Any]:
    if not scored.held_out:
        return {}
    given = trainer.scores(prompts_of(scored.held_out), [s.response for s in scored.held_out])
    report = score_report(scored.held_out, given)
    console.print(terminal.plain(report.verdict), highlight=False)
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


def _how_to_use(run: Run) -> str:
    return (
        f"The reward model is in {run.folder / 'adapters' / 'reward'}\n"
        f"`burnish train` learns from it with: reward: {run.folder}"
    )


REWARD = SupervisedStage(
    "Reward model", "reward", "judgements", RewardTrainer, lambda trainer, data: None, _conclude, _how_to_use
)
