"""From a response-scope adapter to an ordinary LoRA: the trained model teaches one that reads the prompt too.

The teacher answers training prompts; at every token of its answers the student learns the teacher's whole distribution,
by the exact KL over the vocabulary. The answers are the teacher's own and new in every round, so the student is right
where the teacher goes. It begins with the teacher's weights: acting on the prompt too, they are near already. How near
it has come is measured on answers to held-out prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.config import PPOConfig
from burnish.decoder.head import kl_from_states
from burnish.decoder.shared_base import SharedBase
from burnish.models.policy_model import PolicyModel
from burnish.models.updates import Batch, Items, Sums, Updates
from burnish.rollout.local import LocalEngine
from burnish.rollout.sampling import Sampler
from burnish.sa_pairs.table import SAPairs

LEARNING_RATE = 5e-4
BATCH_SIZE = 16  # answers of an update
ROUND = 2  # batches that are drawn at once, and each learned from
EPOCHS = 2  # times
MEASURE_EVERY = 20  # updates
BETTER = 0.02  # of the KL so far: a fall by less is none
HALVINGS = 3  # of the learning rate, each when the held-out KL falls no more; then it ends
MOST_UPDATES = 400
DRAWN_WITH_SEED = 30_000  # far from training's


@dataclass(frozen=True)
class Lesson:
    """An answer of the teacher's, and what it would have said at each of its tokens."""

    prompt: list[int]
    answer: list[int]
    states: Tensor
    """[T, H] ready for the head."""


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
        with torch.no_grad():
            for own, taught in zip(self.student.parameters(), self.teacher.parameters(), strict=True):
                own.copy_(taught)

    def lessons(self, prompts: Sequence[list[int]]) -> list[Lesson]:
        """The teacher answers each prompt once, as in training."""
        with acting_on(self.base, "response"):
            rollout = LocalEngine().generate(
                self.teacher, prompts, self.config.max_new_tokens, self.sampler, self.generator
            )
        assert rollout.states is not None
        rows = zip(prompts, rollout.action, rollout.mask, rollout.states, strict=True)
        return [Lesson(prompt, answer[own].tolist(), states[own]) for prompt, answer, own, states in rows]

    def kl(self, lessons: Sequence[Lesson], student: PolicyModel | None = None) -> float:
        """Mean over all tokens."""
        with acting_on(self.base, "sequence"):
            measured = self.updates.measure(self._batch(lessons), lambda some: self._loss_of(some, student))
        return measured["kl"]

    def learn(
        self,
        prompts: Sequence[list[int]],
        held_out: Sequence[Lesson],
        most_updates: int = MOST_UPDATES,
        on_measure: Callable[[int, float], None] = lambda update, kl: None,
    ) -> Learned:
        """Until the held-out KL falls no more. The student ends with the weights that were best."""
        best, kept = self.kl(held_out), self._weights()
        history, factor = [(0, best)], 1.0
        on_measure(0, best)
        for done, batch in enumerate(self._batches(prompts, most_updates), 1):
            with acting_on(self.base, "sequence"):
                self.updates.set_learning_rate(factor * min(1.0, done / 10))
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
                if factor < 0.5**HALVINGS:
                    break
        with torch.no_grad():
            for own, value in zip(self.student.parameters(), kept, strict=True):
                own.copy_(value)
        return Learned(history[-1][0], history[0][1], best, history)

    def _weights(self) -> list[Tensor]:
        return [p.detach().clone() for p in self.student.parameters()]

    def _batches(self, prompts: Sequence[list[int]], count: int) -> Iterator[Batch[list[Lesson]]]:
        """New answers to shuffled prompts, each learned from in several batches."""
        made = 0
        order: list[int] = []
        while made < count:
            while len(order) < BATCH_SIZE * ROUND:
                order += torch.randperm(len(prompts), generator=self.generator, device=self.base.device).tolist()
            drawn, order = order[: BATCH_SIZE * ROUND], order[BATCH_SIZE * ROUND :]
            lessons = self.lessons([prompts[n] for n in drawn])
            for _ in range(EPOCHS):
                mixed = torch.randperm(len(lessons), generator=self.generator, device=self.base.device).tolist()
                for first in range(0, len(mixed), BATCH_SIZE):
                    yield self._batch([lessons[n] for n in mixed[first : first + BATCH_SIZE]])
                    made += 1
                    if made == count:
                        return

    def _batch(self, lessons: Sequence[Lesson]) -> Batch[list[Lesson]]:
        with acting_on(self.base, "sequence"):
            sizes = [self.base.pass_sizes(len(own.prompt), len(own.answer)) for own in lessons]
        items = Items(sizes, lambda chosen: [lessons[n] for n in chosen], lambda n: f"the teacher's answer {n + 1}")
        return Batch([items], sum(len(own.answer) for own in lessons))

    def _loss_of(self, lessons: Sequence[Lesson], student: PolicyModel | None = None) -> tuple[Tensor, Sums]:
        prompts, answers = [own.prompt for own in lessons], [own.answer for own in lessons]
        pairs = SAPairs.of_tokens(prompts, answers, self.base.device)
        states = (student or self.student).states(pairs)[pairs.mask]  # [N, H]
        taught = torch.cat([own.states for own in lessons])
        loss = kl_from_states(states, taught, self.base.output, self.config.temperature).sum()
        return loss, {"kl": (loss.detach(), len(taught))}
