"""Judge: which of two answers is better, blind; how good one is; what would have been better. Nothing on the page says
whose an answer is, and every word is kept at once (said.py).
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from burnish.errors import InputError, LockedError
from burnish.evaluation.said import Row, Said
from burnish.page import candidates
from burnish.page.candidates import Candidates, Pair, key_of, prompt_row
from burnish.page.library import DAMAGE, Library
from burnish.page.view import Action, Asked, Data, View, address, quoted
from burnish.page.voices import chosen, pair_key, results
from burnish.runs.run import Run
from burnish.stages.evaluate import count_choices
from burnish.text import visible

HOW = ("choose", "score")
ASKED_AGAIN = 10  # one in so many pairs is asked a second time
NOT_SOONER = 5  # choices later
SCORES = (1, 5)
FILES = ("preferences", "scores", "demonstrations", "choices")
CHOICES = ("left-much", "left", "tie", "right", "right-much", "skip")
LONGEST_NAME, LONGEST_ANSWER = 40, 100_000
sides = random.SystemRandom()  # no seed: which side an answer stands on must not be foreseen
counting = threading.Lock()


@dataclass(frozen=True)
class Place:
    """What is judged, and where what people say is kept."""

    candidates: Candidates
    said: Said
    after: Callable[[Row], None] = lambda row: None
    """What there is to do when something was said or taken back."""

    @property
    def pairs(self) -> dict[str, Pair]:
        """By their keys."""
        return {pair.key: pair for pair in self.candidates.pairs}

    def holds(self, how: str) -> Callable[[Row], bool]:
        """Which rows are about what is judged here, in this way; a better answer belongs to both."""
        pairs, answers = self.pairs, {key_of(*own) for own in self.candidates.answers}
        prompts = {str(prompt) for prompt, _ in self.candidates.answers}

        def is_here(row: Row) -> bool:
            if "completion" in row:
                return row["prompt"] in prompts
            if "response" in row:
                return how == "score" and key_of(row["prompt"], row["response"]) in answers
            return how == "choose" and pair_key(row) in pairs

        return is_here


def place_of(asked: Asked) -> Place:
    """Path: `run`, or none for the file that the page was given. Query: `against`."""
    name = asked.path.get("run")
    if name is None:
        path = asked.library.labelled
        assert path is not None
        return Place(candidates.of_file(path), Said(path.parent, f"{path.stem}-"))
    run = asked.library.run(name)
    found = candidates.of_run(asked.library, name, asked.one("against"))
    return Place(found, Said(run.folder), lambda row: _count(run) if "start" in row else None)


def _count(run: Run) -> None:
    """In the verdict. The choice itself is kept already: while another process is at work in the folder, or nothing can
    be written there, the verdict has to wait until the next one.
    """
    with counting, suppress(LockedError, OSError, *DAMAGE):
        count_choices(run)


# ------------------------------------------------------------------------------------------------------ what is shown


def data(asked: Asked) -> Data:
    """Path: `run`, or none. Query: `against`, `how`, `judge`."""
    place, judge, how = place_of(asked), judge_of(asked), asked.choice("how", HOW)
    rows = place.said.rows()
    mine = [row for row in rows if row.get("judge", "") == judge]
    told = _choosing(place, mine) if how == "choose" else _scoring(place, mine)
    name = asked.path.get("run")
    return (
        _heading(asked.library, name)
        | told
        | results(place.pairs, rows)
        | {
            "against": asked.one("against"),
            "others": _others(asked.library, name) if name is not None else [],
            "how": how,
            "judge": judge,
            "said": len(mine),
            "can_undo": any(map(place.holds(how), mine)),
            "question_key": told["question"] and key_of(told["question"]["prompt"]),
            "files": [f"{place.said.prefix}{kind}.jsonl" for kind in FILES if place.said.path(kind).is_file()],
        }
    )


def _choosing(place: Place, mine: list[Row]) -> Data:
    pairs = place.pairs
    here = [row for row in mine if pair_key(row) in pairs]
    first = chosen(mine, pairs, False)
    seen, again = ({pair_key(row) for row in here if bool(row.get("again")) == is_again} for is_again in (False, True))
    fresh = [key for key in pairs if key not in seen | again]
    pair = _next(pairs, here, first, again, fresh)
    question = None
    if pair is not None:
        left, right = pair.answers if sides.random() < 0.5 else pair.answers[::-1]
        shown = [{"answer": key_of(text), "text": text} for text in (left, right)]
        question = {"pair": pair.key, "prompt": str(pair.prompt), "left": shown[0], "right": shown[1]}
    made = len(seen) + len(again)
    due = max(0, (len(first) + len(fresh)) // ASKED_AGAIN - len(again))  # to be asked again, if none is skipped
    return {"question": question, "made": made, "total": made + len(fresh) + due}


def _next(
    pairs: dict[str, Pair], here: list[Row], first: dict[str, int], again: set[str | None], fresh: list[str]
) -> Pair | None:
    """One that this judge has not seen; now and then, and at the end, one that was chosen in some time ago."""
    if len(again) < len(first) // ASKED_AGAIN:
        lately = set(map(pair_key, here[-NOT_SOONER:]))
        if early := first.keys() - again - lately:
            return pairs[min(early)]  # keys are hashes: any of them, and after an undo the same
    return pairs[fresh[0]] if fresh else None


def _scoring(place: Place, mine: list[Row]) -> Data:
    answers = place.candidates.answers
    known = {key_of(row["prompt"], row["response"]) for row in mine if "response" in row}
    left = [own for own in answers if key_of(*own) not in known]
    question = None
    if left:
        prompt, text = left[0]
        question = {"prompt": str(prompt), "answer": key_of(prompt, text), "text": text}
    return {"question": question, "made": len(answers) - len(left), "total": len(answers)}


def _heading(library: Library, name: str | None) -> Data:
    if name is not None:
        return library.summary(name)
    assert library.labelled is not None
    return {"file": library.labelled.name}


def _others(library: Library, name: str) -> list[str]:
    """Runs whose answers can be set against this one's."""
    return [other for other, run in library.runs().items() if other != name and (run.folder / "verdict.json").is_file()]


