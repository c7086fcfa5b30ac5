"""The verdict stage: the tuned model against its start, on prompts that neither was trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any

from rich.console import Console
from rich.table import Table

from burnish.base_setup.base_setup import load_encoder, readable
from burnish.config import TrainConfig
from burnish.config.pipeline_config import load_pipeline_config
from burnish.data import prompts_of
from burnish.errors import InputError
from burnish.evaluation import people
from burnish.evaluation.evaluation import Evaluation, both_scored
from burnish.evaluation.measure import EVAL_SEED, evaluate
from burnish.evaluation.verdict import Verdict, judge
from burnish.models.adapter_files import load_adapter
from burnish.models.policy_model import PolicyModel
from burnish.ppo.ppo_trainer import PPOTrainer
from burnish.ppo.reward_computer import RewardComputer
from burnish.runs.disk import inside
from burnish.runs.run import ANSWERS, PIPELINE, Run
from burnish.show import terminal
from burnish.show.comparison import who_won
from burnish.stages.leaks import warn_of_leaks
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
    asked about as they are, and no model is loaded. `trust` lets the config of a run that is not this user's do what
    it asks for.
    """
    run = Run.open(folder)
    config = trusted_config(console, run, trust)
    prompts = held_out_of(run, config)
    with run.lock():
        known = run.read("verdict.json") if ask and best_of is None and run.has("verdict.json") else {}
        if "evaluations" in known:
            start, tuned, best = (_evaluation(known["evaluations"][s], prompts) for s in ("start", "tuned", "best"))
            assert start is not None
            assert tuned is not None
            people.ask(run, start, tuned, ask, choose or terminal.chooser(console))
            verdict = write_verdict(console, run, start, tuned, best, known["best_of_n"]["n"] if best else 1)
        else:
            warn_of_leaks(config, prompts)
            with terminal.busy(console, terminal.loading(config)):
                trainer = PPOTrainer(config)
                load_adapter(trainer.base, "policy", run.policy_folder)
            verdict = _verdict_of(console, trainer, run, prompts, best_of or config.best_of, ask, choose)
    console.print(plain(verdict.sentence), highlight=False)
    return verdict


def trusted_config(console: Console, run: Run, trust: bool) -> TrainConfig:
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
        config = load_pipeline_config(file, [], run.pipeline_folder).ppo
    else:
        config = TrainConfig(**run.settings)
    deeds = chain(model_deeds(config), data_deeds(config, file.parent), reward_deeds(config))
    ask_for_trust(console, file, deeds, trust)
    return config


def held_out_of(run: Run, config: TrainConfig) -> list[str]:
    """The prompts that were set aside when it was trained; other ones may have been trained on."""
    data = STAGES["ppo"].load(config)
    if config.skip_bad:
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
    return prompts


def _verdict_of(
    console: Console,
    trainer: PPOTrainer,
    run: Run,
    prompts: Sequence[str],
    best_of: int,
    ask: int,
    choose: people.Choose | None,
) -> Verdict:
    assert isinstance(trainer.config, TrainConfig)
    second = second_reward(trainer, trainer.config)
    for computer in filter(None, (trainer.reward_computer, second)):
        computer.keep_answers(run.path(ANSWERS))
    with terminal.busy(console, f"start and tuned model answer {len(prompts)} held-out prompts"):
        start = evaluate(trainer, prompts, start_model(trainer), second)
        tuned = evaluate(trainer, prompts, None, second)
    start, tuned = both_scored(start, tuned)
    if ask:
        people.ask(run, start, tuned, ask, choose or terminal.chooser(console))
    return conclude(console, trainer, run, start, tuned, best_of)


def conclude(
    console: Console,
    trainer: PPOTrainer,
    run: Run,
    start: Evaluation,
    tuned: Evaluation,
    best_of: int,
) -> Verdict:
    """From two measurements, and what people said of them, to the verdict: shown, and kept in verdict.json."""
    best = None
    if best_of > 1:
        with terminal.busy(console, f"the start model answers {best_of - 1} more times"):
            best = _best_of(trainer, start, best_of)
    return write_verdict(console, run, start, tuned, best, best_of)


def write_verdict(
    console: Console, run: Run, start: Evaluation, tuned: Evaluation, best: Evaluation | None, best_of: int
) -> Verdict:
    """`best` are the start model's best of `best_of` answers."""
    human = people.wins(run, start, tuned)
    verdict = judge(start, tuned, None if best is None else (best_of, best), human)
    answers = [
        {"prompt": p, "start": s, "tuned": t} for p, s, t in zip(start.prompts, start.texts, tuned.texts, strict=True)
    ]
    evaluations = {"start": asdict(start), "tuned": asdict(tuned), "best": best and asdict(best)}
    sides = {"start": start.as_dict(), "tuned": tuned.as_dict(), "answers": answers, "evaluations": evaluations}
    run.write("verdict.json", verdict.as_dict() | sides)
    console.print(verdict_table(start, tuned, verdict))
    return verdict


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


def start_model(trainer: PPOTrainer) -> PolicyModel:
    """What the policy was before PPO: the base, or the SFT stage's model."""
    return PolicyModel(trainer.base, trainer.sft_model.adapter, trainer.config.temperature)


def second_reward(trainer: PPOTrainer, config: TrainConfig) -> RewardComputer | None:
    """The reward that training does not see, if the config names one."""
    parts = config.eval_reward_parts
    return trainer.reward_of(parts) if parts else None


def _best_of(trainer: PPOTrainer, first: Evaluation, n: int) -> Evaluation:
    """For each prompt the answer with the highest reward among n: the one measured already, and n - 1 new ones."""
    speaker = start_model(trainer)
    tries = [first, *(evaluate(trainer, first.prompts, speaker, None, EVAL_SEED + k) for k in range(1, n))]
    best = Evaluation(prompts=list(first.prompts))
    for number in range(len(first.prompts)):
        winner = max((t for t in tries if math.isfinite(t.reward[number])), key=lambda t: t.reward[number])
        best.texts.append(winner.texts[number])
        best.reward.append(winner.reward[number])
    return best


# ------------------------------------------------------------------------------------------------------ the table


def verdict_table(start: Evaluation, tuned: Evaluation, verdict: Verdict) -> Table:
    """Start and tuned side by side, then who won."""
    table = terminal.before_after_table(start, tuned, ("start", "tuned"))
    table.add_section()
    for row in who_won(verdict.as_dict()):
        table.add_row(*row)
    table.caption = "in brackets: 95 % interval of its share of the unequal prompts"
    return table
