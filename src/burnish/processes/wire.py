"""The connection between the processes of a run: how they find each other, how they send, and how they keep in step.

What only all of them together can do (send something to everyone, put a piece of a shared model together) must be done
by all of them in the same order. Sending is: every process runs the same code. Computing is not: one has more passes
to make than another, or none. So each asks for a piece when it needs it, and everybody helps: whoever has arrived at
the next thing to be sent waits there for the others, and meanwhile takes part in what they ask for.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from burnish.errors import InputError, LostProcessError, is_out_of_memory

if TYPE_CHECKING:
    from torch import Tensor

PATIENCE_MINUTES = 30.0  # how long a process waits for the others, unless BURNISH_PATIENCE says otherwise
WAITING = -1  # instead of the number of a piece: this process needs none


@dataclass
class World:
    """Which of how many this process is."""

    rank: int = 0
    size: int = 1
    patience: float = PATIENCE_MINUTES
    started: str | None = None
    waited: float = 0.0


class Piece(Protocol):
    """Something that is spread over the processes, and that all of them put together at once."""

    def bring(self) -> None:
        """Puts it together, here and everywhere."""

    def drop(self) -> None:
        """Keeps this process's part alone; does nothing if that is so already."""


here = World()
store: Any = None  # what all processes can write to, even if some are gone
_joined = World()  # the same as `here`, but while one process works alone
_pieces: list[weakref.ref[Piece]] = []
_held: list[Piece] = []  # at most one


def are_to_come() -> bool:
    """Whether a launcher (torchrun) has started this process as one of several."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys() and int(os.environ["WORLD_SIZE"]) > 1


def begin() -> None:
    """Finds the others: gloo between CPUs, nccl between GPUs."""
    global here, store, _joined
    import torch
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    patience = _patience()
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        _take_gpu(torch.cuda.device_count())
    _joined = World(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), patience)
    timeout = timedelta(minutes=patience)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # what an earlier one has left is not for this one
    with sending():
        found = dist.PrefixStore(f"burnish/{attempt}", next(rendezvous("env://", timeout=timeout))[0])
        backend = "cpu:gloo,cuda:nccl" if has_gpu else "gloo"
        dist.init_process_group(backend, store=found, rank=_joined.rank, world_size=_joined.size, timeout=timeout)
    here, store = _joined, found


def end() -> None:
    """Alone again."""
    global here, _joined
    import torch.distributed as dist

    here = _joined = World()
    _pieces.clear()
    _held.clear()
    with suppress(Exception):  # the others may have gone already
        dist.destroy_process_group()


@contextmanager
def alone() -> Iterator[None]:
    """For work that one process does while the others wait: within it, there are no others."""
    global here
    before, here = here, World(started=here.started)
    try:
        yield
    finally:
        here = before


@contextmanager
def all_again() -> Iterator[None]:
    """For what all processes do together after all, in the midst of work that each does by itself."""
    global here
    before, here = here, _joined
    try:
        yield
    finally:
        here = before


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

    local, at_all = (int(os.environ.get(name, n)) for name, n in (("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")))
    if at_all > count:
        raise InputError(
            f"{at_all} processes on this machine have {count} {'GPU' if count == 1 else 'GPUs'} between them; start as "
            "many processes as there are GPUs, or hide these with CUDA_VISIBLE_DEVICES="
        )
    torch.cuda.set_device(local)


# ------------------------------------------------------------------------------------------------------- sending


@contextmanager
def sending() -> Iterator[None]:
    """Around whatever waits for others."""
    started = time.perf_counter()
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # gloo and nccl have no other
        if is_out_of_memory(error):  # the others are in the midst of it: this process cannot just go on
            raise LostProcessError("memory ran out while processes sent each other something") from error
        raise LostProcessError(
            f"another process of this run has ended, or has not answered for {_joined.patience:g} minutes"
        ) from error
    finally:
        _joined.waited += time.perf_counter() - started


def take_seconds_waited() -> float:
    """Time spent on waiting for the others, and on sending, since this was asked last."""
    waited, _joined.waited = _joined.waited, 0.0
    return waited


def from_all(own: Tensor) -> list[Tensor]:
    """What each process gives, in their order: tensors of one shape and format."""
    meet()
    return _from_all(own)


def _from_all(own: Tensor) -> list[Tensor]:
    import torch
    import torch.distributed as dist

    everyone = [torch.empty_like(own) for _ in range(_joined.size)]
    with sending():
        dist.all_gather(everyone, own)
    return everyone


def add_up(tensors: Sequence[Tensor]) -> None:
    """Each becomes the sum of what all processes have of it."""
    import torch
    import torch.distributed as dist

    meet()
    for alike in _by_format(tensors):
        flat = torch.cat([t.flatten() for t in alike])
        with sending():
            dist.all_reduce(flat)
        _fill(alike, flat)


def take_over(tensors: Sequence[Tensor]) -> None:
    """Each becomes what the first process has of it."""
    import torch
    import torch.distributed as dist

    meet()
    for alike in _by_format(tensors):
        flat = torch.cat([t.flatten() for t in alike])
        with sending():
            dist.broadcast(flat, src=0)
        _fill(alike, flat)


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


# ------------------------------------------------------------------------------------------------ keeping in step


def spread(piece: Piece) -> int:
    """From now on all processes have this piece together. Gives the number by which it is asked for, the same
    everywhere if all spread theirs in the same order.
    """
    _pieces.append(weakref.ref(piece))
    return len(_pieces) - 1


def fetch(number: int, again: bool = True) -> None:
    """Puts a piece together for this process, until it asks for another or has something to send; not `again` if it
    was the last that it asked for.
    """
    if not again and _held and _held[0] is _pieces[number]():
        return
    _drop_held()
    _round(number)


def meet() -> None:
    """Waits until no process needs a piece before all of them send something, and helps those that do."""
    if not _pieces:
        return
    _drop_held()
    while _round(WAITING):
        pass


def _round(own: int) -> bool:
    """Everyone says which piece it needs, if any; all of these are put together. Gives whether there were some."""
    import torch

    said = [int(number) for number in _from_all(torch.tensor([own]))]
    for number in sorted({*said} - {WAITING}):
        piece = _pieces[number]()
        assert piece is not None, "a piece that a process asks for is there in all of them"
        with sending():
            piece.bring()
        if number == own:
            _held.append(piece)
        else:
            piece.drop()
    return any(number != WAITING for number in said)


def _drop_held() -> None:
    while _held:
        _held.pop().drop()
