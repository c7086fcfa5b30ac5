"""The verdict stage: the tuned model against its start, on prompts that neither was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from rich.console import Console
from rich.table import Table

from burnish.config import TrainConfig
from burnish.data import Prompt, messages_of, prompts_of
from burnish.drawing.comparison import who_won
from burnish.errors import InputError
from burnish.evaluation import people
from burnish.evaluation.evaluation import Evaluation
from burnish.evaluation.verdict import Verdict, judge
from burnish.runs.disk import inside
from burnish.runs.run import PIPELINE, Run
from burnish.show import terminal
from burnish.stages.pipeline import begun_config
from burnish.stages.stage import STAGES
from burnish.stages.trusted import ask_for_trust, data_deeds, model_deeds, reward_deeds
from burnish.text import plain, without_secrets


def evaluate_run(
    console: Console,
    folder: str,
    best_of: int | None = None,
    ask: int = 0,
    choose: people.Choose | None = None,
    trust: bool = False,
) -> Verdict:
    """Loads a finished PPO run, measures, asks a person if wanted, and writes verdict.json.

    `best_of` is as the run's config has it unless given. With `ask`, answers that the last verdict was made from are
    asked about as they are, and no model is loaded.
    """
    held_out = held_out_of(console, folder, trust)
    run, prompts, choose = held_out.run, held_out.prompts, choose or terminal.chooser(console)
    with run.lock():
        known = run.read("verdict.json") if ask and best_of is None and run.has("verdict.json") else {}
        if "evaluations" in known:
            start, tuned, best, best_of = _measured(known, prompts)
            people.ask(run, start, tuned, ask, choose)
            verdict = write_verdict(console, run, start, tuned, best, best_of)
        else:
            with terminal.starting(console):
                from burnish.stages.judging import judge_run

            verdict = judge_run(console, held_out, best_of or held_out.config.best_of, ask, choose)
    console.print(plain(verdict.sentence), highlight=False)
    return verdict


def told_verdict(folder: str) -> dict[str, Any]:
    """What verdict.json has, less the measurements that it was made from."""
    known = Run.open(folder).read("verdict.json")
    return {"run": folder} | {key: value for key, value in known.items() if key != "evaluations"}


def count_choices(run: Run) -> None:
    """The verdict again, with what people have said since. Nothing is measured anew, and no data is read."""
    with run.lock():
        known = run.read("verdict.json")
        if "evaluations" not in known:
            raise InputError(f"verdict.json of {run.name} was written by an older version; make it again: burnish eval")
        prompts = [Prompt(row["prompt"], messages=row.get("messages")) for row in known["answers"]]
        write_verdict(Console(quiet=True), run, *_measured(known, prompts))


@dataclass(frozen=True)
class HeldOut:
    """What a finished PPO run can be measured on."""

    run: Run
    config: TrainConfig
    prompts: list[str]


def held_out_of(console: Console, folder: str, trust: bool = False) -> HeldOut:
    """The prompts that were set aside when a run was trained; other ones may have been trained on. `trust` lets the
    config of a run that is not this user's do what it asks for.
    """
    run = Run.open(folder)
    config = _trusted_config(console, run, trust)
    data = STAGES["ppo"].load(config)
    if config.skip_bad:
        with terminal.starting(console):
            from burnish.base_setup.base_setup import load_encoder, readable

        data = readable(config, load_encoder(config), data)
    prompts = prompts_of(data.held_out)
    if not prompts:
        raise InputError(f"{run.folder} holds out no prompts (num_eval_prompts: 0), so there is nothing to measure on")
    kept = run.read("start.json")["evaluation"]["prompts"] if run.has("start.json") else None
    if kept is not None and kept != without_secrets(prompts):
        raise InputError(
            f"the data of {run.folder} has changed: its held-out prompts are not those that were set aside when it was "
            "trained, so some of them may have been trained on. Bring the data back"
        )
    return HeldOut(run, config, prompts)


def _trusted_config(console: Console, run: Run, trust: bool) -> TrainConfig:
    """The run's own; of a pipeline, which may have been moved with the models of its earlier stages, the pipeline's."""
    file = run.path("config.yaml")
    if run.stage != "ppo":
        raise InputError(f"{run.folder} is a run of `burnish {STAGES[run.stage].config.command}`; this needs a PPO run")
    if "prompts" not in run.settings:
        raise InputError(
            f"{run.folder} was trained from Python and names no prompts; compare with burnish.evaluation.verdict.judge"
        )
    if run.pipeline_folder is not None:
        file = inside(run.pipeline_folder, PIPELINE)
        config = begun_config(run.pipeline_folder).ppo
    else:
        config = TrainConfig(**run.settings)
    deeds = chain(model_deeds(config), data_deeds(config, file.parent), reward_deeds(config))
    ask_for_trust(console, file, deeds, trust)
    return config


def write_verdict(
    console: Console, run: Run, start: Evaluation, tuned: Evaluation, best: Evaluation | None, best_of: int
) -> Verdict:
    """`best` are the start model's best of `best_of` answers."""
    human = people.wins(run, start, tuned)
    verdict = judge(start, tuned, None if best is None else (best_of, best), human, _kl_price(run))
    answers = [
        {"prompt": p, "start": s, "tuned": t} | ({"messages": chat} if (chat := messages_of(p)) else {})
        for p, s, t in zip(start.prompts, start.texts, tuned.texts, strict=True)
    ]
    evaluations = {"start": asdict(start), "tuned": asdict(tuned), "best": best and asdict(best)}
    sides = {"start": start.as_dict(), "tuned": tuned.as_dict(), "answers": answers, "evaluations": evaluations}
    run.write("verdict.json", verdict.as_dict() | sides)
    console.print(verdict_table(start, tuned, verdict))
    return verdict


def _kl_price(run: Run) -> float:
    """What a nat cost in the reward, in the last step: with `adaptive_kl_target` the price drifts."""
    settings = run.settings
    if settings.get("kl_in") == "loss":
        return 0.0
    steps = run.read_lines("metrics.jsonl") or [{}]
    return float(steps[-1].get("kl_coef", settings.get("kl_coef", 0.0)))


def _measured(known: dict[str, Any], prompts: Sequence[str]) -> tuple[Evaluation, Evaluation, Evaluation | None, int]:
    """What verdict.json was made from, as `write_verdict` takes it."""
    start, tuned, best = (_evaluation(known["evaluations"][side], prompts) for side in ("start", "tuned", "best"))
    assert start is not None
    assert tuned is not None
    return start, tuned, best, known["best_of_n"]["n"] if best else 1


def _evaluation(kept: dict[str, Any] | None, prompts: Sequence[str]) -> Evaluation | None:
    """One that was written to a file, with the prompts' messages and references."""
    if kept is None:
        return None
    left = list(prompts)  # in the same order, less those that no reward could score
    found: list[str] = []
    for text in kept["prompts"]:
        while left and without_secrets(str(left[0])) != text:
            left.pop(0)
        found.append(left.pop(0) if left else text)
    try:
        return Evaluation(**kept | {"prompts": found})
    except TypeError as error:
        raise InputError(f"verdict.json was written by another version of burnish ({error}); remove it") from None


# ------------------------------------------------------------------------------------------------------ the table


def verdict_table(start: Evaluation, tuned: Evaluation, verdict: Verdict) -> Table:
    """Start and tuned side by side, then who won."""
    table = terminal.before_after_table(start, tuned, ("start", "tuned"))
    table.add_section()
    for row in who_won(verdict.as_dict()):
        table.add_row(*row)
    table.caption = "in brackets: 95 % interval of its share of the unequal prompts"
    return table
