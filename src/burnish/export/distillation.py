"""From a response-scope adapter to an ordinary LoRA: the trained model teaches one that reads the prompt too.

The teacher answers training prompts; at every token of its answers the student learns the teacher's whole distribution,
by the exact KL over the vocabulary. The answers are the teacher's own and new in every round, so the student is right
where the teacher goes. It begins with the teacher's weights: acting on the prompt too, they are near already. How near
it has come is measured on answers to held-out prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from burnish.config import PPOConfig
from burnish.decoder.head import kl_from_states
from burnish.decoder.shared_base import SharedBase
from burnish.models.policy_model import PolicyModel
from burnish.models.updates import Batch, Items, Sums, Updates
from burnish.rollout.local import LocalEngine
from burnish.rollout.rollout import Rollout
from burnish.rollout.sampling import Sampler
from burnish.sa_pairs.table import SAPairs

LEARNING_RATE = 2e-4
BATCH_SIZE = 8  # answers of an update: each is read with its whole prompt
ROUND = 4  # batches that are drawn at once, and each learned from
EPOCHS = 2  # times
MEASURE_EVERY = 10  # updates
WARMUP = 10  # updates
BETTER = 0.02  # of the KL so far: a fall by less is none
HALVINGS = 2  # of the learning rate, each when the held-out KL falls no more; then it ends
MOST_UPDATES = 120
DRAWN_WITH_SEED = 30_000  # far from training's


@dataclass(frozen=True)
class Lessons:
    """Answers of the teacher's, and what it would have said at each of their tokens."""

    pairs: SAPairs
    """With what the layers below the adapters make of them: computed once, however often they are learned from."""
    states: Tensor
    """[B, T, H] ready for the head."""

    def select(self, rows: Sequence[int]) -> Lessons:
        pairs = self.pairs.select(rows)
        return Lessons(pairs, self.states[list(rows), : pairs.mask.shape[1]])


@dataclass(frozen=True)
class Learned:
    """How it went; KL in nats a token, of the teacher to the student, on held-out prompts."""

    updates: int
    kl_at_start: float
    kl: float
    history: list[tuple[int, float]]
    """Update and KL of each measurement."""


@contextmanager
def acting_on(base: SharedBase, scope: str) -> Iterator[None]:
    """The adapters of a base act on the response or on the whole sequence, for as long as it lasts."""
    before, invocation = base.scope, base.invocation
    base.scope, base.invocation = scope, invocation if scope == "response" else []
    try:
        yield
    finally:
        base.scope, base.invocation = before, invocation


class ReadsPrompts:
    """An engine for the student, which reads the prompt too. Only while it answers: reference and reward model act as
    they were trained, and judge its answers as they judge the teacher's.
    """

    def generate(
        self,
        speaker: PolicyModel,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        sampler: Sampler,
        generator: torch.Generator | None = None,
        stop_ids: Sequence[int] | None = None,
    ) -> Rollout:
        with acting_on(speaker.base, "sequence"):
            rollout = LocalEngine().generate(speaker, prompts, max_new_tokens, sampler, generator, stop_ids)
        return replace(rollout, context=None)  # what it has read is its own


