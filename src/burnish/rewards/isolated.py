"""A user's reward function in a process of its own: it can fail, hang or be killed, and training continues."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from burnish.data.records import reference_of
from burnish.errors import InputError, RewardFailedError
from burnish.text import without_secrets

START_SECONDS = 120.0  # a reward file may import large libraries


class IsolatedFunction:
    """Calls `file.py:name` in a worker process (worker.py), which is started when it is first needed."""

    def __init__(self, address: str, seconds: float = 60.0) -> None:
        self.address = address
        self.seconds = seconds
        self.__name__ = address.rpartition(":")[2]
        self._worker: subprocess.Popen[bytes] | None = None
        self._takes_tokens = False
        self._unread = b""

    def start(self) -> IsolatedFunction:
        """The worker, up and running; a file or function that cannot be used is refused."""
        if self._worker is None or self._worker.poll() is not None:
            # -P: modules come from where Python is installed, not from the folder that burnish happens to be called in
            command = [sys.executable, "-P", "-m", "burnish.rewards.worker", self.address, str(os.getpid())]
            self._unread = b""
            self._worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
            for pipe in (self._worker.stdin, self._worker.stdout):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)  # whatever the worker does, this end waits no longer than it may
            ready = self._read(_Limit(START_SECONDS, "to start"))
            if "error" in ready:
                raise InputError(without_secrets(ready["error"]))
            self._takes_tokens = ready["takes_tokens"]
        return self

    @property
    def takes_tokens(self) -> bool:
        return self.start()._takes_tokens

    def __call__(self, prompts: Sequence[str], responses: Sequence[str], tokens: Any = None) -> Any:
        self.start()
        question = {
            "prompts": [(str(p), reference_of(p)) for p in prompts],
            "responses": list(responses),
            "tokens": tokens,
        }
        limit = _Limit(self.seconds, "(reward_timeout)")
        try:
            self._write(json.dumps(question).encode() + b"\n", limit)
            answer = self._read(limit)
        except OSError:
            self.stop()
            raise RewardFailedError(f"reward {self.__name__}: its process ended") from None
        except BaseException:  # an answer that comes later must not be taken for that to the next question
            self.stop()
            raise
        if "failed" in answer:
            raise RewardFailedError(f"reward {self.__name__} failed with {without_secrets(answer['failed'])}")
        return answer["rewards"]

    def _write(self, content: bytes, limit: _Limit) -> None:
        """A question larger than the pipe waits for the worker to read, as long as it may."""
        assert self._worker is not None
        assert self._worker.stdin is not None
        handle, left = self._worker.stdin.fileno(), memoryview(content)
        while left:
            self._wait(handle, select.POLLOUT, limit)
            left = left[os.write(handle, left) :]

    def _read(self, limit: _Limit) -> dict[str, Any]:
        """The worker's next line, or an error once the time is over."""
        assert self._worker is not None
        assert self._worker.stdout is not None
        handle = self._worker.stdout.fileno()
        while b"\n" not in self._unread:
            self._wait(handle, select.POLLIN, limit)
            part = os.read(handle, 1 << 16)
            if not part:  # the pipe is closed: its process has ended, or it closed what it does not own
                try:
                    code = self._worker.wait(limit.left)
                except subprocess.TimeoutExpired:
                    raise self._too_slow(limit) from None
                self.stop()
                raise RewardFailedError(f"reward {self.__name__}: its process ended with code {code}")
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

    def _wait(self, handle: int, event: int, limit: _Limit) -> None:
        poll = select.poll()  # select.select knows only the first 1024 handles
        poll.register(handle, event)
        if not poll.poll(1000 * limit.left):
            raise self._too_slow(limit)

    def _too_slow(self, limit: _Limit) -> RewardFailedError:
        self.stop()
        return RewardFailedError(f"reward {self.__name__} took more than {limit.seconds:g} s {limit.what}")

    def stop(self) -> None:
        """Ends the worker; the next call starts another."""
        if self._worker is not None:
            self._worker.kill()
            self._worker.wait()
            for pipe in (self._worker.stdin, self._worker.stdout):
                if pipe is not None:
                    pipe.close()
            self._worker = None

    def __del__(self) -> None:
        self.stop()


class _Limit:
    """A time limit that has begun."""

    def __init__(self, seconds: float, what: str) -> None:
        self.seconds = seconds
        self.what = what
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return max(self._end - time.monotonic(), 0.0)
