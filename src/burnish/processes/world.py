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
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from burnish import errors
from burnish.errors import BurnishError, InputError, LostProcessError, StoppedError

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
PATIENCE_MINUTES = 30.0  # how long a process waits for the others, unless BURNISH_PATIENCE says otherwise


@dataclass
class _World:
    rank: int = 0
    size: int = 1
    patience: float = PATIENCE_MINUTES
    started: str | None = None
    waited: float = 0.0


_world = _World()
_store: Any = None  # what all processes can write to, even if some are gone


def rank() -> int:
    """Which process this is, from 0."""
    return _world.rank


def size() -> int:
    """Of how many."""
    return _world.size


def is_first() -> bool:
    """Whether this is the process that reads and writes the run folder, and speaks to the user."""
    return _world.rank == 0


def are_to_come() -> bool:
    """Whether a launcher (torchrun) has started this process as one of several."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys() and int(os.environ["WORLD_SIZE"]) > 1


def time_of_start() -> str | None:
    """Of the launcher that started the first process among others: the same when it starts them anew. None without."""
    return _world.started


@contextmanager
def joined() -> Iterator[None]:
    """Among the processes that a launcher has started together; alone, where it has not."""
    if not are_to_come() or size() > 1:
        yield
        return
    begin()
    try:
        yield
    finally:
        end()


def begin() -> None:
    """Finds the others: gloo between CPUs, nccl between GPUs."""
    global _world, _store
    import torch
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    patience = _patience()
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        _take_gpu(torch.cuda.device_count())
    world = _World(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), patience)
    timeout = timedelta(minutes=patience)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # what an earlier one has left is not for this one
    with _sending(world):
        store = dist.PrefixStore(f"burnish/{attempt}", next(rendezvous("env://", timeout=timeout))[0])
        backend = "cpu:gloo,cuda:nccl" if has_gpu else "gloo"
        dist.init_process_group(backend, store=store, rank=world.rank, world_size=world.size, timeout=timeout)
    _world, _store = world, store
    _world.started = gather(_launch_time())[0]


def _patience() -> float:
    """How many minutes to wait for the others."""
    given = os.environ.get("BURNISH_PATIENCE", str(PATIENCE_MINUTES))
    try:
        minutes = float(given)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes < 1e6:
        raise InputError(f"BURNISH_PATIENCE is {given!r}; it is a number of minutes, such as 30")
    return minutes


def _take_gpu(count: int) -> None:
    """Each process of a machine has a GPU of its own."""
    import torch

    local, here = (int(os.environ.get(name, n)) for name, n in (("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")))
    if here > count:
        raise InputError(
            f"{here} processes on this machine have {count} {'GPU' if count == 1 else 'GPUs'} between them; start as "
            "many processes as there are GPUs, or hide these with CUDA_VISIBLE_DEVICES="
        )
    torch.cuda.set_device(local)


def _launch_time() -> str:
    import psutil

    return time.strftime("%Y%m%d-%H%M%S", time.localtime(psutil.Process(os.getppid()).create_time()))


def end() -> None:
    """Alone again."""
    global _world
    import torch.distributed as dist

    _world = _World()
    with suppress(Exception):  # the others may have gone already
        dist.destroy_process_group()


@contextmanager
def alone() -> Iterator[None]:
    """For work that one process does while the others wait: within it, there are no others."""
    global _world
    before, _world = _world, _World(started=_world.started)
    try:
        yield
    finally:
        _world = before


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
    texts = [bytes(own.numpy())[:length] for own, length in zip(_all(padded), lengths, strict=True)]
    return [json.loads(own) for own in texts]


def gather_numbers(numbers: Sequence[int]) -> list[list[int]]:
    """The same of a few whole numbers, as many from everyone: the quickest word to all."""
    if size() == 1:
        return [list(numbers)]
    import torch

    return [own.tolist() for own in _all(torch.tensor(numbers, dtype=torch.int64))]


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
    whole = torch.cat([one[: shape[0]] for one, shape in zip(_all(padded), shapes, strict=True)])
    return whole.to(dtype)


def add_up(tensors: Sequence[Tensor]) -> None:
    """Each becomes the sum of what all processes have of it."""
    if size() == 1:
        return
    import torch
    import torch.distributed as dist

    for alike in _by_format(tensors):
        flat = torch.cat([t.flatten() for t in alike])
        with _sending(_world):
            dist.all_reduce(flat)
        _fill(alike, flat)


def take_over(tensors: Sequence[Tensor]) -> None:
    """Each becomes what the first process has of it."""
    if size() == 1:
        return
    import torch
    import torch.distributed as dist

    for alike in _by_format(tensors):
        flat = torch.cat([t.flatten() for t in alike])
        with _sending(_world):
            dist.broadcast(flat, src=0)
        _fill(alike, flat)


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
    said = gather({"failure": _described(failure), "told": [str(one.message) for one in told]})
    for sentence in (sentence for own in said for sentence in own["told"]) if is_first() else ():
        warnings.warn(sentence, stacklevel=3)
    failed = [n for n, own in enumerate(said) if own["failure"] is not None]
    failed.sort(key=lambda n: said[n]["failure"]["kind"] == AbandonedError.__name__)  # the cause first
    if failed:
        if failed[0] == rank() and failure is not None:
            raise failure
        raise _error(said[failed[0]]["failure"], failed[0])


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
    if _store is None:
        return True
    with suppress(Exception):
        return _store.add(f"told/{hashlib.sha256(sentence.encode()).hexdigest()}", 1) == 1
    return if_in_doubt


def take_seconds_waited() -> float:
    """Time spent on waiting for the others, and on sending, since this was asked last."""
    waited, _world.waited = _world.waited, 0.0
    return waited


# ------------------------------------------------------------------------------------------------------ the wire


@contextmanager
def _sending(world: _World) -> Iterator[None]:
    started = time.perf_counter()
    try:
        yield
    except RuntimeError as error:  # gloo and nccl have no other
        raise LostProcessError(
            f"another process of this run has ended, or has not answered for {world.patience:g} minutes"
        ) from error
    finally:
        world.waited += time.perf_counter() - started


def _all(own: Tensor) -> list[Tensor]:
    import torch
    import torch.distributed as dist

    everyone = [torch.empty_like(own) for _ in range(size())]
    with _sending(_world):
        dist.all_gather(everyone, own)
    return everyone


def _by_format(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Those that can be sent as one."""
    alike: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        alike.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return list(alike.values())