class Distillation:
    """Teacher and student are adapters on one base; the teacher acts on the response, the student on everything."""

    def __init__(self, teacher: PolicyModel, student: PolicyModel, config: PPOConfig, learning_rate: float) -> None:
        self.base = teacher.base
        self.teacher = teacher
        self.student = student
        self.config = config
        self.sampler = Sampler(config.temperature, config.top_k, config.top_p)
        self.generator = torch.Generator(self.base.device).manual_seed(DRAWN_WITH_SEED + config.seed)
        self.updates = Updates(student, config, learning_rate, max_grad_norm=1.0)

    def begin_with_the_teacher(self) -> None:
        """The student's weights are the teacher's, of the same shape."""
        self._take(self.teacher.parameters())

    def lessons(self, prompts: Sequence[list[int]]) -> Lessons:
        """The teacher answers each prompt once, as in training."""
        with acting_on(self.base, "response"):
            rollout = LocalEngine().generate(
                self.teacher, prompts, self.config.max_new_tokens, self.sampler, self.generator
            )
        assert rollout.states is not None
        pairs = SAPairs(rollout.mask, {"action": rollout.action}, rollout.prompt_ids, rollout.prompt_mask)
        with acting_on(self.base, "sequence"):
            return Lessons(self.student.adopt(pairs), rollout.states)

    def kl(self, lessons: Lessons, student: PolicyModel | None = None) -> float:
        """Mean over all tokens."""
        with acting_on(self.base, "sequence"):
            batch = self._batch(lessons, range(len(lessons.states)))
            measured = self.updates.measure(batch, lambda some: self._loss_of(some, student))
        return measured["kl"]

    def learn(
        self,
        prompts: Sequence[list[int]],
        held_out: Lessons,
        most_updates: int = MOST_UPDATES,
        on_measure: Callable[[int, float], None] = lambda update, kl: None,
    ) -> Learned:
        """Until the held-out KL falls no more. The student ends with the weights that were best."""
        best, kept = self.kl(held_out), self._weights()
        history, factor = [(0, best)], 1.0
        on_measure(0, best)
        for done, batch in enumerate(self._batches(prompts, most_updates), 1):
            with acting_on(self.base, "sequence"):
                self.updates.set_learning_rate(factor * min(1.0, done / WARMUP))
                self.updates.gradients(batch, self._loss_of)
                self.updates.apply()
            if done % MEASURE_EVERY and done < most_updates:
                continue
            kl = self.kl(held_out)
            history.append((done, kl))
            on_measure(done, kl)
            falls = kl < (1 - BETTER) * best
            if kl < best:
                best, kept = kl, self._weights()
            if not falls:
                factor /= 2
                self._take(kept)
                if factor < 0.5**HALVINGS:
                    break
        self._take(kept)
        return Learned(history[-1][0], history[0][1], best, history)

    def _take(self, weights: Sequence[Tensor]) -> None:
        """For the student's own."""
        with torch.no_grad():
            for own, value in zip(self.student.parameters(), weights, strict=True):
                own.copy_(value)

    def _weights(self) -> list[Tensor]:
        return [p.detach().clone() for p in self.student.parameters()]

    def _batches(self, prompts: Sequence[list[int]], count: int) -> Iterator[Batch[Lessons]]:
        """New answers to shuffled prompts, each learned from in several batches."""
        made, order = 0, self._shuffled(len(prompts))
        while True:
            while len(order) < BATCH_SIZE * ROUND:
                order += self._shuffled(len(prompts))
            drawn, order = order[: BATCH_SIZE * ROUND], order[BATCH_SIZE * ROUND :]
            lessons = self.lessons([prompts[n] for n in drawn])
            for _ in range(EPOCHS):
                mixed = self._shuffled(len(drawn))
                for first in range(0, len(mixed), BATCH_SIZE):
                    if made == count:
                        return
                    yield self._batch(lessons, mixed[first : first + BATCH_SIZE])
                    made += 1

    def _shuffled(self, count: int) -> list[int]:
        return torch.randperm(count, generator=self.generator, device=self.base.device).tolist()

    def _batch(self, lessons: Lessons, rows: Sequence[int]) -> Batch[Lessons]:
        assert lessons.pairs.prompt_mask is not None
        prompts, answers = lessons.pairs.prompt_mask.sum(1).tolist(), lessons.pairs.lengths.tolist()
        with acting_on(self.base, "sequence"):
            sizes = [self.base.pass_sizes(prompts[n], answers[n]) for n in rows]
        items = Items(sizes, lambda chosen: lessons.select([rows[n] for n in chosen]), lambda n: f"answer {n + 1}")
        return Batch([items], sum(answers[n] for n in rows))

    def _loss_of(self, lessons: Lessons, student: PolicyModel | None = None) -> tuple[Tensor, Sums]:
        mask = lessons.pairs.mask
        states = (student or self.student).states(lessons.pairs)  # [B, T, H]
        taught = lessons.states[mask]  # [N, H]
        loss = kl_from_states(states[mask], taught, self.base.output, self.config.temperature).sum()
        return loss, {"kl": (loss.detach(), len(taught))}
