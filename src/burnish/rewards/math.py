"""The reference's value, however it is written, as a reward: symbolic equality by the library `math-verify`."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Literal

from burnish.data.records import reference_of
from burnish.errors import InputError
from burnish.rewards.part import RewardFunction, RewardPart, Workshop
from burnish.rewards.python import isolated
from burnish.rewards.rules import check_references
from burnish.system.time_limit import time_limit

SECONDS = 3.0  # for reading an answer and comparing it: towers of powers have no end


class MathPart(RewardPart):
    r"""1 where the response's answer equals the prompt's reference, else 0: 1/2 is 0.5 is \frac{2}{4}. Of a response
    the last expression counts, or what stands in \boxed{}. Numbers may be anywhere; formulas belong between dollar
    signs. It runs in a process of its own; what takes too long to compare is not equal.
    """

    kind: Literal["math"] = "math"

    def make(self, workshop: Workshop) -> RewardFunction:
        if find_spec("math_verify") is None:
            raise InputError("kind: math needs math-verify; get it with: pip install 'burnish[math]'")
        return isolated("burnish.rewards.math:equal", workshop.seconds).start()

    def check_prompts(self, prompts: Sequence[str]) -> None:
        check_references("math", prompts)

    def deeds(self) -> Iterator[str]:
        return iter(())  # it compares expressions


def equal(prompts: Sequence[str], responses: Sequence[str]) -> list[float]:
    """1 for each response whose value is the reference's. Runs in a process of its own, for it sets a timer."""
    import math_verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # that its own time limits are off is meant
    scores = []
    for prompt, response in zip(prompts, responses, strict=True):
        wanted = math_verify.parse(_marked(str(reference_of(prompt))), parsing_timeout=None)
        if not wanted:
            raise InputError(f"the reference {reference_of(prompt)!r:.80} holds no mathematical expression")
        try:
            with time_limit(SECONDS, _TooLongError):
                said = math_verify.parse(response, parsing_timeout=None)
                scores.append(float(math_verify.verify(wanted, said, timeout_seconds=None)))
        except _TooLongError:
            scores.append(0.0)
    return scores


class _TooLongError(BaseException):
    """No Exception: libraries catch those."""


def _marked(reference: str) -> str:
    """A reference is an expression as a whole, unless it marks one."""
    return reference if re.search(r"\$|\\boxed|\\\(|\\\[|####", reference) else f"${reference}$"
