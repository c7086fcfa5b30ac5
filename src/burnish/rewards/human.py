"""People as a reward: the scores they gave, and a question in the terminal for every answer without one."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import Field
from rich.console import Console
from rich.progress import Progress

from burnish.data.records import load_scores
from burnish.errors import InputError
from burnish.rewards.part import RewardPart, Workshop
from burnish.text import plain

Ask = Callable[[str, str], str]


class HumanPart(RewardPart):
    """Scores that people gave, by prompt and response; in a terminal, new responses are asked for and kept."""

    path_keys = ("path",)
    kind: Literal["human"] = "human"
    path: str = Field(pattern=r"\.jsonl$")
    """A .jsonl file of {"prompt": ..., "response": ..., "score": ...}; new scores are added to it."""

    def make(self, workshop: Workshop) -> HumanReward:
        return HumanReward(self.path)

    def check(self, workshop: Workshop) -> None:
        self.make(workshop)  # nobody is asked about made-up answers

    def deeds(self) -> Iterator[str]:
        yield f"read scores from {Path(self.path).resolve()}, and write new ones to it"


class HumanReward:
    """Scores that people gave. A response nobody has scored yet is asked for in the terminal, and the answer kept."""

    __name__ = "human"
    asked_by_one = True

    def __init__(self, path: str | Path, ask: Ask | None = None) -> None:
        self.path = Path(path)
        self.ask = ask or (_ask_in_terminal if sys.stdin.isatty() else None)
        known = load_scores(self.path).records if self.path.is_file() and self.path.stat().st_size else []
        self.scores = {(str(k.prompt), k.response): k.score for k in known}

    def __call__(self, prompts: list[str], responses: list[str]) -> list[float]:
        keys = list(zip(map(str, prompts), responses, strict=True))
        missing = [key for key in dict.fromkeys(keys) if key not in self.scores]
        if missing and self.ask is None:
            raise InputError(
                f"{len(missing)} responses have no score in {self.path}, the first begins {missing[0][1][:60]!r}; "
                "run in a terminal to be asked for them, or add them to the file"
            )
        for prompt, response in missing:
            self._keep(prompt, response)
        return [self.scores[key] for key in keys]

    def _keep(self, prompt: str, response: str) -> None:
        assert self.ask is not None
        score = math.nan
        while not math.isfinite(score):
            try:
                score = float(self.ask(prompt, response))
            except ValueError:
                continue  # not a number: ask again
        self.scores[prompt, response] = score
        with self.path.open("a+b") as out:
            out.seek(0, os.SEEK_END)
            if out.tell():  # a file that a person wrote may end without a line's end
                out.seek(-1, os.SEEK_END)
                out.write(b"" if out.read(1) == b"\n" else b"\n")
            out.write(json.dumps({"prompt": prompt, "response": response, "score": score}).encode() + b"\n")


moving: list[Progress] = []
"""What redraws itself on the screen right now."""


@contextmanager
def paused() -> Iterator[None]:
    """Nothing moves while a person is asked something."""
    stopped = [progress for progress in moving if progress.live.is_started]
    for progress in stopped:
        progress.stop()
    try:
        yield
    finally:
        for progress in stopped:
            progress.start()


def _ask_in_terminal(prompt: str, response: str) -> str:
    console = Console(stderr=True, emoji=False)
    with paused():  # a progress line would wipe the question away
        console.print(f"\n[dim]{plain(prompt)}[/dim]\n{plain(response)}", highlight=False)
        return console.input("score: ")
