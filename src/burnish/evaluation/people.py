"""What people find better: blind choices between start and tuned, kept in the run folder (said.py). Whoever asks about
them, in the terminal or on the page, they count in the verdict through this.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from burnish.data.records import messages_of
from burnish.evaluation.evaluation import Evaluation
from burnish.evaluation.paired import PairedComparison, compare
from burnish.evaluation.said import Row, Said
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

    def row(self, choice: str) -> Row:
        chat = {"messages": messages} if (messages := messages_of(self.prompt)) else {}
        return {"prompt": self.prompt, "start": self.start, "tuned": self.tuned, "better": self.better(choice)} | chat


def ask(run: Run, start: Evaluation, tuned: Evaluation, how_many: int, choose: Choose) -> None:
    """Blind, and every choice is kept at once. What was asked before is not asked again."""
    questions = list(_questions(run, start, tuned, how_many))
    said = Said(run.folder)
    made = 0  # in this session, for those who change their mind
    while made < len(questions):
        choice = choose(questions[made])
        if choice == "q":
            return
        if choice == "u":
            if made:
                made -= 1
                back = _key(questions[made].row("t"))
                said.take_back(lambda row, back=back: _is_nameless(row) and _key(row) == back)  # type: ignore[misc]
            continue
        said.keep(questions[made].row(choice))
        made += 1


def wins(run: Run, start: Evaluation, tuned: Evaluation) -> PairedComparison | None:
    """Of these very answers, whenever they were asked about: one point for the side that is better."""
    known = _choices(run)
    found = [known.get(key) for key in zip(start.prompts, start.texts, tuned.texts, strict=True)]
    asked = start.at([n for n, better in enumerate(found) if better])
    if not asked.prompts:
        return None
    points = [asked.per_prompt([float(better == side) for better in found if better]) for side in ("start", "tuned")]
    return compare(*points)


def _questions(run: Run, start: Evaluation, tuned: Evaluation, how_many: int) -> Iterator[Question]:
    known = _choices(run)
    order = random.SystemRandom()  # no seed: the sides must not be the same in every session
    both = zip(start.prompts, start.texts, tuned.texts, strict=True)
    # Nothing to choose where both say the same; what was chosen already is known.
    left = [(p, a, b) for p, a, b in both if a.strip() != b.strip() and (p, a, b) not in known][:how_many]
    for number, (prompt, first, second) in enumerate(left, 1):
        yield Question(prompt, first, second, number, len(left), order.random() < 0.5)


def _is_nameless(row: Row) -> bool:
    """A choice as `ask` keeps it: those made on the page under a name are other people's."""
    return "start" in row and "judge" not in row


def _key(row: Row) -> tuple[str, str, str]:
    return row["prompt"], row["start"], row["tuned"]


def _choices(run: Run) -> dict[tuple[str, str, str], str]:
    """What most people found better, by prompt and both answers. Each has one voice: a question that is asked
    again shows how sure they are, and changes nothing.
    """
    voices: dict[tuple[str, str, str], dict[str, int]] = {}
    for row in Said(run.folder).rows():
        if "start" in row and row["better"] != "skip" and not row.get("again"):
            voice = {"tuned": 1, "start": -1}.get(row["better"], 0)
            voices.setdefault(_key(row), {})[row.get("judge", "")] = voice
    return {key: _side(sum(own.values())) for key, own in voices.items()}


def _side(voices: int) -> str:
    return "tuned" if voices > 0 else "start" if voices < 0 else "tie"
