"""One optimizer step of one role, for all that learn: policy, value model, SFT, reward model.

A batch is cut into passes that fit activation_mb. Every pass is divided by what the whole batch weighs, so the cut
changes memory and speed, never the result. Nor does it matter which process makes a pass: gradients are summed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from burnish.config.model_config import ModelConfig
from burnish.errors import DivergedError, ResourceError, is_out_of_memory
from burnish.models.role import RoleModel
from burnish.processes import world

Pass = TypeVar("Pass")
Sums = dict[str, tuple[Tensor | float, float]]
"""Of each statistic the sum over a pass, and over how many it is."""
LossOf = Callable[[Pass], tuple[Tensor, Sums]]
"""The summed loss of a pass, and its statistics."""


@dataclass(frozen=True)
class Items(Generic[Pass]):
    """Sequences or records that may share a pass."""

    sizes: Sequence[Sequence[float]]
    """Of each item: tokens of a training pass, by part. Items side by side are padded to the largest, part by part."""
    take: Callable[[list[int]], Pass]
    """Some of them as one pass."""
    name_of: Callable[[int], str]
    """One of them, for an error."""
    shared: Sequence[int] | None = None
    """What each item's first part belongs to: items with the same number share it. None: each has its own."""


@dataclass(frozen=True)
class Batch(Generic[Pass]):
    """What one optimizer step learns from."""

    items: Sequence[Items[Pass]]
    weight: float
    """What the summed loss is divided by."""


class Updates:
    """The optimizer of a role, and the way to its next step."""

    def __init__(
        self,
        role: RoleModel,
        config: ModelConfig,
        learning_rate: float,
        max_grad_norm: float,
        advice: str = "Lower learning_rate",
    ) -> None:
        """`advice` is for numbers that are not finite."""
        self.role = role
        self.advice = advice
        self.learning_rate = learning_rate
        self.max_grad_norm = max_grad_norm
        self.optimizer = AdamW(role.parameters(), lr=learning_rate, eps=1e-5, weight_decay=0.0, fused=True)
        self._activation_bytes = config.activation_mb * 2**20
        self._most_in_a_pass = config.micro_batch_size

    def set_learning_rate(self, factor: float) -> None:
        """At `factor` times its configured value."""
        self.optimizer.param_groups[0]["lr"] = factor * self.learning_rate

    @property
    def learning_rate_now(self) -> float:
        return self.optimizer.param_groups[0]["lr"]

    def gradients(self, batch: Batch[Pass], loss_of: LossOf[Pass]) -> dict[str, float]:
        """Of one batch, clipped; gives the mean statistics. Numbers that are not finite end here: no weight changes.

        If memory does not suffice, passes become smaller from now on: that changes the time (and with dropout what is
        dropped), nothing else.
        """
        with world.together():
            outcomes = self._backward_all(batch, loss_of)
        outcomes = self._of_all_processes(outcomes)
        norm = float(nn.utils.clip_grad_norm_(self.role.parameters(), self.max_grad_norm))
        means = means_of(outcomes) | {"grad_norm": norm}
        for name, value in means.items():
            if not math.isfinite(value):
                what = "gradient norm" if name == "grad_norm" else name
                when = f"before update {self.role.num_updates + 1} of the {self.role.adapter} model"
                with world.together():
                    culprit = self._culprit(batch, loss_of)
                culprit = max(world.gather(culprit))
                raise DivergedError(f"{what} became {value}{culprit} {when}; no weight was changed. {self.advice}")
        return means

    @torch.no_grad()
    def measure(self, batch: Batch[Pass], loss_of: LossOf[Pass]) -> dict[str, float]:
        """The same statistics, learning nothing."""
        with world.together():
            outcomes = [loss_of(items.take(chosen))[1] for items, chosen in self._passes(batch)]
        return means_of(_sums_of_all(outcomes))

    def apply(self) -> None:
        """Makes the step that the gradients ask for."""
        self.optimizer.step()
        self.role.num_updates += 1

    def _passes(self, batch: Batch[Pass]) -> Iterator[tuple[Items[Pass], list[int]]]:
        budget = self._activation_bytes // self.role.base.activation_bytes
        for items in batch.items:
            for chosen in cut(items.sizes, budget, self._most_in_a_pass, items.shared):
                yield items, chosen

    def _backward_all(self, batch: Batch[Pass], loss_of: LossOf[Pass]) -> list[Sums]:
        """The gradients of what this process has of a batch, pass by pass."""
        while True:
            passes = list(self._passes(batch))
            try:
                self.optimizer.zero_grad()
                return [self._backward(items.take(chosen), batch.weight, loss_of) for items, chosen in passes]
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            self._shrink(max(len(chosen) for _, chosen in passes))

    def _of_all_processes(self, outcomes: list[Sums]) -> list[Sums]:
        """Gradients are summed: each process has divided its own by the weight of the whole batch."""
        if world.size() == 1:
            return outcomes
        parameters = self.role.parameters()
        reached = [n for n, p in enumerate(parameters) if p.grad is not None]  # an expert may get no token at all
        for n in {n for own in world.gather(reached) for n in own} - {*reached}:
            parameters[n].grad = torch.zeros_like(parameters[n])
        world.add_up([own for p in parameters if (own := p.grad) is not None])
        return _sums_of_all(outcomes)

    def _backward(self, given: Pass, weight: float, loss_of: LossOf[Pass]) -> Sums:
        loss, sums = loss_of(given)
        (loss / weight).backward()
        return sums

    def _shrink(self, largest: int) -> None:
        if largest == 1:
            raise ResourceError(
                "there is not enough memory to train on a single sequence; lower max_new_tokens, lora_layers or "
                "prompt_cache_mb, or use a smaller model"
            )
        self._most_in_a_pass = largest // 2
        warnings.warn(
            f"memory ran out; a pass takes at most {self._most_in_a_pass} sequences from now on (lower activation_mb)",
            stacklevel=2,
        )

    def _culprit(self, batch: Batch[Pass], loss_of: LossOf[Pass]) -> str:
        """The first sequence whose own gradient is not finite: each is tried alone."""
        try:
            for items in batch.items:
                for item in range(len(items.sizes)):
                    self.optimizer.zero_grad()
                    loss_of(items.take([item]))[0].backward()
                    if not all(p.grad is None or p.grad.isfinite().all() for p in self.role.parameters()):
                        return f" (by {items.name_of(item)})"
            return ""
        finally:
            self.optimizer.zero_grad()


