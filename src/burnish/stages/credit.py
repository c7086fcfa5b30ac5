"""`burnish credit`: how far a run's credit per token may be trusted."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from burnish.evaluation.credit import Credit, measure_credit
from burnish.models.adapter_files import adapter_folder, load_adapter
from burnish.ppo.advantage import StatefulEstimator
from burnish.ppo.ppo_trainer import PPOTrainer
from burnish.runs.run import JUDGEMENTS, Run
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
            trainer = _as_it_ended(PPOTrainer(config), run)
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


def _as_it_ended(trainer: PPOTrainer, run: Run) -> PPOTrainer:
    """With what the run has learned, and what its last step was charged and compared with."""
    load_adapter(trainer.base, "policy", run.policy_folder)
    if trainer.value_model is not None:
        folder = adapter_folder(run.folder, "value")
        load_adapter(trainer.base, "value", folder)
        trainer.value_model.load_head(folder)
    rows = run.read_lines("metrics.jsonl")
    if rows:
        trainer.kl_controller.kl_coef = rows[-1].get("kl_coef", trainer.kl_coef)
        trainer.centre.start_score = rows[0]["reward"] if trainer.config.reward_against == "start" else None
        estimator = trainer.estimator
        if isinstance(estimator, StatefulEstimator) and estimator.state().keys() <= rows[-1].keys():
            estimator.restore(rows[-1])
    return trainer


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
