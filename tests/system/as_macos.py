"""`python as_macos.py ARGUMENTS --then ARGUMENTS ...`: burnish commands on this machine, under macOS' name and without
what Linux alone has: /proc, its C library's names, some of its calls. An emulation, as as_windows.py is one.
"""

import ctypes
import os
import pathlib
import resource
import select
import signal
import sys
import types

from as_windows import import_others, run

LACKING = {
    os: """sched_getaffinity sched_setaffinity O_PATH O_TMPFILE O_DIRECT posix_fadvise posix_fallocate eventfd
    memfd_create pidfd_open copy_file_range splice getrandom pipe2 setresuid""",
    select: "epoll",
    signal: "SIGSTKFLT SIGPWR SIGPOLL SIGRTMIN SIGRTMAX sigtimedwait",
}
NOT_IN_LIBC = ("prctl", "mallopt", "malloc_trim")


def become_macos() -> None:
    import_others(light=False)
    sys.platform = "darwin"
    for place, names in LACKING.items():
        for name in names.split():
            if hasattr(place, name):
                delattr(place, name)
    plainly, library = pathlib.Path.open, ctypes.CDLL

    def open_path(self, *arguments, **options):
        if self.is_relative_to("/proc"):
            raise FileNotFoundError(2, "No such file or directory", str(self))
        return plainly(self, *arguments, **options)

    class Library(library):
        def __init__(self, name, *arguments, **options):
            if name == "libc.so.6":
                raise OSError(f"{name}: no such file")
            super().__init__(name, *arguments, **options)

        def __getattr__(self, name):
            if name in NOT_IN_LIBC:
                raise AttributeError(f"{name}: symbol not found")
            return super().__getattr__(name)

    usage = resource.getrusage

    def in_bytes(who):
        return types.SimpleNamespace(ru_maxrss=usage(who).ru_maxrss * 1024)

    pathlib.Path.open, ctypes.CDLL, resource.getrusage = open_path, Library, in_bytes


if __name__ == "__main__":
    become_macos()
    run(sys.argv[1:])
