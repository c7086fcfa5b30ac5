"""What rows mean: prompts, demonstrations, preferences and human scores.

A prompt is text, or a chat's messages. A row may be a whole chat, `messages`, whose last turn is the answer. Records
that cannot be used are reported with place and reason, three of them and the count; with `skip_bad` they are dropped
and counted instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from burnish.data.cells import Messages, as_text, messages_in, number_of, text_of, value_of
from burnish.data.rows import read_rows
from burnish.errors import SHOWN_ERRORS, InputError, count, some_of


class Prompt(str):
    """A prompt's text; with it where it came from, its messages if it is a chat, and a reference answer if given."""

    source: str
    messages: Messages | None
    reference: str | None

    def __new__(
        cls, text: str, source: str = "", messages: Messages | None = None, reference: str | None = None
    ) -> Prompt:
        prompt = super().__new__(cls, text)
        prompt.source, prompt.messages, prompt.reference = source, messages, reference
        return prompt


def place_of(prompt: str) -> str:
    """Where a prompt came from, as file:line; empty for one that was made in Python."""
    return prompt.source if isinstance(prompt, Prompt) else ""


def named(prompt: str) -> str:
    """A prompt in a sentence: its place, or how it begins."""
    return place_of(prompt) or f"the prompt {prompt[:40]!r}"


def messages_of(prompt: str) -> Messages | None:
    """The messages of a chat; None for plain text."""
    return prompt.messages if isinstance(prompt, Prompt) else None


def reference_of(prompt: str) -> str | None:
    """The answer that a prompt came with, if it came with one."""
    return prompt.reference if isinstance(prompt, Prompt) else None


def require_references(prompts: Sequence[str], what: str) -> None:
    """Refuses prompts without a reference answer, which `what` needs; all of them are reported at once."""
    missing = [named(p) for p in prompts if reference_of(p) is None]
    if missing:
        raise InputError(
            f"{what} needs a reference answer, and {some_have(missing)} none; give every row one (column `reference`, "
            "or another name by `fields: {reference: ...}`; with reward-test: --reference)"
        )


def some_have(places: Sequence[str]) -> str:
    """The first of them by name, and how many they are, as the subject of a sentence."""
    if len(places) == 1:
        return f"{places[0]} has"
    return f"{len(places)} prompts ({', '.join(places[:3])}{', ...' if places[3:] else ''}) have"


def prompt_key(prompt: str) -> tuple[str, str]:
    """What makes a prompt the same as another: its text, and its messages if it is a chat."""
    return str(prompt), json.dumps(messages_of(prompt))


@dataclass(frozen=True)
class Demonstration:
    """How a person would answer."""

    prompt: str
    completion: str


@dataclass(frozen=True)
class Preference:
    """Which of two answers a person chose."""

    prompt: str
    chosen: str
    rejected: str


@dataclass(frozen=True)
class Scored:
    """How good a person found an answer."""

    prompt: str
    response: str
    score: float


@dataclass(frozen=True)
class Candidates:
    """Answers to a prompt that somebody is to judge."""

    prompt: str
    answers: list[str]
    scores: list[float]
    """Of a reward, one for each; empty where none is known."""


Record = TypeVar("Record")


@dataclass(frozen=True)
class Loaded(Generic[Record]):
    """The usable records of a source, and what was wrong with the others."""

    source: str
    records: list[Record]
    bad: list[str] = field(default_factory=list)
    """Place and reason of every row that was skipped."""


def load_prompts(source: str | Path, fields: Mapping[str, str] | None = None, skip_bad: bool = False) -> Loaded[Prompt]:
    """Field names: `prompt`, and `reference` where rules compare with one. Of a whole chat the assistant's last turn is
    the reference.
    """
    names = {name: name for name in ("prompt", "messages", "reference")} | dict(fields or {})

    def prompt_of(values: Mapping[str, Any], place: str) -> Prompt:
        reference = values.get(names["reference"])
        if reference is not None and not isinstance(reference, str):
            raise InputError(f"{names['reference']!r} is of type {type(reference).__name__}, not text")
        if not _is_chat(values, names):
            return _prompt(values, names["prompt"], place, reference)
        messages = messages_in(values[names["messages"]], names["messages"])
        if messages[-1]["role"] != "assistant":
            return _prompt(values, names["messages"], place, reference)
        prompt, answer = _chat(values, names["messages"], place)
        return Prompt(prompt, place, prompt.messages, answer if reference is None else reference)

    return _load(source, prompt_of, skip_bad, "prompts", names["prompt"])


