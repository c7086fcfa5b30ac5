"""`burnish credit`: how far a run's credit per token may be trusted."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from burnish.evaluation.credit import Credit, measure_credit
from burnish.ppo.from_run import take_over
from burnish.ppo.ppo_trainer import PPOTrainer
from burnish.runs.run import JUDGEMENTS
from burnish.show import terminal
from burnish.show.credit import CREDITED, credit_sentence
from burnish.stages.evaluate import HeldOut
from burnish.stages.report import write_report
from burnish.text import plain


def measure_run(console: Console, held_out: HeldOut, num_prompts: int, positions: int, continuations: int) -> Credit:
    """Loads a finished PPO run, continues its held-out responses, and writes credit.json; a report that there is
    already says it then."""
    run, config, prompts = held_out.run, held_out.config, held_out.prompts[:num_prompts]
    with run.lock():
        with terminal.busy(console, terminal.loading(config)):
            trainer = PPOTrainer(config)
            take_over(trainer, run)
            trainer.reward_computer.keep_answers(run.path(JUDGEMENTS))
        task = f"continuing {len(prompts)} responses {continuations} times from each of {2 * positions} states"
        with terminal.busy(console, task):
            credit = measure_credit(trainer, prompts, positions, continuations)
        run.write("credit.json", credit.as_dict())
        if run.has("report.html"):
            write_report(run)
    console.print(_table(credit))
    console.print(plain(credit_sentence(credit.as_dict())), highlight=False)
    return credit


def _table(credit: Credit) -> Table:
    table = Table(
        "credit", "correlation", "at best", "slope", "cases", header_style="dim", box=None, padding=(0, 2, 0, 0)
    )
    for column, found in credit.agreements.items():
        interval = f"{found.correlation:.2f} ({found.low:.2f} to {found.high:.2f})"
        table.add_row(CREDITED[column], interval, f"{found.best:.2f}", f"{found.slope:.2f}", str(found.count))
    table.caption = (
        f"with what {credit.continuations} continuations earned; in brackets: 95 % interval; at best: what perfect "
        "credit could show with so many"
    )
    return table
