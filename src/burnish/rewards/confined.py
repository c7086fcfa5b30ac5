"""Runs a program that nobody has read, where it can do no harm: `python -I confined.py LIMITS`, the program on stdin.

Run as a script, by code.py; it imports nothing but the standard library. In this order:

user        of root's processes the kernel counts none, so they are made to count as those of `nobody`
namespaces  a user of its own without rights, no network, no other processes to see or to signal
files       Landlock: it reads what Python needs, and writes in its own empty folder alone; all else is mounted
            read-only, so that modes, owners, times and attributes stay as they are too
sockets     none that leads to a service of this machine by its path (seccomp: no AF_UNIX but connected pairs)
limits      time, memory, processes, size of files

Every step must succeed. Otherwise nothing is run, and the reason is written to the file `refusal`, which is closed when
the program begins: no program can refuse in our name. When the time is over its first process is ended, and with it, by
the kernel, all that it started. What it still can: ask whether a file that it knows by name is there, how large and how
old it is; use up its limits; and find a hole in the kernel.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

NOBODY = 65534
CLONE_NEWUSER, CLONE_NEWNET, CLONE_NEWPID, CLONE_NEWIPC = 0x10000000, 0x40000000, 0x20000000, 0x08000000
CLONE_NEWNS, MS_BIND = 0x20000, 0x1000
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38
SECCOMP_FILTER, IO_URING_SETUP = 2, 425
SOCKET_CALLS = {"x86_64": (0xC000003E, 41, 53), "aarch64": (0xC00000B7, 198, 199)}  # machine, socket, socketpair
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # Landlock's system calls, the same on all machines
NEEDED_LANDLOCK = 3  # the first that can forbid to cut files short (Linux 6.2)
READ, EVERYTHING = 0b1101, 0x7FFF  # run and read files, read folders; all rights that version 3 knows
LARGEST_FILE = 16 * 2**20
libc = ctypes.CDLL(None, use_errno=True)


class CannotError(Exception):
    """Why nothing can be run here."""


class _Ruleset(ctypes.Structure):
    _fields_ = (("handled_access_fs", ctypes.c_uint64),)


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


class _MountChange(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd"))


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("skipped_if_so", ctypes.c_uint8),
        ("skipped_if_not", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    )


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


def main(limits: dict[str, Any]) -> int:
    _end_with_parent()
    os.set_inheritable(limits["refusal"], False)
    is_out, may_go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os._exit(_outside(limits, is_out[1], may_go[0]))
    os.close(is_out[1])
    try:
        if os.read(is_out[0], 1):
            _name_user(child)
            os.write(may_go[1], b"x")
    except OSError as error:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return _refuse(limits, f"user namespace: {error}")
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF


def _refuse(limits: dict[str, Any], why: object) -> int:
    os.write(limits["refusal"], f"{why}\n".encode())
    return 1


def _end_with_parent() -> None:
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _name_user(child: int) -> None:
    """In there it is user 1000: not 0, so what is run has no rights there either."""
    user, group = (NOBODY, NOBODY) if os.getuid() == 0 else (os.getuid(), os.getgid())
    Path(f"/proc/{child}/setgroups").write_text("deny")
    Path(f"/proc/{child}/uid_map").write_text(f"1000 {user} 1")
    Path(f"/proc/{child}/gid_map").write_text(f"1000 {group} 1")


def _outside(limits: dict[str, Any], is_out: int, may_go: int) -> int:
    """Leaves the world that there is, starts the program in its own, and ends it when its time is over."""
    try:
        os.chdir(limits["folder"])
        if os.getuid() == 0:
            _count_as_nobody(limits["folder"])
        new = CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNS
        _call("user, network and mount namespaces", libc.unshare, new)
        _end_with_parent()
        os.write(is_out, b"x")
        os.read(may_go, 1)
        first = os.fork()  # the first process of the new world
    except (CannotError, OSError) as error:
        return _refuse(limits, error)
    if first == 0:
        _run(limits)
    return _wait(first, limits["seconds"])


def _count_as_nobody(folder: str) -> None:
    """Of root's processes the kernel counts none. Files are still read as root reads them: as far as Landlock lets."""
    os.chmod(folder, 0o777)
    os.setgroups([])
    os.setresgid(NOBODY, 0, 0)
    os.setresuid(NOBODY, 0, 0)


def _run(limits: dict[str, Any]) -> None:
    """In the first process of the new world: Python, reading the program from stdin. Does not return."""
    try:
        _mount_read_only(limits["folder"])
        _forbid_files(limits["folder"])
        _forbid_sockets()
        _limit(limits)
        environment = {"PATH": os.defpath, "HOME": limits["folder"], "TMPDIR": limits["folder"], "OMP_NUM_THREADS": "1"}
        environment |= {"OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1"}
        os.execve(sys.executable, [sys.executable, "-I", "-c", limits["driver"]], environment)
    except (CannotError, OSError, ValueError) as error:
        os._exit(_refuse(limits, error))


