"""Asks the process that computes (worker.py). It is started when it is needed and ended when nobody has asked it for a
while. There is one at a time, for the run that was asked about last: models are large.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from burnish.system.modules import OWN_PYTHON

IDLE = 300.0  # seconds after which it is ended
SILENT = 900.0  # seconds without a word after which it hangs: loading a large model takes minutes
LOOK_EVERY = 2.0
TOLD = 300  # characters of what a process said before it died
Message = dict[str, Any]


class Computing:
    def __init__(self, command: tuple[str, ...] = (*OWN_PYTHON, "-m", "burnish.page.worker")) -> None:
        self._command = command
        self._busy = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._folder: Path | None = None
        self._errors: Any = None
        self._sign_of_life = 0.0
        self._gone: threading.Event | None = None  # of whoever asks now

    def ask(
        self, folder: Path, question: Message, gone: threading.Event | None = None
    ) -> Generator[Message, None, None]:
        """What it says, up to the end; every trouble is an `error` among it. Whoever stops listening ends it; `stop`
        does so while it says nothing.
        """
        if not self._busy.acquire(blocking=False):
            yield {"error": "it is still answering somebody else; wait for that, or stop it there"}
            return
        is_heard, self._gone = False, gone
        try:
            process = self._started(folder)
            if process is None:
                yield {"doing": "loading the models"}
                process = self._start(folder)
            if gone is not None and gone.is_set():
                return
            yield from self._answers(process, question)
            is_heard = process.poll() is None
        finally:
            if not is_heard:
                self.end()
            self._sign_of_life, self._gone = time.monotonic(), None
            self._busy.release()

    def stop(self, gone: threading.Event) -> None:
        """Whoever asked with `gone` does not listen any more. From any thread; others' questions go on."""
        gone.set()
        process = self._process
        if self._gone is gone and process is not None:
            process.kill()  # who waits for its words hears its end, and clears up

    def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for file in filter(None, (process.stdin, process.stdout, self._errors)):
                with suppress(OSError):  # what was not read any more
                    file.close()

    def _started(self, folder: Path) -> subprocess.Popen[str] | None:
        if self._process is not None and self._folder == folder and self._process.poll() is None:
            return self._process
        self.end()
        return None

    def _start(self, folder: Path) -> subprocess.Popen[str]:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the process
        process = subprocess.Popen(
            [*self._command, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            encoding="utf-8",
        )
        self._process, self._folder, self._sign_of_life = process, folder, time.monotonic()
        threading.Thread(target=self._watch, args=(process,), daemon=True).start()
        return process

    def _answers(self, process: subprocess.Popen[str], question: Message) -> Iterator[Message]:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                self._sign_of_life = time.monotonic()
                message = json.loads(line)
                if "end" in message:
                    return
                yield message
        except (OSError, ValueError):
            pass  # it died, or was ended
        yield {"error": self._last_words(process)}

    def _last_words(self, process: subprocess.Popen[str]) -> str:
        if self._process is not process:
            return "the process that computes was ended"
        try:
            code = process.wait(5)
        except subprocess.TimeoutExpired:
            return "the process that computes does not answer; ask again to start it anew"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        said = f": {lines[-1][:TOLD]}" if lines else ""
        why = "it was killed, or there was not enough memory" if code < 0 else f"with code {code}{said}"
        return f"the process that computes has ended ({why}); ask again to start it anew"

    def _watch(self, process: subprocess.Popen[str]) -> None:
        """Ends it when it is not needed, or says nothing for too long."""
        while process.poll() is None:
            time.sleep(LOOK_EVERY)
            quiet = time.monotonic() - self._sign_of_life
            if quiet > SILENT:
                process.kill()
            elif quiet > IDLE and self._busy.acquire(blocking=False):
                try:
                    if self._process is process:
                        self.end()
                finally:
                    self._busy.release()
