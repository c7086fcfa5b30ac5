"""A user's reward function in a process of its own: it can fail, hang or be killed, and training goes on."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from burnish.errors import InputError, RewardFailedError

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
            command = [sys.executable, "-P", "-m", "burnish.rewards.worker", self.address]
            self._unread = b""
            self._worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            ready = self._read(START_SECONDS, "to start")
            if "error" in ready:
                raise InputError(ready["error"])
            self._takes_tokens = ready["takes_tokens"]
        return self

    @property
    def takes_tokens(self) -> bool:
        return self.start()._takes_tokens

    def __call__(self, prompts: Sequence[str], responses: Sequence[str], tokens: Any = None) -> Any:
        worker = self.start()._worker
        assert worker is not None
        assert worker.stdin is not None
        question = {
            "prompts": [(str(p), getattr(p, "reference", None)) for p in prompts],
            "responses": list(responses),
            "tokens": tokens,
        }
        try:
            worker.stdin.write(json.dumps(question).encode() + b"\n")
            worker.stdin.flush()
            answer = self._read(self.seconds, "(reward_timeout)")
        except OSError:
            self.stop()
            raise RewardFailedError(f"reward {self.__name__}: its process ended") from None
        except BaseException:  # an answer that comes later must not be taken for that to the next question
            self.stop()
            raise
        if "failed" in answer:
            raise RewardFailedError(f"reward {self.__name__} failed with {answer['failed']}")
        return answer["rewards"]

    def _read(self, seconds: float, what: str) -> dict[str, Any]:
        """The worker's next line, or an error once the time is over."""
        assert self._worker is not None
        assert self._worker.stdout is not None
        handle = self._worker.stdout.fileno()
        deadline = time.monotonic() + seconds
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([handle], [], [], left)[0]:
                self.stop()
                raise RewardFailedError(f"reward {self.__name__} took more than {seconds:g} s {what}")
            part = os.read(handle, 1 << 16)
            if not part:
                code = self._worker.wait()
                self.stop()
                raise RewardFailedError(f"reward {self.__name__}: its process ended with code {code}")
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

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
