"""The verdict stage: the tuned model against its start, on prompts that neither was trained on."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from itertools import chain

from rich.console import Console
from rich.table import Table

from burnish import terminal
from burnish.base_setup.base_setup import leave_out_unreadable
from burnish.config import TrainConfig
from burnish.config.pipeline_config import load_pipeline_config
from burnish.data import load_prompts_of
from burnish.disk import inside
from burnish.errors import InputError
from burnish.evaluation import EVAL_SEED, Evaluation, both_scored, evaluate
from burnish.models import PolicyModel
from burnish.models.adapter_files import load_adapter
from burnish.paired import PairedComparison, compare
from burnish.ppo_trainer import PPOTrainer, RewardComputer
from burnish.runs import PIPELINE, Run
from burnish.safe_text import without_secrets
from burnish.stages.leaks import warn_of_leaks
from burnish.stages.trusted import ask_for_trust, data_deeds, model_deeds, reward_deeds
from burnish.verdict import Verdict, judge, who_won

USUAL_BEST_OF = 4
Choose = Callable[[str, str, str], str]
"""Prompt and two answers in; `1`, `2`, `t` (tie) or `q` (enough) out."""


def evaluate_run(
    console: Console,
    folder: str,
    best_of: int | None = None,
    ask: int = 0,
    choose: Choose | None = None,
    trust: bool = False,
) -> Verdict:
    """Loads a finished PPO run, measures, asks a person if wanted, and writes verdict.json.

    Without `best_of`, the start model gets as many answers as in the last verdict, or 4. `trust` lets the config of a
    run that is not this user's do what it asks for.
    """
    run = Run.open(folder)
    config, file = run.config, run.path("config.yaml")
    if run.pipeline_folder is not None:  # which may have been moved, with the models of the earlier stages
        file = inside(run.pipeline_folder, PIPELINE)
        config = load_pipeline_config(file, [], run.pipeline_folder).ppo
    deeds = chain(model_deeds(config), data_deeds(config, file.parent), reward_deeds(config))
    ask_for_trust(console, file, deeds, trust)
    if not isinstance(config, TrainConfig):
        raise InputError(f"{folder} was trained from Python and names no prompts; burnish.verdict.judge compares there")
    prompts = leave_out_unreadable(config, load_prompts_of(config)[0])[0].held_out
    if not prompts:
        raise InputError(f"{folder} holds out no prompts (num_eval_prompts: 0), so there is nothing to measure on")
    kept = run.read("start.json")["evaluation"]["prompts"] if (run.folder / "start.json").is_file() else None
    if kept is not None and kept != without_secrets(prompts):
        raise InputError(
            f"the data of {folder} has changed: its held-out prompts are not those that were set aside when it was "
            "trained, so some of them may have been trained on. Bring the data back"
        )
    warn_of_leaks(config, prompts)
    with run.lock():
        with terminal.busy(console, terminal.loading(config)):
            trainer = PPOTrainer(config)
            load_adapter(trainer.base, "policy", run.policy_folder)
        verdict = verdict_of(console, trainer, run, prompts, best_of or _best_of_before(run), ask, choose)
    console.print(terminal.plain(verdict.sentence), highlight=False)
    return verdict


def verdict_of(
    console: Console,
    trainer: PPOTrainer,
    run: Run,
    prompts: Sequence[str],
    best_of: int = USUAL_BEST_OF,
    ask: int = 0,
    choose: Choose | None = None,
) -> Verdict:
    """The same for a trainer that is at hand."""
    second = second_reward(trainer)
    with terminal.busy(console, f"start and tuned model answer {len(prompts)} held-out prompts"):
        start = evaluate(trainer, prompts, start_model(trainer), second)
        tuned = evaluate(trainer, prompts, None, second)
    start, tuned = both_scored(start, tuned)
    if ask:
        _ask_person(run, start, tuned, ask, choose or _choose_in_terminal(console))
    return conclude(console, trainer, run, start, tuned, best_of)


def conclude(
    console: Console,
    trainer: PPOTrainer,
    run: Run,
    start: Evaluation,
    tuned: Evaluation,
    best_of: int = 0,
) -> Verdict:
    """From two measurements, and what people said of them, to the verdict: shown, and kept in verdict.json."""
    best = None
    if best_of > 1:
        with terminal.busy(console, f"the start model answers {best_of - 1} more times"):
            best = (best_of, _best_of(trainer, start, best_of))
    verdict = judge(start, tuned, best, _human_wins(run, start, tuned))
    answers = [
        {"prompt": p, "start": s, "tuned": t} for p, s, t in zip(start.prompts, start.texts, tuned.texts, strict=True)
    ]
    sides = {"start": start.as_dict(), "tuned": tuned.as_dict(), "answers": answers}
    run.write("verdict.json", verdict.as_dict() | sides)
    console.print(verdict_table(start, tuned, verdict))
    return verdict


def start_model(trainer: PPOTrainer) -> PolicyModel:
    """What the policy was before PPO: the base, or the SFT stage's model."""
    return PolicyModel(trainer.base, trainer.sft_model.adapter, trainer.config.temperature)


