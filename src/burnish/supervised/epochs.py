"""Learning from texts that people wrote or judged, one loop for all of them: epochs of shuffled batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

import torch

from burnish.config.stage_configs import SupervisedConfig
from burnish.errors import DivergedError
from burnish.models.role import RoleModel
from burnish.models.updates import Batch, Items, LossOf, Updates
from burnish.processes import world
from burnish.runs.checkpoints import State
from burnish.runs.state import (
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


@dataclass(frozen=True)
class Learning(Generic[Record]):
    """What is to be learned from records."""

    loss_of: LossOf[list[Record]]
    """The summed loss of some records, and its statistics, `loss` among them."""
    sizes_of: Callable[[Record], Sequence[float]]
    """Tokens that a training pass computes for a record, by part."""
    weight_of: Callable[[Record], float]
    """What a record counts in the mean loss: tokens for demonstrations, 1 for a pair."""


class Epochs(Generic[Record]):
    """Epochs of shuffled batches for one role, which can be stopped and resumed after any update."""

    def __init__(self, role: RoleModel, config: SupervisedConfig, learning: Learning[Record]) -> None:
        self.role = role
        self.config = config
        self.learning = learning
        self.num_done = 0
        self.updates = Updates(role, config, config.learning_rate, config.max_grad_norm)
        self._last_record: Record | None = None

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
        names = list(places) if all(places) and places else [f"training row {n + 1}" for n in range(len(records))]
        history: list[Statistics] = []
        total = self.num_updates(len(records))
        batches = (batch for epoch in range(self.config.epochs) for batch in self._order(len(records), epoch))
        with self.role.base.dropout():
            for numbers in islice(batches, self.num_done, None):
                self.updates.set_learning_rate(_ramp(self.num_done, total))
                batch = self._batch([records[n] for n in numbers], [names[n] for n in numbers])
                self._draw_apart()
                statistics = self.updates.gradients(batch, self.learning.loss_of)
                self.updates.apply()
                self.num_done += 1
                self._last_record = records[numbers[0]]
                done = {"update": self.num_done} | statistics
                history.append(done | {"learning_rate": self.updates.learning_rate_now})
                if on_update:
                    on_update(history[-1])
        return history

    def measure(self, records: Sequence[Record]) -> Statistics:
        """Mean loss and statistics, learning nothing."""
        return self.updates.measure(self._batch(records), self.learning.loss_of)

    def state(self) -> State:
        """All that later updates depend on."""
        state = State(values={"updates": self.num_done})
        state.add("parameters", parameters_state(self.role.parameters()))
        state.add("optimizer", optimizer_state(self.updates.optimizer))
        return state.add("random", random_state({}))

    def sound_state(self) -> State:
        """The state to resume from: refused if the last update left a model that produces NaN."""
        with torch.random.fork_rng():  # what dropout draws here must not move what it draws in training
            last = self._last_record
            loss = self.learning.loss_of([last])[0] if last is not None else torch.zeros(())
        if not loss.isfinite():
            raise DivergedError(
                f"update {self.num_done} ruined the model: it produces NaN. The update is not saved. Lower "
                "learning_rate"
            )
        return self.state()

    def restore(self, state: State) -> None:
        restore_parameters(self.role.parameters(), state.part("parameters"))
        restore_optimizer(self.updates.optimizer, state.part("optimizer"))
        restore_random({}, state.part("random"))
        self.num_done = self.role.num_updates = int(state.values["updates"])

    def _order(self, num_records: int, epoch: int) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self.config.seed * 1_000_003 + epoch)
        order = torch.randperm(num_records, generator=generator).tolist()
        for first in range(0, len(order), self.config.batch_size):
            yield order[first : first + self.config.batch_size]

    def _batch(self, records: Sequence[Record], names: Sequence[str] = ()) -> Batch[list[Record]]:
        """This process's share of some records, and what all of them weigh."""
        own = world.share(len(records))
        items = Items(
            sizes=[self.learning.sizes_of(records[n]) for n in own],
            take=lambda chosen: [records[own[n]] for n in chosen],
            name_of=lambda item: names[own[item]],
        )
        return Batch([items], sum(map(self.learning.weight_of, records)))

    def _draw_apart(self) -> None:
        """Each process drops other weights than the rest, and the same again when the update is made again."""
        if world.size() > 1:
            update = self.config.seed * 1_000_003 + self.num_done
            torch.manual_seed(update * world.size() + world.rank())


def _ramp(update: int, total: int) -> float:
    """Up over the first tenth, then down to 0."""
    warmup = max(1, round(WARMUP_SHARE * total))
    return min((update + 1) / warmup, (total - update) / max(total - warmup, 1))
