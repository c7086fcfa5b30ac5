"""Learning from texts that people wrote or judged: demonstrations, preferences, scores.

One loop for all of them. A batch is cut into passes that fit activation_mb; gradients of a pass are divided by the
whole batch's count, so the cut changes memory and speed, never the result.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from burnish.checkpoints import State
from burnish.config.stage_configs import SupervisedConfig
from burnish.errors import DivergedError
from burnish.guards import gradients_are_finite, is_out_of_memory
from burnish.models.base_model import RoleModel
from burnish.training_state import (
    optimizer_state,
    parameters_state,
    random_state,
    restore_optimizer,
    restore_parameters,
    restore_random,
)

Record = TypeVar("Record")
WARMUP_SHARE = 0.1
Statistics = dict[str, float]
Sums = dict[str, tuple[float, int]]
"""Of each statistic the sum over some records, and how many of them have it."""


class SupervisedTrainer(Generic[Record]):
    """Epochs of shuffled batches for one role.

    `size_of(record)` is the tokens that a training pass computes for it, `weight_of` what it counts in the mean loss
    (tokens for demonstrations, 1 for a pair), `loss_of(records)` the summed loss with sums of its statistics.
    """

    def __init__(
        self,
        role: RoleModel,
        config: SupervisedConfig,
        loss_of: Callable[[Sequence[Record]], tuple[Tensor, Sums]],
        size_of: Callable[[Record], float],
        weight_of: Callable[[Record], float],
    ) -> None:
        self.role = role
        self.config = config
        self.loss_of = loss_of
        self.size_of = size_of
        self.weight_of = weight_of
        self.num_done = 0
        self.places: Sequence[str] = ()
        self._most_in_a_pass = config.micro_batch_size
        self._last_record: Record | None = None
        self.optimizer = AdamW(role.parameters(), lr=config.learning_rate, eps=1e-5, weight_decay=0.0)

    def num_updates(self, num_records: int) -> int:
        return self.config.epochs * math.ceil(num_records / self.config.batch_size)

    def train(
        self,
        records: Sequence[Record],
        on_update: Callable[[Statistics], None] | None = None,
        places: Sequence[str] = (),
    ) -> list[Statistics]:
        """All epochs, or what is left of them after `restore`; gives the statistics of every update made.

        `places` say where each record came from, for an error that is about one.
        """
        self.places = places if all(places) else ()
        history: list[Statistics] = []
        total = self.num_updates(len(records))
        batches = (batch for epoch in range(self.config.epochs) for batch in self._batches(len(records), epoch))
        with self.role.base.dropout():
            for batch in islice(batches, self.num_done, None):
                self.optimizer.param_groups[0]["lr"] = self.config.learning_rate * _ramp(self.num_done, total)
                statistics = self._update([records[i] for i in batch], batch)
                self.num_done += 1
                self._last_record = records[batch[0]]
                history.append({"update": self.num_done} | statistics)
                if on_update:
                    on_update(history[-1])
        return history

    def state(self) -> State:
        """All that later updates depend on."""
        state = State(values={"updates": self.num_done})
        state.add("parameters", parameters_state(self.role.parameters()))
        state.add("optimizer", optimizer_state(self.optimizer))
        return state.add("random", random_state({}))

    def sound_state(self) -> State:
        """The state to go on from: refused if the last update left a model that gives no numbers."""
        with torch.random.fork_rng():  # what dropout draws here must not move what it draws in training
            loss = self.loss_of([self._last_record])[0] if self._last_record is not None else torch.zeros(())
        if not loss.isfinite():
            raise DivergedError(
                f"update {self.num_done} ruined the model: it gives no numbers any more. The update is not saved. "
                "Lower learning_rate"
            )
        return self.state()

    def restore(self, state: State) -> None:
        restore_parameters(self.role.parameters(), state.part("parameters"))
        restore_optimizer(self.optimizer, state.part("optimizer"))
        restore_random({}, state.part("random"))
        self.num_done = self.role.num_updates = int(state.values["updates"])

    @torch.no_grad()
    def measure(self, records: Sequence[Record]) -> Statistics:
        """Mean loss and statistics, learning nothing."""
        return self._means([self.loss_of(part) for part in self._passes(records)], records)

    def _update(self, batch: Sequence[Record], numbers: Sequence[int]) -> Statistics:
        outcomes = self._gradients(batch)
        norm = float(nn.utils.clip_grad_norm_(self.role.parameters(), self.config.max_grad_norm))
        means = self._means(outcomes, batch) | {"grad_norm": norm}
        for name, value in means.items():
            if not math.isfinite(value):
                where = self._culprit(batch, numbers)
                raise DivergedError(
                    f"{name} became {value}{where} before update {self.num_done + 1}; no weight was changed. Lower "
                    "learning_rate"
                )
        self.optimizer.step()
        self.role.num_updates += 1
        return means | {"learning_rate": self.optimizer.param_groups[0]["lr"]}

    def _gradients(self, batch: Sequence[Record]) -> list[tuple[Tensor, Sums]]:
        """Of one batch. If memory does not suffice, in smaller passes: that changes the time, and with dropout what is
        dropped, nothing else.
        """
        weight = sum(map(self.weight_of, batch))
        while True:
            passes = list(self._passes(batch))
            try:
                self.optimizer.zero_grad()
                return [self._backward(part, weight) for part in passes]
            except (RuntimeError, MemoryError) as error:
                largest = max(map(len, passes))
                if not is_out_of_memory(error) or largest == 1:
                    raise
            self._most_in_a_pass = largest // 2
            warnings.warn(
                f"memory ran out; a pass takes at most {self._most_in_a_pass} rows from now on (lower activation_mb)",
                stacklevel=2,
            )

    def _backward(self, part: Sequence[Record], weight: float) -> tuple[Tensor, Sums]:
        loss, sums = self.loss_of(part)
        (loss / weight).backward()
        return loss.detach(), sums

    def _culprit(self, batch: Sequence[Record], numbers: Sequence[int]) -> str:
        """The first training row whose own gradient is not finite."""
        for record, number in zip(batch, numbers, strict=True):
            self.optimizer.zero_grad()
            self.loss_of([record])[0].backward()
            if not gradients_are_finite(self.role.parameters()):
                return f" (by {self.places[number] if self.places else f'training row {number + 1}'})"
        return ""

    def _means(self, outcomes: Sequence[tuple[Tensor, Sums]], records: Sequence[Record]) -> Statistics:
        """Each statistic over the records that have it; left out where none has."""
        weight = sum(map(self.weight_of, records))
        means = {"loss": sum(float(loss) for loss, _ in outcomes) / weight}
        for name in outcomes[0][1]:
            total, count = map(sum, zip(*(sums[name] for _, sums in outcomes), strict=True))
            if count:
                means[name] = total / count
        return means

    def _batches(self, num_records: int, epoch: int) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self.config.seed * 1_000_003 + epoch)
        order = torch.randperm(num_records, generator=generator).tolist()
        for first in range(0, len(order), self.config.batch_size):
            yield order[first : first + self.config.batch_size]

    def _passes(self, batch: Sequence[Record]) -> Iterator[list[Record]]:
        """Neighbours in size share a pass; its padded size stays within the budget (or it is one record)."""
        budget = self.config.activation_mb * 2**20 // self.role.base.activation_bytes
        ordered = sorted(batch, key=self.size_of, reverse=True)
        while ordered:
            width = self.size_of(ordered[0])
            take = max(1, min(int(budget / max(width, 1)), self._most_in_a_pass or len(ordered)))
            yield ordered[:take]
            ordered = ordered[take:]


def _ramp(update: int, total: int) -> float:
    """Up over the first tenth, then down to 0."""
    warmup = max(1, round(WARMUP_SHARE * total))
    return min((update + 1) / warmup, (total - update) / max(total - warmup, 1))