def second_reward(trainer: PPOTrainer) -> RewardComputer | None:
    """The reward that training does not see, if the config names one."""
    parts = trainer.config.eval_reward_parts
    return trainer.reward_of(parts) if parts else None


def _best_of_before(run: Run) -> int:
    """How many answers the last verdict chose the best from."""
    before = run.read("verdict.json")["best_of_n"] if (run.folder / "verdict.json").is_file() else None
    return int(before["n"]) if before else USUAL_BEST_OF


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


# ------------------------------------------------------------------------------------------------------- a person


def _ask_person(run: Run, start: Evaluation, tuned: Evaluation, how_many: int, choose: Choose) -> None:
    """Blind: two answers in random order. What was asked before is not asked again.

    Choices are kept in choices.jsonl; those that are no ties also as preferences for the next reward model.
    """
    known = _choices(run)
    order = random.SystemRandom()  # no seed: the sides must not be the same in every session
    asked = 0
    for prompt, first, second in zip(start.prompts, start.texts, tuned.texts, strict=True):
        if asked == how_many:
            break
        if first.strip() == second.strip() or (prompt, first, second) in known:
            continue  # nothing to choose, or chosen already
        tuned_first = order.random() < 0.5
        choice = choose(prompt, *((second, first) if tuned_first else (first, second)))
        if choice == "q":
            break
        asked += 1
        better = "tie" if choice == "t" else "tuned" if (choice == "1") == tuned_first else "start"
        run.append("choices.jsonl", {"prompt": prompt, "start": first, "tuned": second, "better": better})
        if better != "tie":
            chosen, rejected = (second, first) if better == "tuned" else (first, second)
            said = getattr(prompt, "messages", None) or prompt
            run.append("preferences.jsonl", {"prompt": said, "chosen": chosen, "rejected": rejected})


def _choices(run: Run) -> dict[tuple[str, str, str], str]:
    """What people found better, by prompt and both answers."""
    return {(r["prompt"], r["start"], r["tuned"]): r["better"] for r in run.read_lines("choices.jsonl")}


def _human_wins(run: Run, start: Evaluation, tuned: Evaluation) -> PairedComparison | None:
    """Of these very answers, in this or an earlier session: one point for the side that is better."""
    known = _choices(run)
    said = [known.get(key) for key in zip(start.prompts, start.texts, tuned.texts, strict=True)]
    asked = start.at([n for n, better in enumerate(said) if better])
    if not asked.prompts:
        return None
    points = [asked.per_prompt([float(better == side) for better in said if better]) for side in ("start", "tuned")]
    return compare(*points)


def _choose_in_terminal(console: Console) -> Choose:
    def choose(prompt: str, first: str, second: str) -> str:
        console.rule()
        console.print(f"[dim]{terminal.plain(prompt)}[/dim]", highlight=False)
        table = Table("1", "2", show_lines=True)
        for column in table.columns:
            column.ratio = 1
        table.add_row(terminal.plain(first.strip()), terminal.plain(second.strip()))
        console.print(table)
        while True:
            try:
                key = console.input("better: 1, 2, t (tie) or q (quit)? ").strip().lower()
            except EOFError:
                console.print()
                return "q"
            if key in ("1", "2", "t", "tie", "q", "quit"):
                return key[0]
            console.print("Please type 1, 2, t or q.", highlight=False)

    return choose


# ------------------------------------------------------------------------------------------------------ the table


def verdict_table(start: Evaluation, tuned: Evaluation, verdict: Verdict) -> Table:
    """Start and tuned side by side, then who won."""
    table = terminal.before_after_table(start, tuned, ("start", "tuned"))
    table.add_section()
    for row in who_won(verdict.as_dict()):
        table.add_row(*row)
    table.caption = "in brackets: 95 % interval of its share of the unequal prompts"
    return table