def load_demonstrations(
    source: str | Path, fields: Mapping[str, str] | None = None, skip_bad: bool = False
) -> Loaded[Demonstration]:
    names = {name: name for name in ("prompt", "messages", "completion")} | dict(fields or {})

    def demonstration_of(values: Mapping[str, Any], place: str) -> Demonstration:
        if _is_chat(values, names, instead_of="completion"):
            return Demonstration(*_chat(values, names["messages"], place))
        return Demonstration(_prompt(values, names["prompt"], place), _answer(values, names["completion"]))

    return _load(source, demonstration_of, skip_bad, "demonstrations")


def load_preferences(
    source: str | Path, fields: Mapping[str, str] | None = None, skip_bad: bool = False
) -> Loaded[Preference]:
    """Without a `prompt`, chosen and rejected must be whole chats; what they share is the prompt."""
    names = {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected", "messages": "messages"} | dict(
        fields or {}
    )

    def preference_of(values: Mapping[str, Any], place: str) -> Preference:
        is_chat = _is_chat(values, names)
        if names["prompt"] not in values and not is_chat and isinstance(values.get(names["chosen"]), list):
            prompt, chosen, rejected = _two_chats(values, names["chosen"], names["rejected"], place)
        else:
            prompt = _prompt(values, names["messages" if is_chat else "prompt"], place)
            chosen, rejected = _judged(values, names["chosen"]), _judged(values, names["rejected"])
        if chosen.strip() == rejected.strip():
            raise InputError("chosen and rejected are the same answer, so nothing was preferred")
        return Preference(prompt, chosen, rejected)

    return _load(source, preference_of, skip_bad, "preferences")


def load_scores(source: str | Path, fields: Mapping[str, str] | None = None, skip_bad: bool = False) -> Loaded[Scored]:
    names = {name: name for name in ("prompt", "messages", "response", "score")} | dict(fields or {})

    def scored_of(values: Mapping[str, Any], place: str) -> Scored:
        if _is_chat(values, names, instead_of="response"):
            return Scored(*_chat(values, names["messages"], place), number_of(values, names["score"]))
        prompt, response = _prompt(values, names["prompt"], place), _judged(values, names["response"])
        return Scored(prompt, response, number_of(values, names["score"]))

    return _load(source, scored_of, skip_bad, "scores")


def load_candidates(source: str | Path, skip_bad: bool = False) -> Loaded[Candidates]:
    """Rows with `answers`, a list of texts, and `scores` where they are known; or with one answer or two under the
    names that demonstrations, preferences and scores have.
    """
    names = {"prompt": "prompt", "messages": "messages"}

    def candidates_of(values: Mapping[str, Any], place: str) -> Candidates:
        prompt = _prompt(values, "messages" if _is_chat(values, names) else "prompt", place)
        if "answers" not in values:
            single = [name for name in ("chosen", "rejected", "response", "completion") if name in values]
            answers = [_judged(values, name) for name in single] or [_judged(values, "answers")]
            return Candidates(prompt, answers, [])
        given, scores = values["answers"], values.get("scores") or []
        if not isinstance(given, list) or not given:
            raise InputError("'answers' is not a list of answers")
        if scores and (not isinstance(scores, list) or len(scores) != len(given)):
            raise InputError(f"'scores' are not a list of {len(given)} numbers, one for each answer")
        answers = [_judged({"answers": answer}, "answers") for answer in given]
        return Candidates(prompt, answers, [number_of({"scores": score}, "scores") for score in scores])

    return _load(source, candidates_of, skip_bad, "answers to judge")


# ------------------------------------------------------------------------------------------------------- the loader


