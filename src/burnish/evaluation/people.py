"""What people find better: blind choices between two answers, kept in the run folder. Whoever asks, asks through this.

choices.jsonl holds every choice; those that are no ties are also in preferences.jsonl, for the next reward model.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from burnish.data.records import messages_of
from burnish.evaluation.evaluation import Evaluation
from burnish.evaluation.paired import PairedComparison, compare
from burnish.runs.run import Run

Choose = Callable[["Question"], str]
"""A question in; `1`, `2`, `t` (tie), `u` (undo the last one) or `q` (enough) out."""


class Question:
    """Two answers to a prompt, in random order."""

    def __init__(self, prompt: str, start: str, tuned: str, number: int, how_many: int, tuned_first: bool) -> None:
        self.prompt = prompt
        self.start = start
        self.tuned = tuned
        self.number = number
        self.how_many = how_many
        self.tuned_first = tuned_first

    @property
    def answers(self) -> tuple[str, str]:
        return (self.tuned, self.start) if self.tuned_first else (self.start, self.tuned)

    def better(self, choice: str) -> str:
        """Which side was chosen: `start`, `tuned` or `tie`."""
        return "tie" if choice == "t" else "tuned" if (choice == "1") == self.tuned_first else "start"


def ask(run: Run, start: Evaluation, tuned: Evaluation, how_many: int, choose: Choose) -> None:
    """Blind, and every choice is kept at once. What was asked before is not asked again."""
    questions = list(_questions(run, start, tuned, how_many))
    made: list[str] = []  # in this session, for those who change their mind
    while len(made) < len(questions):
        choice = choose(questions[len(made)])
        if choice == "q":
            return
        if choice == "u":
            if made:
                _take_back(run, questions[len(made) - 1].better(made.pop()))
            continue
        _keep(run, questions[len(made)], choice)
        made.append(choice)


def wins(run: Run, start: Evaluation, tuned: Evaluation) -> PairedComparison | None:
    """Of these very answers, whenever they were asked about: one point for the side that is better."""
    known = _choices(run)
    said = [known.get(key) for key in zip(start.prompts, start.texts, tuned.texts, strict=True)]
    asked = start.at([n for n, better in enumerate(said) if better])
    if not asked.prompts:
        return None
    points = [asked.per_prompt([float(better == side) for better in said if better]) for side in ("start", "tuned")]
    return compare(*points)


def _questions(run: Run, start: Evaluation, tuned: Evaluation, how_many: int) -> Iterator[Question]:
    known = _choices(run)
    order = random.SystemRandom()  # no seed: the sides must not be the same in every session
    both = zip(start.prompts, start.texts, tuned.texts, strict=True)
    # Nothing to choose where both say the same; what was chosen already is known.
    left = [(p, a, b) for p, a, b in both if a.strip() != b.strip() and (p, a, b) not in known][:how_many]
    for number, (prompt, first, second) in enumerate(left, 1):
        yield Question(prompt, first, second, number, len(left), order.random() < 0.5)


def _keep(run: Run, asked: Question, choice: str) -> None:
    better = asked.better(choice)
    run.append("choices.jsonl", {"prompt": asked.prompt, "start": asked.start, "tuned": asked.tuned, "better": better})
    if better != "tie":
        sides = (asked.tuned, asked.start) if better == "tuned" else (asked.start, asked.tuned)
        said = messages_of(asked.prompt) or asked.prompt
        run.append("preferences.jsonl", {"prompt": said, "chosen": sides[0], "rejected": sides[1]})


def _take_back(run: Run, better: str) -> None:
    """The last choice, which was this one."""
    for file in ("choices.jsonl", *(["preferences.jsonl"] if better != "tie" else [])):
        run.write_lines(file, run.read_lines(file)[:-1])


def _choices(run: Run) -> dict[tuple[str, str, str], str]:
    """What people found better, by prompt and both answers."""
    return {(r["prompt"], r["start"], r["tuned"]): r["better"] for r in run.read_lines("choices.jsonl")}
