"""What the tuned model says more often than the start model: the words that its reward likes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from burnish.evaluation.intervals import LEVEL, sign_test
from burnish.evaluation.paired import MIN_DECIDED
from burnish.rewards.words import ngrams, words

MAX_WORDS = 4  # of a phrase

Phrase = tuple[str, ...]


@dataclass(frozen=True)
class Habit:
    """A phrase, and how many answers of the start and of the tuned model contain it."""

    phrase: str
    start: int
    tuned: int


def new_habits(start: Sequence[str], tuned: Sequence[str], at_most: int = 3) -> list[Habit]:
    """The phrases that clearly more answers have than before; both sides answer the same prompts.

    A phrase is tested prompt by prompt, by the signs alone. With hundreds of phrases some would come out clear by
    chance, so the level is divided by their number.
    """
    said = [words(text) for text in (*start, *tuned)]
    common = _common(said)
    has = [{p for size in range(1, MAX_WORDS + 1) for p in ngrams(own, size)} & common for own in said]
    before, after = has[: len(start)], has[len(start) :]
    gained, lost = (_prompts_by_phrase(more, less) for more, less in ((after, before), (before, after)))
    counts = {phrase: (len(gained[phrase]), len(lost[phrase])) for phrase in gained.keys() | lost.keys()}
    tested = [phrase for phrase, (more, fewer) in counts.items() if more + fewer >= MIN_DECIDED]
    chances = {phrase: sign_test(*counts[phrase]) for phrase in tested if counts[phrase][0] > counts[phrase][1]}
    clear = [phrase for phrase, chance in chances.items() if chance * len(tested) < LEVEL]
    found: list[Phrase] = []
    for phrase in sorted(clear, key=lambda p: (chances[p], -len(p), p)):
        # The same answers have gained it with another: a part of that, or a piece of one long sentence.
        if not any(2 * len(gained[phrase] & gained[other]) > len(gained[phrase]) for other in found):
            found.append(phrase)
    return [Habit(" ".join(p), *(sum(p in own for own in side) for side in (before, after))) for p in found[:at_most]]


def _prompts_by_phrase(more: Sequence[set[Phrase]], less: Sequence[set[Phrase]]) -> defaultdict[Phrase, set[int]]:
    """By phrase, the prompts at which only the first of two sides has it."""
    found: defaultdict[Phrase, set[int]] = defaultdict(set)
    for place, (own, others) in enumerate(zip(more, less, strict=True)):
        for phrase in own - others:
            found[phrase].add(place)
    return found


def _common(said: Sequence[Sequence[str]]) -> set[Phrase]:
    """Phrases that enough answers, of both sides together, contain to be tested. They are built from common parts, so
    that those of long answers, nearly all of them rare, need no room.
    """
    found: set[Phrase] = set()
    parts: set[Phrase] = {()}
    for size in range(1, MAX_WORDS + 1):
        counts: Counter[Phrase] = Counter()
        for own in said:
            counts.update(p for p in set(ngrams(own, size)) if p[:-1] in parts and p[1:] in parts)
        parts = {phrase for phrase, count in counts.items() if count >= MIN_DECIDED}
        found |= parts
    return found
