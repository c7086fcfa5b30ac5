"""`python as_windows.py ARGUMENTS --then ARGUMENTS ...`: burnish commands on this machine, without what Windows lacks.
An emulation: it shows that burnish asks for none of it, not that Windows does the rest.

Other libraries know where they run and are imported before; of burnish nothing is. With --light as the first argument
torch is not among them: for commands that end before they need it.
"""

import asyncio
import importlib.abc
import os
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import types

MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "posix_ipc")
LACKING = {
    os: """fork forkpty getuid geteuid getgid getegid setsid killpg pread pwrite sched_getaffinity O_NOFOLLOW
    O_DIRECTORY O_CLOEXEC O_NONBLOCK O_PATH uname mkfifo getloadavg WNOHANG chown nice""",
    select: "poll epoll",
    signal: "SIGKILL SIGHUP SIGQUIT SIGALRM SIGVTALRM SIGUSR1 SIGUSR2 SIGPIPE setitimer alarm ITIMER_VIRTUAL",
}


class Refuses(importlib.abc.MetaPathFinder):
    """There is no module of that name."""

    def find_spec(self, name, path=None, target=None):
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def msvcrt() -> types.ModuleType:
    """Windows' own locks, as far as burnish asks for them: a byte is held by one open file."""
    import fcntl

    module = types.ModuleType("msvcrt")
    module.LK_NBLCK = 2

    def locking(handle, mode, nbytes):
        assert (mode, nbytes) == (2, 1)
        assert os.lseek(handle, 0, os.SEEK_CUR) > 1 << 20, "a byte that others want to read"
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PermissionError(13, "Permission denied") from None

    module.locking = locking
    return module


def import_others(light: bool) -> None:
    import jinja2  # noqa: F401
    import psutil  # noqa: F401
    import pydantic  # noqa: F401
    import rich.progress  # noqa: F401
    import typer.rich_utils  # noqa: F401
    import uvicorn.loops.asyncio
    import uvicorn.protocols.http.auto  # noqa: F401
    import yaml  # noqa: F401

    if not light:
        import peft  # noqa: F401
        import torch  # noqa: F401
        import transformers.models.auto.modeling_auto
        import transformers.models.llama.modeling_llama  # noqa: F401


def become_windows(light: bool = True) -> None:
    import_others(light)
    sysconfig.get_config_vars()
    sys.modules["msvcrt"] = msvcrt()
    sys.platform = "win32"
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Refuses())
    for place, names in LACKING.items():
        for name in names.split():
            if hasattr(place, name):
                delattr(place, name)
    plainly = os.open

    def open_file(path, flags, *more, **options):
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", str(path))
        return plainly(path, flags, *more, **options)

    fsync = os.fsync

    def sync(handle):
        os.write(handle, b"")  # EBADF if it may not be written, as on Windows
        fsync(handle)

    asyncio.ProactorEventLoop = asyncio.SelectorEventLoop  # Windows' own loop is played by the one that is here
    os.open, os.fsync, os.symlink = open_file, sync, no_symlinks
    shutil._use_fd_functions = False
    subprocess._USE_POSIX_SPAWN = False
    from burnish.system import files

    files.IS_WINDOWS = True


def no_symlinks(*_, **__):
    raise OSError("a required privilege is not held by the client")


def run(arguments: list[str]) -> None:
    """Commands, one after the other, with `--then` between them."""
    from burnish.cli import main

    commands = [[]]
    for argument in arguments:
        if argument == "--then":
            commands.append([])
        else:
            commands[-1].append(argument)
    for command in commands:
        sys.argv[1:] = command
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise


if __name__ == "__main__":
    light = sys.argv[1] == "--light"
    become_windows(light)
    run(sys.argv[1 + light :])