def _load(
    source: str | Path,
    record_of: Callable[[Mapping[str, Any], str], Record],
    skip_bad: bool,
    what: str,
    text_column: str = "prompt",
) -> Loaded[Record]:
    records: list[Record] = []
    bad: list[str] = []
    for row in read_rows(source, text_column):
        try:
            if row.values is None:
                raise InputError(row.problem or "unreadable")
            records.append(record_of(row.values, row.place))
        except InputError as error:
            bad.append(f"{row.place}: {error}")
        if row.rest_is_lost:
            raise InputError(
                f"{count(len(bad), 'bad row')} in {source}:\n{some_of(bad[:-1][: SHOWN_ERRORS - 1] + bad[-1:])}"
            )
    if bad and not skip_bad:
        raise InputError(f"{count(len(bad), 'bad row')} in {source}:\n{some_of(bad)}\n(skip_bad: true leaves them out)")
    if not records:
        raise InputError(f"{source} holds no {what}; it needs at least one" + (f":\n{some_of(bad)}" if bad else ""))
    return Loaded(str(source), records, bad)


# ---------------------------------------------------------------------------------------------------- single values


def _prompt(values: Mapping[str, Any], name: str, place: str, reference: str | None = None) -> Prompt:
    value = value_of(values, name)
    if not isinstance(value, list):
        return Prompt(text_of(value, name), place, None, reference)
    messages = messages_in(value, name)
    if messages[-1]["role"] == "assistant":
        raise InputError(f"{name!r} ends in an assistant's message; the assistant speaks next, so it must end before")
    return Prompt(as_text(messages), place, messages, reference)


def _is_chat(values: Mapping[str, Any], names: Mapping[str, str], instead_of: str = "prompt") -> bool:
    """A conversation where a column of its own is missing."""
    return names[instead_of] not in values and names["messages"] in values


def _chat(values: Mapping[str, Any], name: str, place: str) -> tuple[Prompt, str]:
    """A whole chat: the assistant's last turn is the answer, and all before it the prompt."""
    messages, answer = messages_in(values[name], name)[:-1], _answer(values, name)
    if not messages:
        raise InputError(f"{name!r} is one message; before the assistant's answer there must be what it answers")
    return _prompt({name: messages}, name, place), answer


def _answer(values: Mapping[str, Any], name: str) -> str:
    """An answer as text, as a message, or as the last message of a chat."""
    value = value_of(values, name)
    value = [value] if isinstance(value, Mapping) else value
    if not isinstance(value, list):
        return text_of(value, name)
    last = messages_in(value, name)[-1]
    if last["role"] != "assistant":
        raise InputError(f"{name!r} ends in a message of the {last['role']}, not of the assistant")
    return last["content"]


def _judged(values: Mapping[str, Any], name: str) -> str:
    """An answer that people judged. A model may have said nothing, and they may have thought little of it."""
    value = value_of(values, name)
    return "" if isinstance(value, str) and not value.strip() else _answer(values, name)


def _two_chats(values: Mapping[str, Any], chosen: str, rejected: str, place: str) -> tuple[Prompt, str, str]:
    """Two whole chats: all messages but the last are the prompt, and must be the same."""
    a, b = (messages_in(value_of(values, name), name) for name in (chosen, rejected))
    if a[:-1] != b[:-1] or not a[:-1]:
        raise InputError(f"without a prompt, {chosen!r} and {rejected!r} must be chats that differ in the last message")
    return Prompt(as_text(a[:-1]), place, a[:-1]), _answer(values, chosen), _answer(values, rejected)


def prompts_of(records: Iterable[Any]) -> list[str]:
    """The prompt of every record; a prompt is its own."""
    return [r if isinstance(r, str) else r.prompt for r in records]


def places_of(records: Iterable[Any]) -> list[str]:
    """Where each record came from, as file:line; empty for one that was made in Python."""
    return [place_of(prompt) for prompt in prompts_of(records)]


def texts_of(records: Iterable[Any]) -> Iterator[str]:
    """Everything that prompts and other records say, for their fingerprint."""
    for record in records:
        if isinstance(record, str):
            yield str(record)
            yield repr((reference_of(record), messages_of(record)))
        elif is_dataclass(record):
            yield from texts_of([getattr(record, own.name) for own in fields(record)])
        else:
            yield str(record)