# --------------------------------------------------------------------------------------------------------- what is said


def judge_it(asked: Asked) -> Data:
    """Form: `judge`, `how`, `said` (how much this judge had said when the question was asked: a key that is pressed
    twice counts once), and `better` with `pair` and `left`, or `score` with `answer`, or `completion`, or `undo`.
    """
    place, judge, how = place_of(asked), judge_of(asked), asked.choice("how", HOW)
    if not asked.one("said").isdecimal():
        raise InputError(f"said is {asked.one('said')!r:.40}; send the number that came with the question")
    said = int(asked.one("said"))

    def is_mine(row: Row) -> bool:
        return row.get("judge", "") == judge

    if "undo" in asked.query:
        is_here = place.holds(how)
        changed = place.said.take_back(
            lambda row: is_mine(row) and is_here(row), only_if=lambda rows: sum(map(is_mine, rows)) == said
        )
    else:
        row = _row(asked, place) | ({"judge": judge} if judge else {}) | {"time": round(time.time(), 1)}

        def row_after(rows: list[Row]) -> Row | None:
            mine = list(filter(is_mine, rows))
            if any(_thing(own) == _thing(row) for own in mine[said:]):
                return None
            is_second = pair_key(row) is not None and any(pair_key(own) == pair_key(row) for own in mine)
            return row | ({"again": True} if is_second else {})

        changed = row if place.said.keep_after(row_after) else None
    if changed is not None:
        place.after(changed)
    return {"kept": changed is not None}


def _thing(row: Row) -> str:
    """What a row is about."""
    return pair_key(row) or key_of(row["prompt"], row.get("completion") or row["response"])


def _row(asked: Asked, place: Place) -> Row:
    """What was said, as it is kept."""
    if "better" in asked.query:
        return _choice(asked, place)
    found = {key_of(*own): own for own in place.candidates.answers}.get(asked.one("answer"))
    if "completion" in asked.query:
        prompts = {key_of(prompt): prompt for prompt, _ in place.candidates.answers}
        prompt, text = prompts.get(asked.one("prompt")), asked.one("completion").strip()
        if prompt is None:
            raise InputError("this prompt is not among those to be judged any more; load the page again")
        if not text or len(text) > LONGEST_ANSWER:
            raise InputError(f"a better answer has 1 to {LONGEST_ANSWER} characters, this one has {len(text)}")
        return prompt_row(prompt) | {"completion": text.replace("\r\n", "\n")}
    if found is None:
        raise InputError("this answer is not among those to be judged any more; load the page again")
    row = prompt_row(found[0]) | {"response": found[1]}
    score = asked.one("score")
    if score == "skip":
        return row | {"better": "skip"}
    number = asked.number("score")
    if number is None or not SCORES[0] <= number <= SCORES[1]:
        raise InputError(f"a score is a number from {SCORES[0]} to {SCORES[1]}, not {score!r:.40}")
    return row | {"score": number}


def _choice(asked: Asked, place: Place) -> Row:
    pair = place.pairs.get(asked.one("pair"))
    better, left = asked.one("better"), asked.one("left")
    if pair is None or left not in map(key_of, pair.answers):
        raise InputError("this pair is not among those to be judged any more; load the page again")
    if better not in CHOICES:
        raise InputError(f"a choice is one of {', '.join(CHOICES)}, not {better!r:.40}")
    side, _, much = better.partition("-")
    if side in ("tie", "skip"):
        return pair.row(side)
    is_first = (key_of(pair.answers[0]) == left) == (side == "left")
    return pair.row(pair.sides[0 if is_first else 1]) | {"strength": 2 if much else 1}


def judge_of(asked: Asked) -> str:
    return " ".join(visible(asked.one("judge")).split())[:LONGEST_NAME]


def _back(asked: Asked) -> str:
    name = asked.path.get("run")
    where = "/judge" if name is None else f"/judge/{quoted(name)}"
    return address(where, against=asked.one("against"), how=asked.one("how"), judge=judge_of(asked))


VIEW = View("judge", "/judge/{run:path}", data, "Judge")
JUDGE = Action("/judge/{run:path}", judge_it, _back)
LABEL = View("label", "/judge", data, "Judge")
SAY = Action("/judge", judge_it, _back)
