"""A language model behind an OpenAI-compatible API as a judge: it grades an answer, or compares it with another."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from burnish.data.records import messages_of, reference_of
from burnish.errors import InputError, RewardFailedError
from burnish.rewards.grades import expected_worth, grade_in, letter_in
from burnish.rewards.kept_answers import KeptAnswers
from burnish.rewards.part import RewardFunction, RewardPart, Workshop
from burnish.rewards.rules import check_references
from burnish.services.patience import Patience
from burnish.services.service import SECRETS, Address, Service, ServiceError
from burnish.text import without_secrets

TEXTS = Path(__file__).parent / "texts"
ABOUT_THE_QUESTION = (400, 413, 422)  # too long, or not allowed: the next one may be answered
TOP_LOGPROBS = 20


class JudgePart(RewardPart):
    """A language model that is asked what it thinks of each answer. Scores go from 0 to 1. Nothing is asked twice: what
    it said is kept in the run folder.
    """

    path_keys = ("template",)
    kind: Literal["judge"] = "judge"
    url: Address
    """Where its API begins, such as https://host/v1."""
    model: str
    """Its name there."""
    token_env: str | None = None
    """Name of the environment variable that holds the API's key; the key itself has no place in a config."""
    against: Literal["nothing", "start", "reference"] = "nothing"
    """`nothing`: it grades the answer. `start`, `reference`: it says which is better, the answer or what the start
    model would have said (its most likely answer), or the prompt's reference. It is asked twice, with the sides
    swapped, and the mean counts."""
    template: str | None = None
    """A text file with what it is asked: {prompt} and {response}, and if you like {reference}, {lowest}, {highest}; for
    a comparison {prompt}, {a} and {b}. Unset: burnish's own."""
    score_from: Literal["answer", "logprobs"] = "answer"
    """`answer`: the number (or letter) that it answers with. `logprobs`: the mean of all grades (letters), each with
    the probability that the judge gives it: finer, in one token, where the API gives log-probabilities."""
    lowest: int = Field(1, ge=0, le=1000)
    """The worst grade. It becomes a score of 0."""
    highest: int = Field(9, ge=1, le=1000)
    """The best grade. It becomes a score of 1."""
    max_tokens: int = Field(512, ge=1, le=1_000_000)
    """Longest answer of the judge, with score_from: answer."""
    request: dict[str, Any] = Field(default_factory=lambda: {"temperature": 0})
    """More fields of each request, as the API knows them. One that is null is left out of it."""
    timeout: float = Field(60.0, gt=0, le=3600)
    """Seconds for one question and its answer."""
    at_once: int = Field(4, ge=1, le=256)
    """Questions that may be under way at a time."""
    retries: int = Field(6, ge=0, le=100)
    """How often a question is repeated that the service was too busy for (429) or failed at (5xx, no connection): after
    1, 2, 4 ... seconds, at most 60, or when it says."""

    @field_validator("request")
    @classmethod
    def _adds_to_the_question(cls, request: dict[str, Any]) -> dict[str, Any]:
        if {"model", "messages", "stream", "n"} & request.keys():
            raise ValueError("model, messages, stream and n are burnish's own; leave them out")
        if {re.sub(r"[-_]", "", name.lower()) for name in request} & SECRETS:  # not shown again in the error
            raise ValueError("a key has no place in a config; name the environment variable that holds it: token_env")
        return request

    @model_validator(mode="after")
    def _has_a_scale(self) -> Self:
        if self.lowest >= self.highest:
            raise ValueError(f"lowest {self.lowest} and highest {self.highest} are no scale")
        if self.score_from == "logprobs" and self.against == "nothing" and self.highest > 9:
            raise ValueError("score_from: logprobs reads one token, so grades have one digit; set highest: 9 or less")
        return self

    @property
    def needs_base(self) -> bool:
        return self.against == "start"

    @property
    def text(self) -> str:
        """What it is asked."""
        bundled = TEXTS / ("grade.txt" if self.against == "nothing" else "compare.txt")
        file = bundled if self.template is None else Path(self.template)
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"the judge's template {file} cannot be read: {error}") from None
        needed = {"prompt", "response"} if self.against == "nothing" else {"prompt", "a", "b"}
        missing = sorted(f"{{{name}}}" for name in needed if f"{{{name}}}" not in text)
        if missing:
            raise InputError(f"the judge's template {file} lacks {', '.join(missing)}")
        return text

    def check(self, workshop: Workshop) -> RewardFunction | None:
        judge = self.make(workshop)
        return None if self.needs_base else judge

    def make(self, workshop: Workshop) -> ApiJudge:
        return ApiJudge(self, workshop.start_answers)

    def check_prompts(self, prompts: Sequence[str]) -> None:
        if self.against == "reference" or "{reference}" in self.text:
            check_references("the judge", prompts)

    def files(self) -> list[Path]:
        return [] if self.template is None else [Path(self.template)]

    def deeds(self) -> Iterator[str]:
        token = f", with the key in your environment variable {self.token_env}" if self.token_env else ""
        yield f"send prompts and answers to {self.url}{token}"
        if self.template is not None:
            yield f"read {Path(self.template).resolve()}, and send it there"


