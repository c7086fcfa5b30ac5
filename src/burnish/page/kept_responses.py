"""samples.jsonl as an index: where each response stands, its step, score and prompt. Texts and tokens are read from the
file when they are shown.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterable, Iterator
from typing import Any

from burnish.errors import InputError
from burnish.page.growing import GrowingFile
from burnish.runs.disk import without_links
from burnish.runs.run import Run

TOKENS = b', "tokens": ['  # what comes before it is the heading; inside a text its quotes would be escaped


class KeptResponses(GrowingFile):
    """Numbered from 0, in the order in which they were written."""

    def __init__(self, run: Run) -> None:
        super().__init__(run, "samples.jsonl")
        self.restart()

    def restart(self) -> None:
        self._places, self._headings, self._lengths = array("Q"), array("I"), array("I")
        self.steps, self.scores, self.prompt_of = array("I"), array("d"), array("I")
        self.prompts: list[str] = []
        """All that were answered, in the order of their first answer."""
        self._numbers: dict[str, int] = {}

    def line(self, place: int, text: bytes) -> None:
        head = text.partition(TOKENS)[0]
        row = json.loads(head + b"}" if len(head) < len(text) else head)
        score = row["score"]
        if not (isinstance(row["prompt"], str) and isinstance(row["response"], str)):
            raise TypeError("a prompt or a response is not a text")
        number = self._numbers.setdefault(row["prompt"], len(self.prompts))
        if number == len(self.prompts):
            self.prompts.append(row["prompt"])
        self._places.append(place)
        self._headings.append(len(head))
        self._lengths.append(len(text))
        self.steps.append(int(row["step"]))
        self.scores.append(float(sum(score) if isinstance(score, list) else score))
        self.prompt_of.append(number)

    def __len__(self) -> int:
        return len(self.prompt_of)

    def headings(self, numbers: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Step, prompt, response, score and its parts, without the tokens."""
        for number, text in self._texts(numbers, self._headings):
            row = json.loads(text if text.endswith(b"}") and self._is_whole(number) else text + b"}")
            yield {
                "number": number,
                "step": self.steps[number],
                "prompt_number": self.prompt_of[number],
                "prompt": row["prompt"],
                "response": row["response"],
                "score": self.scores[number] if math.isfinite(self.scores[number]) else None,
                "reward_parts": row.get("reward_parts") or {},
            }

    def whole(self, number: int) -> dict[str, Any]:
        """With all that is known of its tokens."""
        if not 0 <= number < len(self):
            raise InputError(f"there is no response {number}; {len(self)} are kept")
        return json.loads(next(self._texts([number], self._lengths))[1])

    def _is_whole(self, number: int) -> bool:
        return self._headings[number] == self._lengths[number]

    def _texts(self, numbers: Iterable[int], sizes: array[int]) -> Iterator[tuple[int, bytes]]:
        with open(self._run.path(self._name), "rb", opener=without_links) as file:
            for number in numbers:
                file.seek(self._places[number])
                yield number, file.read(sizes[number])