def _mount_read_only(folder: str) -> None:
    """All but the folder. Landlock alone would let it change a file's mode, owner, times and attributes."""
    own, nothing = folder.encode(), ctypes.c_char_p()
    _call("a mount of the folder", libc.mount, own, own, nothing, ctypes.c_ulong(MS_BIND), nothing)
    for place, flags, change in (
        (b"/", AT_RECURSIVE, _MountChange(attr_set=MOUNT_ATTR_RDONLY)),
        (own, 0, _MountChange(attr_clr=MOUNT_ATTR_RDONLY)),
    ):
        size = ctypes.c_size_t(ctypes.sizeof(change))
        _call("read-only mounts", libc.syscall, MOUNT_SETATTR, AT_FDCWD, place, flags, ctypes.byref(change), size)
    os.chdir(folder)  # as it is mounted now


def _forbid_files(folder: str) -> None:
    version = libc.syscall(CREATE_RULESET, None, 0, 1)
    if version < NEEDED_LANDLOCK:
        raise CannotError("files cannot be protected: this needs Landlock as of Linux 6.2")
    asked = _Ruleset(EVERYTHING)
    rules = _call("Landlock", libc.syscall, CREATE_RULESET, ctypes.byref(asked), ctypes.sizeof(asked), 0)
    python = {sys.prefix, sys.base_prefix, os.path.dirname(os.path.realpath(sys.executable)), *sys.path}
    system = {"/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/dev/urandom"}
    for place in python | system:
        _allow(rules, place, READ)
    _allow(rules, folder, EVERYTHING)
    _allow(rules, "/dev/null", 0b110)
    _call("no new rights", libc.prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _call("Landlock", libc.syscall, RESTRICT_SELF, rules, 0)


def _allow(rules: int, place: str, rights: int) -> None:
    try:
        handle = os.open(place, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there needs no right
    of_files = 0b100000000000111  # folders have more
    own = _PathBeneath(rights if os.path.isdir(place) else rights & of_files, handle)
    _call(f"Landlock for {place}", libc.syscall, ADD_RULE, rules, 1, ctypes.byref(own), 0)
    os.close(handle)


def _forbid_sockets() -> None:
    """Sockets with a path in the file system know neither network namespaces nor Landlock. A pair of them, as asyncio
    needs, must be a stream: an end of a pair of datagrams can still write to others.
    """
    if os.uname().machine not in SOCKET_CALLS or sys.byteorder != "little":
        raise CannotError(f"sockets cannot be forbidden on this machine, {os.uname().machine}")
    machine, socket, socketpair = SOCKET_CALLS[os.uname().machine]
    load, equal, at_least, both, answer = 0x20, 0x15, 0x35, 0x54, 0x06
    steps = (  # the two numbers: how many steps to skip if it is so, and if it is not
        (load, 0, 0, 4),
        (equal, 0, 11, machine),
        (load, 0, 0, 0),  # the call's number
        (at_least, 9, 0, 0x40000000),  # other numbers for the same calls (x32)
        (equal, 8, 0, IO_URING_SETUP),  # opens sockets without a call
        (equal, 0, 2, socket),
        (load, 0, 0, 16),  # its family
        (equal, 5, 4, 1),  # AF_UNIX
        (equal, 0, 3, socketpair),
        (load, 0, 0, 24),  # its type
        (both, 0, 0, 0xF),
        (equal, 0, 1, 1),  # SOCK_STREAM
        (answer, 0, 0, 0x7FFF0000),  # go on
        (answer, 0, 0, 0x00050001),  # EPERM
    )
    instructions = (_Instruction * len(steps))(*(_Instruction(*step) for step in steps))
    rules = _Filter(len(steps), instructions)
    _call("seccomp", libc.prctl, PR_SET_SECCOMP, SECCOMP_FILTER, ctypes.byref(rules), 0, 0)


def _limit(limits: dict[str, Any]) -> None:
    memory, seconds = limits["memory_mb"] * 2**20, int(limits["seconds"]) + 1
    for what, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, LARGEST_FILE),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, limits["processes"]),
    ):
        resource.setrlimit(what, (most, most))


def _wait(process: int, seconds: float) -> int:
    """Its exit code; 124 if it took too long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) & 0xFF
        time.sleep(0.005)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return 124


def _call(what: str, function: Any, *arguments: Any) -> int:
    result = function(*arguments)
    if result < 0:
        raise CannotError(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


if __name__ == "__main__":
    os._exit(main(json.loads(sys.argv[1])))