def cut(
    sizes: Sequence[Sequence[float]], budget: float, most: int | None = None, shared: Sequence[int] | None = None
) -> Iterator[list[int]]:
    """Groups of items that share a pass: neighbours in size, whose padded size stays within the budget (or one item).

    The largest come first: what follows fits into the memory that they leave. Items whose first part is `shared` stay
    together as far as the limits allow, and it counts once for them.
    """
    group: list[list[int]] = []
    for bundle in sorted(_bundles(sizes, budget, most, shared), key=lambda b: _padded([b], sizes), reverse=True):
        grown = [*group, bundle]
        if group and not _fits(grown, sizes, budget, most):
            yield [item for bundle in group for item in bundle]
            grown = [bundle]
        group = grown
    if group:
        yield [item for bundle in group for item in bundle]


def _bundles(
    sizes: Sequence[Sequence[float]], budget: float, most: int | None, shared: Sequence[int] | None
) -> list[list[int]]:
    """Items that share their first part, cut where they would not fit into one pass."""
    if shared is None:
        return [[item] for item in range(len(sizes))]
    bundles: list[list[int]] = []
    last: dict[int, list[int]] = {}
    for item, owner in enumerate(shared):
        bundle = last.get(owner)
        if bundle is not None and _fits([[*bundle, item]], sizes, budget, most):
            bundle.append(item)
            continue
        last[owner] = [item]
        bundles.append(last[owner])
    return bundles


def _fits(bundles: list[list[int]], sizes: Sequence[Sequence[float]], budget: float, most: int | None) -> bool:
    return _padded(bundles, sizes) <= budget and (most is None or sum(map(len, bundles)) <= most)


def _padded(bundles: list[list[int]], sizes: Sequence[Sequence[float]]) -> float:
    """Size of a pass: every part as large as the largest; the first once for each bundle."""
    own, *others = map(max, zip(*(sizes[item] for bundle in bundles for item in bundle), strict=True))
    return len(bundles) * own + sum(map(len, bundles)) * sum(others)


def _sums_of_all(outcomes: list[Sums]) -> list[Sums]:
    """Statistics of all processes, each of which gives those of its own passes."""
    if world.size() == 1:
        return outcomes
    own = [{name: (float(total), count) for name, (total, count) in sums.items()} for sums in outcomes]
    return [sums for of_process in world.gather(own) for sums in of_process]


def means_of(outcomes: Sequence[Sums]) -> dict[str, float]:
    """Each statistic over all that have it; left out where none has."""
    means: dict[str, float] = {}
    for name in outcomes[0]:
        count = sum(sums[name][1] for sums in outcomes)
        if count:
            means[name] = float(sum(sums[name][0] for sums in outcomes)) / count
    return means