class ApiJudge:
    """Asks about each response; several questions at a time, none of them twice."""

    __name__ = "judge"
    asked_by_one = True  # `at_once` is meant over all processes

    def __init__(self, part: JudgePart, start_answers: Callable[[Sequence[str]], list[str]] | None = None) -> None:
        self.part = part
        self.text = part.text
        url = part.url.rstrip("/")
        whole = url if url.endswith("/chat/completions") else f"{url}/chat/completions"
        self.service = Service(whole, part.timeout, part.token_env)
        self.answers = KeptAnswers()
        self._start_answers = start_answers
        self._costs = {"calls": 0, "tokens": 0}
        self._lock = threading.Lock()
        self._patience = Patience(part.retries)

    def keep_answers(self, file: Path) -> None:
        self.answers.keep_in(file)

    def take_costs(self) -> dict[str, int]:
        """Calls, and tokens as the service counts them, since this was asked last."""
        costs, self._costs = self._costs, {"calls": 0, "tokens": 0}
        return costs

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> list[float | RewardFailedError]:
        questions = [self._questions(*row) for row in zip(prompts, responses, self._others(prompts), strict=True)]
        self._patience = Patience(self.part.retries)
        texts = list(dict.fromkeys(text for own in questions for text, _ in own))
        with ThreadPoolExecutor(self.part.at_once) as pool:
            said = dict(zip(texts, pool.map(self._verdict, texts), strict=True))
        return [_mean([_turned(said[text], swapped) for text, swapped in own]) for own in questions]

    def _others(self, prompts: Sequence[str]) -> list[str]:
        """What each response is compared with."""
        if self.part.against != "start":
            return [reference_of(prompt) or "" for prompt in prompts]
        keys = [["start", str(prompt), messages_of(prompt)] for prompt in prompts]
        unknown = {str(key): n for n, key in enumerate(keys) if self.answers.get(key) is None}
        if unknown:
            assert self._start_answers is not None, "comes with a base model"
            answers = self._start_answers([prompts[n] for n in unknown.values()])
            for n, answer in zip(unknown.values(), answers, strict=True):
                self.answers.put(keys[n], without_secrets(answer))
        return [self.answers.get(key) for key in keys]

    def _questions(self, prompt: str, response: str, other: str) -> list[tuple[str, bool]]:
        """What is asked about a response; and whether the other answer stands first in it."""
        if self.part.against == "nothing":
            scale = {"lowest": str(self.part.lowest), "highest": str(self.part.highest)}
            return [(_filled(self.text, scale | {"prompt": prompt, "response": response, "reference": other}), False)]
        both = ({"a": response, "b": other}, {"a": other, "b": response})
        sides = [{"prompt": prompt, "reference": reference_of(prompt) or "", **own} for own in both]
        return [(_filled(self.text, own), swapped) for own, swapped in zip(sides, (False, True), strict=True)]

    def _verdict(self, text: str) -> float | RewardFailedError:
        """From 0 to 1, or why there is none. For a comparison it is how much the first of the two is better."""
        body: dict[str, Any] = {"model": self.part.model, "messages": [{"role": "user", "content": text}]}
        if self.part.score_from == "logprobs":
            body |= {"max_tokens": 1, "logprobs": True, "top_logprobs": TOP_LOGPROBS}
        else:
            body |= {"max_tokens": self.part.max_tokens}
        body = {name: value for name, value in (body | self.part.request).items() if value is not None}
        question = [self.service.url, body, self.part.lowest, self.part.highest]
        known = self.answers.get(question)
        if known is not None:
            return float(known)
        try:
            score = self._score_in(self._ask(body))
        except RewardFailedError as error:  # about this response alone
            return error
        except BaseException as error:
            self._patience.give_up(error)
            raise
        self.answers.put(question, score)
        return score

    def _ask(self, body: Mapping[str, Any]) -> Any:
        """Again and again, as long as that may help. A service that stays away ends the run, which can be resumed."""
        try:
            answer = self._patience.ask(lambda _: self.service.ask(body))
        except ServiceError as error:
            if error.status in ABOUT_THE_QUESTION:
                raise
            if not error.may_pass:
                raise InputError(str(error)) from None
            raise InputError(
                f"{error}, and so it did when asked {self.part.retries} times more. What it has judged is kept; resume "
                "when it is back"
            ) from None
        self._count(answer)
        return answer

    def _count(self, answer: Any) -> None:
        usage = answer.get("usage") if isinstance(answer, dict) else None
        tokens = usage.get("total_tokens") if isinstance(usage, dict) else None
        with self._lock:
            self._costs["calls"] += 1
            self._costs["tokens"] += tokens if isinstance(tokens, int) else 0

    def _score_in(self, answer: Any) -> float:
        part, compares = self.part, self.part.against != "nothing"
        if part.score_from == "logprobs":
            steps = range(part.lowest, part.highest + 1)
            grades = {str(n): (n - part.lowest) / (part.highest - part.lowest) for n in steps}
            return expected_worth(self._likely(answer), {"A": 1.0, "B": 0.0} if compares else grades)
        try:
            text = str(answer["choices"][0]["message"]["content"])
        except (KeyError, IndexError, TypeError):
            raise RewardFailedError(f"the judge {self.service.url} gave no answer where it belongs") from None
        return letter_in(text) if compares else grade_in(text, part.lowest, part.highest)

    def _likely(self, answer: Any) -> list[tuple[str, float]]:
        """What the judge might have said first, with its probability."""
        try:
            top = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
            return [(str(one["token"]).strip(), math.exp(float(one["logprob"]))) for one in top]
        except (KeyError, IndexError, TypeError, ValueError, OverflowError):
            raise RewardFailedError(
                f"the judge {self.service.url} gave no log-probabilities where they belong; set score_from: answer if "
                "it has none"
            ) from None


def _filled(template: str, texts: Mapping[str, str]) -> str:
    """Every {name} once: what stands in the texts themselves is left alone."""
    return re.sub(r"\{(\w+)\}", lambda found: str(texts.get(found[1], found[0])), template)


def _turned(verdict: float | RewardFailedError, swapped: bool) -> float | RewardFailedError:
    return 1.0 - verdict if swapped and not isinstance(verdict, RewardFailedError) else verdict


def _mean(verdicts: Sequence[float | RewardFailedError]) -> float | RewardFailedError:
    numbers = [v for v in verdicts if not isinstance(v, RewardFailedError)]
    failures = [v for v in verdicts if isinstance(v, RewardFailedError)]
    return failures[0] if failures else sum(numbers) / len(numbers)
