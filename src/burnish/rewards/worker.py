"""The process that a user's reward function runs in: `python -m burnish.rewards.worker file.py:name TRAINER`.

A line of JSON in (prompts, responses, and their tokens if the function takes them), a line of JSON out. Whatever the
function prints goes to stderr, so that it cannot be taken for an answer, and it has nothing to read. TRAINER is the
process without which this one ends.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from burnish.data.records import Prompt
from burnish.errors import BurnishError, InputError, nearest
from burnish.processes import world
from burnish.system.lives import end_with


def main(address: str, trainer: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the trainer's, which finishes its step
    if world.are_to_come():  # a launcher of several processes sends SIGTERM to their children too
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_with(trainer)
    questions = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # from now on stdout is stderr
    # Line by line: what is still held back when a worker is ended, nobody would see.
    sys.stdout.reconfigure(errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]

    def answer(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    # Whatever the file or the function raises, sys.exit's SystemExit too, is told to the trainer, which takes secrets
    # out; a traceback of this process would reach the terminal as it is.
    try:
        function = python_function(address)
    except BurnishError as error:
        answer({"error": str(error)})
        return
    except BaseException as error:
        answer({"error": f"reward file {address.rpartition(':')[0]} cannot be run: {_said(error)}"})
        return
    takes_tokens = _takes_tokens(function)
    answer({"takes_tokens": takes_tokens})
    for line in questions:
        question = json.loads(line)
        prompts = [Prompt(text, reference=reference) for text, reference in question["prompts"]]
        extra = (question["tokens"],) if takes_tokens else ()
        try:
            answer({"rewards": _plain(function(prompts, question["responses"], *extra))})
        except BaseException as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            answer({"failed": f"{_said(error)} ({frame.filename}:{frame.lineno})"})


def python_function(address: str) -> Callable[..., Any]:
    """`file.py:name`: runs the file as a module of its own, which may import its neighbours, and takes the function.
    burnish's own that run here are given by their module.
    """
    file_name, _, name = address.rpartition(":")
    if file_name.startswith("burnish.") and not file_name.endswith(".py"):
        return getattr(importlib.import_module(file_name), name)
    file = Path(file_name)
    if not file.is_file():
        raise InputError(f"reward file {file} does not exist")
    module_name = f"burnish_reward_{file.stem}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    sys.path.insert(0, str(file.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a script may end itself when it is run
        raise InputError(f"reward file {file} cannot be run: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    functions = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
    if name not in functions:
        raise InputError(f"{file} has no function {name!r}{nearest(name, functions)}")
    return getattr(module, name)


def _takes_tokens(function: Any) -> bool:
    try:
        return "tokens" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # of some built-in functions nothing is known
        return False


def _said(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:
        return type(error).__name__


def _plain(rewards: Any) -> Any:
    """Tensors and arrays as lists; what JSON cannot hold as the text of it, which is then refused as a reward."""
    rewards = rewards.tolist() if hasattr(rewards, "tolist") else rewards
    if isinstance(rewards, list | tuple):
        return [_plain(r) for r in rewards]
    return rewards if isinstance(rewards, int | float | str | None) else repr(rewards)[:60]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
