"""Which of how many: several processes that make one run together.

Every process runs the same code on the same config and the same data, and works on its share: of a step's prompts, of a
batch's records. What they find is put together, so that all go on with the same numbers: decisions made from them (has
the policy gone too far? is it time to stop?) are the same everywhere and need no agreement of their own. What only one
can do (the run folder, a question to a person) the first process does, and tells the others.

A process that is alone is the first of one. Its share is everything, what all have found is what it has found, and
nothing is sent anywhere: then these functions cost nothing, and torch.distributed is not even imported.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from burnish.errors import LostProcessError
from burnish.processes import wire
from burnish.processes.failures import described, error_of
from burnish.processes.wire import all_again as all_again
from burnish.processes.wire import alone as alone
from burnish.processes.wire import are_to_come as are_to_come
from burnish.processes.wire import take_seconds_waited as take_seconds_waited

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


def rank() -> int:
    """Which process this is, from 0."""
    return wire.here.rank


def size() -> int:
    """Of how many."""
    return wire.here.size


def is_first() -> bool:
    """Whether this is the process that reads and writes the run folder, and speaks to the user."""
    return wire.here.rank == 0


def time_of_start() -> str | None:
    """Of the launcher that started the first process among others: the same when it starts them anew. None without."""
    return wire.here.started


@contextmanager
def joined() -> Iterator[None]:
    """Among the processes that a launcher has started together; alone, where it has not."""
    if not are_to_come() or size() > 1:
        yield
        return
    wire.begin()
    try:
        wire.here.started = gather(_launch_time())[0]
        yield
        wire.meet()  # others may still need what this process has
    finally:
        wire.end()


def _launch_time() -> str:
    import psutil

    return time.strftime("%Y%m%d-%H%M%S", time.localtime(psutil.Process(os.getppid()).create_time()))


# ------------------------------------------------------------------------------------------------------- shares


def share(count: int) -> range:
    """This process's part of `range(count)`: neighbours, and as many as the others have, or one more or less. If there
    are too few for all, the first process has one.
    """
    start, stop = (-(-count * n // size()) for n in (rank(), rank() + 1))  # rounded up
    return range(start, stop)


def share_of_runs(items: Sequence[Any]) -> range:
    """The same of a list in which equal neighbours (several responses to a prompt) stay together."""
    if size() == 1:
        return range(len(items))
    starts = [n for n, item in enumerate(items) if n == 0 or item != items[n - 1]] + [len(items)]
    own = share(len(starts) - 1)
    return range(starts[own.start], starts[own.stop])


# ------------------------------------------------------------------------------------------------ put together


def gather(value: Any) -> list[Any]:
    """What each process gives, in their order. It is something that JSON can hold."""
    if size() == 1:
        return [value]
    import torch

    text = bytearray(json.dumps(value).encode())
    lengths = [own[0] for own in gather_numbers([len(text)])]
    padded = torch.frombuffer(text.ljust(max(lengths)), dtype=torch.uint8)
    texts = [bytes(own.numpy())[:length] for own, length in zip(wire.from_all(padded), lengths, strict=True)]
    return [json.loads(own) for own in texts]


def gather_numbers(numbers: Sequence[int]) -> list[list[int]]:
    """The same of a few whole numbers, as many from everyone: the quickest word to all."""
    if size() == 1:
        return [list(numbers)]
    import torch

    return [own.tolist() for own in wire.from_all(torch.tensor(numbers, dtype=torch.int64))]


def largest(number: float) -> float:
    """Of what each process gives."""
    return number if size() == 1 else max(gather(number))


def in_order(places: Sequence[int], values: Sequence[Any]) -> list[Any]:
    """One list of what each process has found for its own places in it."""
    if size() == 1:
        return list(values)
    found = {place: value for own in gather([list(places), list(values)]) for place, value in zip(*own, strict=True)}
    return [found[place] for place in sorted(found)]


def rows(own: Tensor | None) -> Tensor:
    """Rows of all processes under each other, padded with zeros on the right to one width.  [b, ...] -> [B, ...]

    A process without rows gives None.
    """
    if size() == 1:
        assert own is not None
        return own
    import torch

    known = gather(None if own is None else [list(own.shape), str(own.dtype).removeprefix("torch."), own.device.type])
    shapes = [[0] if one is None else one[0] for one in known]
    some = next(one for one in known if one is not None)
    dtype, kind = getattr(torch, some[1]), some[2]
    widest = [max(sizes) for sizes in zip(*(shape for shape in shapes if len(shape) == len(some[0])), strict=True)]
    padded = torch.zeros(widest, dtype=torch.uint8 if dtype == torch.bool else dtype, device=kind)
    if own is not None:
        padded[tuple(slice(n) for n in own.shape)] = own.to(padded.dtype)
    whole = torch.cat([one[: shape[0]] for one, shape in zip(wire.from_all(padded), shapes, strict=True)])
    return whole.to(dtype)


def add_up(tensors: Sequence[Tensor]) -> None:
    """Each becomes the sum of what all processes have of it."""
    if size() > 1:
        wire.add_up(tensors)


def take_over(tensors: Sequence[Tensor]) -> None:
    """Each becomes what the first process has of it."""
    if size() > 1:
        wire.take_over(tensors)


def tensors_of_first(tensors: dict[str, Tensor] | None) -> dict[str, Tensor]:
    """What the first process has; the others need not have any."""
    if size() == 1:
        return tensors or {}
    import torch

    own = tensors if is_first() and tensors else {}
    names = gather({name: [list(t.shape), str(t.dtype).removeprefix("torch.")] for name, t in own.items()})[0]
    found = {
        name: own[name].cpu().clone() if is_first() else torch.zeros(shape, dtype=getattr(torch, kind))
        for name, (shape, kind) in names.items()
    }
    take_over(list(found.values()))
    return found


# ------------------------------------------------------------------------------------------------- all or none


@contextmanager
def together() -> Iterator[None]:
    """Work of one's own that must succeed everywhere: if one process fails at it, all fail, with its error.

    What it warns of is told by the first process.
    """
    if size() == 1:
        yield
        return
    failure: Exception | None = None
    with warnings.catch_warnings(record=True) as told:
        try:
            yield
        except LostProcessError:
            raise
        except Exception as error:
            failure = error
    said = gather({"failure": described(failure), "told": [str(one.message) for one in told]})
    for sentence in (sentence for own in said for sentence in own["told"]) if is_first() else ():
        warnings.warn(sentence, stacklevel=3)
    failed = [n for n, own in enumerate(said) if own["failure"] is not None]
    failed.sort(key=lambda n: said[n]["failure"]["kind"] == AbandonedError.__name__)  # the cause first
    if failed:
        if failed[0] == rank() and failure is not None:
            raise failure
        raise error_of(said[failed[0]]["failure"], failed[0])


class AbandonedError(Exception):
    """Work that processes do in step, and that one of them had to leave: what it left for is the error."""


def by_first(work: Callable[[], T]) -> T:
    """What the first process finds, for all (something that JSON can hold); or its error, for all."""
    if size() == 1:
        return work()
    found: T | None = None
    with together():
        if is_first():
            with alone():
                found = work()
    return gather(found)[0]


def is_told_here(sentence: str, if_in_doubt: bool = True) -> bool:
    """Whether this process tells the user: what several know of is told by the first that asks. They cannot be sure if
    the process that keeps their store (without torchrun, the first) is gone.
    """
    if wire.store is None:
        return True
    with suppress(Exception):
        return wire.store.add(f"told/{hashlib.sha256(sentence.encode()).hexdigest()}", 1) == 1
    return if_in_doubt
