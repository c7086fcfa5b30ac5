"""Of samples.jsonl, what a page shows. A long run has far more of them than are shown, so only these are parsed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, BinaryIO

from burnish.errors import InputError
from burnish.runs.disk import is_whole_line

STEP = re.compile(rb'\{"step": (\d+), ')  # as a run writes it
NO_TOKENS = b'"tokens": []'  # inside a text its quotes would be escaped


def spread_samples(file: Path, how_many: int) -> list[dict[str, Any]]:
    """The first response of each of some steps, evenly spread, the first and the last step among them."""
    if not file.is_file():
        return []
    try:
        with file.open("rb") as stream:
            places = _first_of_each_step(stream)
            steps = sorted(places)
            count = min(how_many, len(steps))
            chosen = [steps[round(k * (len(steps) - 1) / max(count - 1, 1))] for k in range(count)]
            return [_at(stream, places[step]) for step in chosen]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} is damaged: {error}") from None


def _first_of_each_step(stream: BinaryIO) -> dict[int, int]:
    """By step, where the line of its first response begins. A last line cut by a kill is left out."""
    found: dict[int, int] = {}
    place = 0
    for line in stream:
        if not line.endswith(b"\n") and not is_whole_line(line):
            break
        head = STEP.match(line)
        step = int(head[1]) if head else json.loads(line)["step"]
        if NO_TOKENS not in line:
            found.setdefault(step, place)
        place += len(line)
    return found


def _at(stream: BinaryIO, place: int) -> dict[str, Any]:
    stream.seek(place)
    return json.loads(stream.readline())
