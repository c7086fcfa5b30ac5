"""What a system lacks has a stand-in, and nobody else asks for it."""

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import burnish
from burnish.system import files, locks
from burnish.system.pipes import PolledPipes, ThreadedPipes
from burnish.system.time_limit import _by_the_clock, time_limit

PACKAGE = Path(burnish.__file__).parent
UNIX_ONLY = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "posix"}
WINDOWS_ONLY = {"msvcrt", "winreg", "_winapi"}
UNIX_NAMES = {"fork", "pread", "pwrite", "getuid", "O_NOFOLLOW", "O_DIRECTORY", "SIGKILL", "setitimer", "killpg"}


def test_only_the_room_for_it_knows_what_not_all_systems_have():
    for file in PACKAGE.rglob("*.py"):
        if file.parent.name == "system" or file.name == "confined.py":  # which runs on Linux alone, as a script
            continue
        nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
        imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
        assert not imported & (UNIX_ONLY | WINDOWS_ONLY | {"burnish.rewards.confined"}), file
        assert not {node.attr for node in nodes if isinstance(node, ast.Attribute)} & UNIX_NAMES, file


def test_a_lock_of_bytes_keeps_others_out_and_lets_them_read(tmp_path):
    """Windows' way: a run folder in use is refused, and who uses it is told."""
    command = [sys.executable, "-c", HOLDS, str(Path(__file__).parent), str(tmp_path)]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline().strip() == "held"
    try:
        said = subprocess.run(command, capture_output=True, text=True)
        assert f"is in use by process {holder.pid}" in said.stderr
    finally:
        holder.kill()
        holder.communicate()


HOLDS = """
import sys, time
sys.path.insert(0, sys.argv[1])
from as_windows import become_windows
become_windows()
from pathlib import Path
from burnish.runs.run import Run
with Run(Path(sys.argv[2])).lock():
    print("held", flush=True)
    time.sleep(60)
"""


def test_one_writer_at_a_time_where_folders_cannot_be_locked(tmp_path, monkeypatch):
    plainly = locks.if_there
    monkeypatch.setattr(locks, "if_there", lambda name: None if name == "fcntl" else plainly(name))
    held = []
    monkeypatch.setattr(locks, "take", lambda handle: held.append(os.readlink(f"/proc/self/fd/{handle}")))
    with locks.alone_in(tmp_path):
        assert held == [str(tmp_path / locks.LOCK_FILE)]


def test_a_file_that_somebody_reads_is_replaced_when_he_is_done(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "IS_WINDOWS", True)
    (tmp_path / "new").write_text("new")
    (tmp_path / "old").write_text("old")
    replace, refused = os.replace, []

    def busy(source, target):
        if len(refused) < 2:
            refused.append(target)
            raise PermissionError
        replace(source, target)

    monkeypatch.setattr(os, "replace", busy)
    files.replace(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old").read_text() == "new"
    monkeypatch.setattr(files, "REPLACE_SECONDS", 0.0)
    refused.clear()
    (tmp_path / "new").write_text("newer")
    with pytest.raises(PermissionError):
        files.replace(tmp_path / "new", tmp_path / "old")


def test_a_link_is_refused_where_the_kernel_cannot(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "NO_FOLLOW", None)
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(OSError, match="symbolic links"):
        files.open_no_link(str(tmp_path / "link"), os.O_RDONLY)


def test_who_may_make_no_links_gets_a_copy(tmp_path, monkeypatch):
    def refused(*_):
        raise OSError

    for name in ("symlink", "link"):
        monkeypatch.setattr(os, name, refused)
    (tmp_path / "model").write_text("weights")
    files.stand_in_for(tmp_path / "model", tmp_path / "same")
    assert (tmp_path / "same").read_text() == "weights"


@pytest.fixture(params=[PolledPipes, ThreadedPipes])
def started(request):
    """A process, and pipes to it."""
    running = []

    def start(script):
        process = subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        running.append((process, request.param(process)))
        return running[-1][1]

    yield start
    for process, pipes in running:
        process.kill()
        process.wait()
        pipes.close()


def test_pipes_carry_more_than_they_hold(started):
    pipes = started("import sys; sys.stdout.write(str(len(sys.stdin.readline())))")
    end = time.monotonic() + 20
    pipes.write(b"x" * 300_000 + b"\n", end)
    assert pipes.read(end) == b"300001"
    assert pipes.read(end) == b""
    assert pipes.read(end) == b""


def test_pipes_wait_no_longer_than_they_may(started):
    pipes = started("import time; time.sleep(60)")
    with pytest.raises(TimeoutError):
        pipes.read(time.monotonic() + 0.1)
    with pytest.raises(TimeoutError):
        pipes.write(b"x" * 300_000, time.monotonic() + 0.1)


class _OverError(BaseException):
    pass


@pytest.mark.parametrize("limit", [time_limit, _by_the_clock])
def test_endless_work_ends(limit):
    def work():
        try:
            with limit(0.1, _OverError):
                while True:
                    sum(range(1000))
        except _OverError:
            return True

    assert work()


@pytest.mark.parametrize("limit", [time_limit, _by_the_clock])
def test_work_that_was_done_in_time_is_followed_by_any_other(limit):
    with limit(0.1, _OverError):
        pass
    end = time.process_time() + 0.4  # the processor's time, of which no more passes than by the clock
    while time.process_time() < end:
        sum(range(1000))
