"""The process that a user's reward function runs in: `python -m burnish.rewards.worker file.py:name`.

A line of JSON in (prompts, responses, and their tokens if the function takes them), a line of JSON out. Whatever the
function prints goes to stderr, so that it cannot be taken for an answer.
"""

from __future__ import annotations

import inspect
import json
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any

from burnish.data.records import Prompt
from burnish.errors import BurnishError
from burnish.rewards.sources import python_function


def main(address: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the trainer's, which finishes its step
    threading.Thread(target=_leave_with, args=(os.getppid(),), daemon=True).start()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # from now on stdout is stderr

    def answer(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    try:
        function = python_function(address)
        takes_tokens = "tokens" in inspect.signature(function).parameters
    except BurnishError as error:
        answer({"error": str(error)})
        return
    answer({"takes_tokens": takes_tokens})
    for line in sys.stdin:
        question = json.loads(line)
        prompts = [Prompt(text, reference=reference) for text, reference in question["prompts"]]
        extra = (question["tokens"],) if takes_tokens else ()
        try:
            answer({"rewards": _plain(function(prompts, question["responses"], *extra))})
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            answer({"failed": f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"})


def _leave_with(parent: int) -> None:
    """A function that never returns must not outlive a trainer that was killed."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _plain(rewards: Any) -> Any:
    """Tensors and arrays as lists; what JSON cannot hold as the text of it, which is then refused as a reward."""
    rewards = rewards.tolist() if hasattr(rewards, "tolist") else rewards
    if isinstance(rewards, list | tuple):
        return [_plain(r) for r in rewards]
    return rewards if isinstance(rewards, int | float | str | None) else repr(rewards)[:60]


if __name__ == "__main__":
    main(sys.argv[1])
