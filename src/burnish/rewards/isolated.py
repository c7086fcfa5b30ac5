"""A user's reward function in a process of its own: it can fail, hang or be killed, and training continues."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from burnish.data.records import reference_of
from burnish.errors import InputError, RewardFailedError
from burnish.system.modules import OWN_PYTHON
from burnish.system.pipes import Pipes, pipes_of
from burnish.text import without_secrets

START_SECONDS = 120.0  # a reward file may import large libraries


class IsolatedFunction:
    """Calls `file.py:name` in a worker process (worker.py), which is started when it is first needed."""

    def __init__(self, address: str, seconds: float = 60.0) -> None:
        self.address = address
        self.seconds = seconds
        self.__name__ = address.rpartition(":")[2]
        self._worker: subprocess.Popen[bytes] | None = None
        self._pipes: Pipes | None = None
        self._takes_tokens = False
        self._unread = b""

    def start(self) -> IsolatedFunction:
        """The worker, up and running; a file or function that cannot be used is refused."""
        if self._worker is None or self._worker.poll() is not None:
            command = [*OWN_PYTHON, "-m", "burnish.rewards.worker", self.address, str(os.getpid())]
            self._unread = b""
            self._worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
            self._pipes = pipes_of(self._worker)
            limit = _Limit(START_SECONDS, "to start")
            try:
                ready = self._read(limit)
            except TimeoutError:
                raise self._too_slow(limit) from None
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
            assert self._pipes is not None
            self._pipes.write(json.dumps(question).encode() + b"\n", limit.end)
            answer = self._read(limit)
        except TimeoutError:
            raise self._too_slow(limit) from None
        except OSError:
            self.stop()
            raise RewardFailedError(f"reward {self.__name__}: its process ended") from None
        except BaseException:  # an answer that comes later must not be taken for that to the next question
            self.stop()
            raise
        if "failed" in answer:
            raise RewardFailedError(f"reward {self.__name__} failed with {without_secrets(answer['failed'])}")
        return answer["rewards"]

    def _read(self, limit: _Limit) -> dict[str, Any]:
        """The worker's next line, or an error once the time is over."""
        assert self._worker is not None
        assert self._pipes is not None
        while b"\n" not in self._unread:
            part = self._pipes.read(limit.end)
            if not part:  # the pipe is closed: its process has ended, or it closed what it does not own
                try:
                    code = self._worker.wait(limit.left)
                except subprocess.TimeoutExpired:
                    raise TimeoutError from None
                self.stop()
                raise RewardFailedError(f"reward {self.__name__}: its process ended with code {code}")
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

    def _too_slow(self, limit: _Limit) -> RewardFailedError:
        self.stop()
        return RewardFailedError(f"reward {self.__name__} took more than {limit.seconds:g} s {limit.what}")

    def stop(self) -> None:
        """Ends the worker; the next call starts another."""
        if self._worker is not None:
            self._worker.kill()
            self._worker.wait()
            if self._pipes is not None:
                self._pipes.close()
            self._worker = self._pipes = None

    def __del__(self) -> None:
        self.stop()


class _Limit:
    """A time limit that has begun."""

    def __init__(self, seconds: float, what: str) -> None:
        self.seconds = seconds
        self.what = what
        self.end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return max(self.end - time.monotonic(), 0.0)
