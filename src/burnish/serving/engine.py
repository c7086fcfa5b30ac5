"""One decode loop over one base: questions to start and tuned model, each with its own settings, answered together.

A thread decodes. Whoever asks gives a listener, which that thread calls with every piece of an answer.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from burnish.decoder.shared_base import SharedBase
from burnish.errors import BurnishError, is_out_of_memory
from burnish.serving.answer import Answer, Piece, Question, Trouble, numbered
from burnish.serving.batch import GROWS_BY, Batch

ENDING = Trouble("the server is ending", 503)


class BusyError(BurnishError):
    """No more questions are taken, now or at all."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.message)
        self.trouble = trouble


@dataclass(frozen=True)
class Limits:
    max_requests: int = 64
    """That are answered or wait."""
    max_batch: int = 16
    """Answers that are decoded together."""
    cache_mb: int = 2048
    """For keys and values of these answers."""
    seconds: float = 600.0
    """From a request to its end."""


class Job:
    """The questions of one request. All that another thread may do with it is `leave`."""

    def __init__(self, questions: Sequence[Question], answers: list[list[Answer]], deadline: float) -> None:
        self.waiting = deque(zip(questions, answers, strict=True))
        self.answers = [answer for own in answers for answer in own]
        self.deadline = deadline
        self.is_left = False

    def leave(self) -> None:
        """Nobody listens any more: its answers end before their next token."""
        self.is_left = True

    @property
    def is_done(self) -> bool:
        return not any(answer.is_live for answer in self.answers)


class Engine:
    def __init__(self, base: SharedBase, limits: Limits) -> None:
        self.base = base
        self.limits = limits
        self.max_tokens = max(1, limits.cache_mb * 2**20 // max(base.key_bytes, 1))  # of all answers together
        self._jobs: list[Job] = []
        self._batches: list[Batch] = []
        self._changed = threading.Condition()
        self._is_closed = False
        self._ending: Trouble | None = None
        self._thread = threading.Thread(target=self._run, name="decoding", daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        return self._thread.is_alive() and not self._is_closed

    @property
    def num_requests(self) -> int:
        return len(self._jobs)

    def ask(self, questions: Sequence[Question], tell: Callable[[Piece], None], seconds: float | None = None) -> Job:
        """`tell` hears every piece of every answer, in the thread that decodes."""
        tokenizer, stop_ids = self.base.tokenizer, self.base.stop_ids
        questions = numbered(list(questions))
        answers = [
            [Answer(question, place, tokenizer, stop_ids, tell) for place in range(question.num_answers)]
            for question in questions
        ]
        job = Job(questions, answers, time.monotonic() + (seconds or self.limits.seconds))
        with self._changed:
            if not self.is_open:
                raise BusyError(ENDING)
            if len(self._jobs) >= self.limits.max_requests:
                raise BusyError(Trouble(f"{len(self._jobs)} requests are answered or wait; try again later", 429))
            self._jobs.append(job)
            self._changed.notify()
        return job

    def close(self, grace: float = 0.0) -> None:
        """Takes no more questions. Answers that have not ended after `grace` seconds are cut off."""
        with self._changed:
            self._is_closed, self._ending = True, ENDING
            for job in self._jobs:
                job.deadline = min(job.deadline, time.monotonic() + grace)
            self._changed.notify()

    def join(self, seconds: float | None = None) -> None:
        """Waits until it has ended."""
        self._thread.join(seconds)

    # --------------------------------------------------------------------------------------------- the decode loop

    @torch.no_grad()
    def _run(self) -> None:
        while self._has_work():
            for job in self._jobs:
                self._let_go(job)
            self._admit()
            for batch in self._batches:
                with _guarded(batch.answers):
                    batch.step()
                if not batch.live:
                    batch.drop_ended()
            self._batches = [batch for batch in self._batches if batch.answers]
            with self._changed:
                self._jobs = [job for job in self._jobs if not job.is_done]

    def _has_work(self) -> bool:
        """Waits for it; no more comes when it is closed."""
        with self._changed:
            while not self._jobs and not self._is_closed:
                self._changed.wait()
            return bool(self._jobs)

    def _let_go(self, job: Job) -> None:
        """Of a job whose listener has gone, or whose time is over."""
        if job.is_left:
            for answer in job.answers:
                answer.leave()
        elif time.monotonic() > job.deadline:
            late = Trouble(f"it was not answered within {self.limits.seconds:g} seconds", 504)
            for answer in job.answers:
                answer.fail(self._ending or late)
        if job.is_done:
            job.waiting.clear()

    def _admit(self) -> None:
        """Those who wait, in the order in which they came, as long as there is room."""
        for job in self._jobs:
            while job.waiting:
                question, answers = job.waiting[0]
                if not self._has_room_for(question):
                    return
                job.waiting.popleft()
                alone = not self.base.decoder.shares_prompts
                for own in ([answer] for answer in answers) if alone else (answers,):
                    with _guarded(own):
                        self._batch_for(question.adapter).join(own)

    def _batch_for(self, adapter: str | None) -> Batch:
        for batch in self._batches:
            if batch.adapter == adapter and batch.can_be_joined:
                return batch
        self._batches.append(Batch(self.base, adapter))
        return self._batches[-1]

    def _has_room_for(self, question: Question) -> bool:
        """A batch is as wide as its longest answer. Alone, a question that was taken always has room."""
        places, tokens, is_counted = question.num_answers, 0, False
        for batch in self._batches:
            live = batch.live
            if not live:
                continue
            rows, longest = len(live), max(answer.question.longest for answer in live)
            if batch.adapter == question.adapter and batch.can_be_joined and not is_counted:
                rows, longest, is_counted = rows + question.num_answers, max(longest, question.longest), True
            tokens += rows * (longest + GROWS_BY)
            places += len(live)
        if tokens == 0:
            return True
        tokens += 0 if is_counted else question.num_answers * (question.longest + GROWS_BY)
        return places <= self.limits.max_batch and tokens <= self.max_tokens


@contextmanager
def _guarded(answers: Sequence[Answer]) -> Iterator[None]:
    """What goes wrong ends the answers it happened to, and no others."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            trouble = Trouble("memory ran out; ask for fewer or shorter answers at a time", 503)
        else:
            trouble = Trouble(f"{type(error).__name__}: {error}")
        for answer in answers:
            answer.fail(trouble)