def _fill(tensors: Sequence[Tensor], flat: Tensor) -> None:
    import torch

    with torch.no_grad():
        for tensor, values in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(values.view_as(tensor))


def _described(error: Exception | None) -> dict[str, Any] | None:
    if error is None:
        return None
    kind, told = type(error).__name__, str(error)
    more = {name: getattr(error, name, None) for name in ("exit_code", "step", "errno", "strerror")}
    more["filename"] = str(error.filename) if isinstance(error, OSError) and error.filename is not None else None
    about = {"is_ours": isinstance(error, BurnishError), "is_memory": errors.is_out_of_memory(error)}
    return {"kind": kind, "kinds": [own.__name__ for own in type(error).__mro__], "told": told} | about | more


def _error(described: dict[str, Any], where: int) -> Exception:
    """The error of another process, as one's own."""
    if not described["is_ours"] and described["errno"] is not None:
        return OSError(described["errno"], described["strerror"], described["filename"])
    if not described["is_ours"] and described["is_memory"]:
        return MemoryError(described["told"])
    if not described["is_ours"]:
        return BurnishError(f"process {where} failed with {described['kind']}: {described['told']}")
    kind = next(getattr(errors, name) for name in described["kinds"] if hasattr(errors, name))
    if issubclass(kind, StoppedError):
        return kind(described["told"], described["exit_code"])
    error = kind.__new__(kind)
    Exception.__init__(error, described["told"])
    error.__dict__ |= {"exit_code": described["exit_code"], "step": described["step"], "sa_pairs": None}
    return error
