"""Starts several processes of a command on this machine, with torch's own launcher."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from burnish.errors import InputError, LostProcessError
from burnish.processes import world
from burnish.system.modules import OWN_PYTHON

STOP_SECONDS = 600  # for the step that is under way when the launcher is asked to stop


def refuse_twice() -> None:
    """Processes that a launcher has started do not start others."""
    if world.are_to_come():
        raise InputError("torchrun has started several processes already; leave --processes out")


def launch(count: int, arguments: Sequence[str], max_restarts: int = 0) -> int:
    """`burnish ARGUMENTS` in `count` processes; gives the exit code. As torchrun would do it, but for three things: the
    cores are shared out, the exit code is that of the command, and the step under way may end when it is stopped.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // count)))
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the command says itself what is wrong
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id="burnish",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=max_restarts,
        shutdown_timeout=STOP_SECONDS,
    )
    try:
        python, *options = OWN_PYTHON
        elastic_launch(config, python)(*options, "-m", "burnish", *arguments)
    except ChildFailedError as error:
        return exit_code([failure.exitcode for failure in error.failures.values()])
    except SignalException as signalled:
        return 128 + int(signalled.sigval)
    return 0


def without_option(arguments: Sequence[str]) -> list[str]:
    """A command line without `--processes N`: for each of them."""
    kept = list(arguments)
    for number, argument in enumerate(arguments):
        if argument == "--processes":
            del kept[number : number + 2]
        elif argument.startswith("--processes="):
            del kept[number]
    return kept


def exit_code(codes: Sequence[int]) -> int:
    """What a command ends with whose processes ended like this: the first reason that one of them gave."""
    return next((code for code in codes if code > 0 and code != LostProcessError.exit_code), LostProcessError.exit_code)
