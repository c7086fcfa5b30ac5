"""Code that a model writes, judged by tests: 1 where they pass. It runs confined (confined.py), or not at all."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import IO, Any, Literal

from pydantic import Field

from burnish.data.records import reference_of
from burnish.errors import InputError, RewardFailedError
from burnish.rewards.part import RewardPart, Workshop
from burnish.rewards.rules import check_references

CONFINED = Path(__file__).with_name("confined.py")  # Linux's own: elsewhere it cannot even be imported
LAUNCH_SECONDS = 30.0  # beyond the program's own: two processes start
LONGEST_COMPLAINT = 2000
# Reads the program, then the tests. A program that ends early, or fails, never comes to say the word.
DRIVER = """
import ctypes, json, os, sys
ctypes.CDLL(None).prctl(1, 9)  # ends with the process that started it
given = json.load(sys.stdin)
said = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
space = {"__name__": "solution"}
exec(compile(given.pop("program"), "solution.py", "exec"), space)
exec(compile(given.pop("tests"), "tests.py", "exec"), space)
os.write(said, given["word"].encode())
os._exit(0)
"""


class CodePart(RewardPart):
    """Runs the Python code in a response, then the tests that came with the prompt (its reference), and gives 1 if they
    all pass and 0 otherwise. Confined by the kernel: no network or services, no files but Python's own, an empty
    folder to write in. Where the kernel cannot do that, it is refused.
    """

    kind: Literal["code"] = "code"
    seconds: float = Field(10.0, gt=0, le=3600)
    """Time for one response and its tests."""
    memory_mb: int = Field(1024, ge=64, le=1_000_000)
    """Memory of each of its processes."""
    processes: int = Field(16, ge=1, le=10_000)
    """Processes and threads that it may have at a time."""
    at_once: int = Field(2, ge=1, le=256)
    """Responses whose tests run at the same time."""

    def check(self, workshop: Workshop) -> None:
        self.make(workshop)

    def make(self, workshop: Workshop) -> CodeReward:
        _try_confinement()
        return CodeReward(self)

    def check_prompts(self, prompts: Sequence[str]) -> None:
        check_references("code", prompts)

    def deeds(self) -> Iterator[str]:
        yield "run the code that the model writes, and the tests in the prompts' rows, confined by the kernel"


class CodeReward:
    """Tries out each response."""

    __name__ = "code"

    def __init__(self, part: CodePart) -> None:
        self.part = part

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> list[float]:
        check_references("code", prompts)
        with ThreadPoolExecutor(self.part.at_once) as pool:
            return list(pool.map(self._passes, responses, map(reference_of, prompts)))

    def _passes(self, response: str, tests: str | None) -> float:
        limits = {"seconds": self.part.seconds, "memory_mb": self.part.memory_mb, "processes": self.part.processes}
        code, _ = run_confined(code_in(response), tests or "", limits)
        return float(code == "passed")


def code_in(response: str) -> str:
    """The last block between fences, or all of it if there is none."""
    blocks = re.findall(r"```[^\n]*\n(.*?)(?:```|\Z)", response, re.DOTALL)
    return blocks[-1] if blocks else response


def run_confined(program: str, tests: str, limits: dict[str, Any]) -> tuple[Literal["passed", "failed"], str]:
    """Whether tests passed, and what it complained of. Raises if it could not be tried at all."""
    word = secrets.token_hex(16)
    given = json.dumps({"program": program, "tests": tests, "word": word})
    # What it says goes to files, whose size is limited too.
    with (
        tempfile.TemporaryDirectory(prefix="burnish-code-") as folder,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as errors,
        tempfile.TemporaryFile() as refusal,
    ):
        own = {"folder": folder, "driver": DRIVER, "refusal": refusal.fileno()}
        command = [sys.executable, "-I", str(CONFINED), json.dumps(limits | own)]
        streams: dict[str, Any] = {"stdout": out, "stderr": errors, "pass_fds": [refusal.fileno()]}
        time = limits["seconds"] + LAUNCH_SECONDS
        try:
            subprocess.run(command, input=given.encode(), timeout=time, env={}, **streams)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RewardFailedError(f"code could not be tried: {type(error).__name__}") from None
        said, complaint = _beginning(out, len(word) + 1), _beginning(errors, LONGEST_COMPLAINT)
        if refused := _beginning(refusal, LONGEST_COMPLAINT):
            raise RewardFailedError(f"code could not be tried: {refused}")
    return ("passed" if said == word else "failed"), complaint


def _beginning(file: IO[bytes], length: int) -> str:
    file.seek(0)
    return file.read(length).decode(errors="replace").strip()


@cache
def _try_confinement() -> None:
    """Refuses where nothing can be confined: what a model writes may delete a home as well as sort a list."""
    if sys.platform != "linux":
        raise InputError("kind: code confines what it runs with Linux's means, and runs nothing without them")
    try:
        outcome, said = run_confined("x = 1", "assert x == 1", {"seconds": 30, "memory_mb": 1024, "processes": 16})
    except RewardFailedError as error:
        raise InputError(f"kind: code cannot confine what it would run here, so it is refused: {error}") from None
    if outcome == "failed":
        raise InputError(f"kind: code cannot run Python confined here: {said or 'it ended'}")
