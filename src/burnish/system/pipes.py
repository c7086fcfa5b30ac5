"""Lines to and from another process, with a limit for whatever it does: a moment of time.monotonic()."""

from __future__ import annotations

import os
import queue
import select
import subprocess
import threading
import time
from typing import Protocol

CHUNK = 1 << 16


class Pipes(Protocol):
    """Both ends; TimeoutError when the moment has come."""

    def write(self, content: bytes, until: float) -> None: ...

    def read(self, until: float) -> bytes:
        """Some bytes; none when the other end is closed."""
        ...

    def close(self) -> None:
        """Of a process that has ended."""
        ...


def pipes_of(process: subprocess.Popen[bytes]) -> Pipes:
    return (PolledPipes if hasattr(select, "poll") else ThreadedPipes)(process)


class PolledPipes:
    """The kernel says when a pipe is ready: Linux and macOS."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._pipes = (process.stdin, process.stdout)
        self._into, self._out = process.stdin.fileno(), process.stdout.fileno()
        for handle in (self._into, self._out):
            os.set_blocking(handle, False)  # whatever the process does, this end waits no longer than it may

    def write(self, content: bytes, until: float) -> None:
        """What is larger than the pipe waits for the process to read, as long as it may."""
        left = memoryview(content)
        while left:
            self._wait(self._into, select.POLLOUT, until)
            left = left[os.write(self._into, left) :]

    def read(self, until: float) -> bytes:
        self._wait(self._out, select.POLLIN, until)
        return os.read(self._out, CHUNK)

    def _wait(self, handle: int, event: int, until: float) -> None:
        poll = select.poll()  # select.select knows only the first 1024 handles
        poll.register(handle, event)
        if not poll.poll(1000 * max(until - time.monotonic(), 0.0)):
            raise TimeoutError

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()


class ThreadedPipes:
    """Threads wait instead: Windows asks the kernel about sockets only."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._pipes = (process.stdin, process.stdout)
        self._into, self._out = process.stdin.fileno(), process.stdout.fileno()
        self._heard: queue.Queue[bytes] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._writer: threading.Thread | None = None

    def _listen(self) -> None:
        part = b"?"
        while part:
            try:
                part = os.read(self._out, CHUNK)
            except OSError:
                part = b""
            self._heard.put(part)

    def write(self, content: bytes, until: float) -> None:
        failed: list[OSError] = []

        def write_all() -> None:
            left = memoryview(content)
            try:
                while left:
                    left = left[os.write(self._into, left) :]
            except OSError as error:
                failed.append(error)

        self._writer = threading.Thread(target=write_all, daemon=True)
        self._writer.start()
        self._writer.join(max(until - time.monotonic(), 0.0))
        if self._writer.is_alive():
            raise TimeoutError
        if failed:
            raise failed[0]

    def read(self, until: float) -> bytes:
        try:
            part = self._heard.get(timeout=max(until - time.monotonic(), 0.0))
        except queue.Empty:
            raise TimeoutError from None
        if not part:
            self._heard.put(part)  # it stays closed
        return part

    def close(self) -> None:
        for thread in (self._listener, self._writer):
            if thread is not None:
                thread.join(5.0)  # the process has ended, and so do they
        for pipe in self._pipes:
            pipe.close()
