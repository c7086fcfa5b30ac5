"""What is asked, and one answer as it grows token by token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from burnish.rollout.sampling import Sampler
from burnish.serving.spoken import Spoken

COLDEST = 1e-4  # a lower temperature would overflow, and always takes the most likely token

MIXED = 0x9E3779B97F4A7C15  # an odd number without a pattern: the seeds of one question lie far from each other
LARGEST_SEED = 2**63
IMPOSSIBLE = -9999.0  # stands for minus infinity, which JSON has not


def sampler_of(temperature: float, top_k: int, top_p: float) -> Sampler:
    """As a request or a person asks for it; temperature 0 takes the most likely token."""
    greedy = temperature < COLDEST
    return Sampler(1.0 if greedy else temperature, top_k, top_p, greedy=greedy)


@dataclass(frozen=True)
class Told:
    """One token of an answer, and how likely the model found it: before temperature, top-k and top-p."""

    token: int
    logprob: float
    likeliest: list[tuple[int, float]]
    """As many as were asked for, the most likely first."""
    offset: int
    """Letters of the answer before it."""


@dataclass(frozen=True)
class Trouble:
    """Why an answer could not be finished, and HTTP's number for that."""

    message: str
    status: int = 500


@dataclass(frozen=True)
class Piece:
    """News of one answer."""

    number: int
    text: str
    tokens: list[Told] = field(default_factory=list)
    finish: str | None = None
    """With the last piece: `stop` or `length`, or `error`."""
    trouble: Trouble | None = None


@dataclass(frozen=True)
class Question:
    """A prompt for one of the speakers, and how it is to be answered."""

    adapter: str | None
    prompt: list[int]
    max_tokens: int
    sampler: Sampler
    stop: tuple[str, ...] = ()
    seed: int | None = None
    num_answers: int = 1
    top_logprobs: int | None = None
    """How many likely tokens are told with each; None: nothing is."""
    first_number: int = 0
    """Of its answers among those to a request."""

    @property
    def longest(self) -> int:
        return len(self.prompt) + self.max_tokens

    @property
    def reserved(self) -> int:
        """Tokens that its answers may need room for."""
        return self.num_answers * self.longest


class Answer:
    """Draws its own tokens, with its own random numbers: what else is decoded beside it changes nothing."""

    def __init__(
        self, question: Question, place: int, tokenizer: Any, stop_ids: list[int], tell: Callable[[Piece], None]
    ) -> None:
        """The answer of that place among those to the question; `tell` hears every piece of it."""
        self.question = question
        self.number = question.first_number + place
        self.num_tokens = 0
        self.finish: str | None = None
        self._spoken = Spoken(tokenizer, question.stop)
        self._stop_ids = stop_ids
        self._tell = tell
        self._untold: list[Told] = []
        self._generator: torch.Generator | None = None
        self._seed = None if question.seed is None else (question.seed + place * MIXED) % LARGEST_SEED

    @property
    def is_live(self) -> bool:
        return self.finish is None

    def leave(self) -> None:
        """Nobody listens any more."""
        self.finish = self.finish or "gone"

    def fail(self, trouble: Trouble) -> None:
        if self.is_live:
            self.finish = "error"
            self._tell(Piece(self.number, "", finish=self.finish, trouble=trouble))

    def draw(self, logits: Tensor) -> int:
        """Its next token.  [1, V]"""
        sampled = self.question.sampler(logits, self._random(logits.device))
        token = int(sampled.action)
        if not bool(sampled.logprob.isfinite()):
            self.fail(Trouble("the model's logits are not finite: its training ruined it"))
            return token
        self.num_tokens += 1
        if self.question.top_logprobs is not None:
            self._untold.append(self._told(token, logits))
        if token in self._stop_ids:
            self.finish = "stop"
        else:
            self._spoken.hear(token)
        if self._spoken.is_stopped:
            self.finish = "stop"
        elif self.finish is None and self.num_tokens == self.question.max_tokens:
            self.finish = "length"
        self._tell_news()
        return token

    def _random(self, device: torch.device) -> torch.Generator:
        if self._generator is None:
            self._generator = torch.Generator(device)
            if self._seed is None:
                self._generator.seed()
            else:
                self._generator.manual_seed(self._seed)
        return self._generator

    def _told(self, token: int, logits: Tensor) -> Told:
        logprob = logits[0].float().log_softmax(-1).clamp(min=IMPOSSIBLE)
        values, ids = logprob.topk(min(self.question.top_logprobs or 0, len(logprob)))
        likeliest = list(zip(ids.tolist(), values.tolist(), strict=True))
        return Told(token, float(logprob[token]), likeliest, len(self._spoken.whole))

    def _tell_news(self) -> None:
        """A token is told with the first of its letters, so that what a stop string takes away is not told of."""
        is_ended = self.finish is not None
        if is_ended:
            self._spoken.end()
        text = self._spoken.give(is_ended)
        told = [own for own in self._untold if is_ended or own.offset < self._spoken.num_given]
        self._untold = self._untold[len(told) :]
        if self._spoken.is_stopped:
            told = [own for own in told if own.offset < len(self._spoken.whole)]
        if text or told or is_ended:
            self._tell(Piece(self.number, text, told, self.finish))


def numbered(questions: list[Question]) -> list[Question]:
    """The questions of one request, with the numbers of their answers."""
    first, found = 0, []
    for question in questions:
        found.append(replace(question, first_number=first))
        first += question.num_answers
    return found
