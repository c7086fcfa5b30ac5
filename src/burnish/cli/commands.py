"""All commands, and how each of them ends. errors.py has the exit codes."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
import traceback
import warnings

from rich.console import Console

from burnish.cli.app import Ended, app, is_verbose, safe

# Each adds its commands; `burnish --help` shows them in this order.
# isort: off
from burnish.cli import starting  # noqa: F401
from burnish.cli import training  # noqa: F401
from burnish.cli import judging  # noqa: F401
from burnish.cli import looking  # noqa: F401
from burnish.cli import shipping  # noqa: F401
from burnish.cli import talking  # noqa: F401
from burnish.cli import knowing  # noqa: F401
# isort: on

UNUSABLE_PATH = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EACCES, errno.EPERM, errno.EROFS)


def main() -> None:
    """Runs a command; a user's mistake ends in one sentence and an exit code, never in a traceback."""
    from burnish.errors import (
        BurnishError,
        InputError,
        LostProcessError,
        ResourceError,
        StoppedError,
        is_disk_full,
        is_out_of_memory,
    )

    _print_whatever_comes()
    _quiet_libraries()
    warnings.showwarning = _show_warning
    warnings.filterwarnings("always", category=UserWarning, module=r"burnish\b")  # each response that is left out
    try:
        app()
    except BurnishError as error:
        if is_verbose():
            traceback.print_exception(error)
        mark = "" if isinstance(error, StoppedError) else "error:"
        _tell(str(error), mark, if_in_doubt=isinstance(error, LostProcessError))
        sys.exit(error.exit_code)
    except OSError as error:
        if is_disk_full(error):
            _tell("the disk is full; make room and try again")
            sys.exit(ResourceError.exit_code)
        if error.errno not in UNUSABLE_PATH or not isinstance(error.filename, str | bytes):
            raise
        _tell(f"{os.fsdecode(error.filename)} cannot be used: {error.strerror}")
        sys.exit(InputError.exit_code)
    except UnicodeEncodeError as error:  # a file's name: what is printed is printed whatever comes
        _tell(f"{error.object!r} has letters that are not {error.encoding}; set PYTHONUTF8=1, or choose another name")
        sys.exit(InputError.exit_code)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        _tell("memory ran out; end other programs, or choose a smaller model")
        sys.exit(ResourceError.exit_code)
    except SystemExit as end:
        if end.code == 130 and not isinstance(end, Ended):
            _tell("interrupted", "")
        raise


def _tell(message: str, mark: str = "error:", if_in_doubt: bool = True) -> None:
    """How it ended: what several processes have to say alike, one of them says."""
    from burnish.processes import world

    if world.is_told_here(message, if_in_doubt):
        _say(message, mark, "red")


def _say(message: str, mark: str, colour: str) -> None:
    mark = f"[{colour}]{mark}[/{colour}] " if mark else ""
    Console(stderr=True, emoji=False).print(f"{mark}{safe(message)}", highlight=False, soft_wrap=True)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    from burnish.processes import world

    if world.is_first():  # what all processes warn of, the first says
        _say(str(message), "warning:", "yellow")


def _print_whatever_comes() -> None:
    """A terminal that lacks a letter shows its number instead; no run ends for want of a letter."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _quiet_libraries() -> None:
    """Our progress line is the only one."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of a process that is gone, burnish itself tells
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
