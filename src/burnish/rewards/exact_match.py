"""The reference answer, said in the same words, as a reward."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic import Field, field_validator

from burnish.data.records import place_of, reference_of
from burnish.errors import InputError
from burnish.rewards.part import RewardFunction, RewardPart, Workshop
from burnish.rewards.rules import check_references


class ExactMatchPart(RewardPart):
    """1 where the answer is the prompt's reference answer, else 0. How many spaces there are never matters."""

    kind: Literal["exact_match"] = "exact_match"
    extract: str | None = Field(None, max_length=1000)
    """A regular expression that finds the answer in the response: what its first group finds, where it is found last.
    A response in which it finds nothing scores 0. Unset: the whole response."""
    extract_reference: str | None = Field(None, max_length=1000)
    """Likewise for the reference, where that is more than the bare answer."""
    ignore_case: bool = False
    ignore_punctuation: bool = False
    """Leave out punctuation marks on both sides before they are compared."""

    @field_validator("extract", "extract_reference")
    @classmethod
    def _has_a_group(cls, pattern: str | None) -> str | None:
        if pattern is None:
            return None
        try:
            groups = re.compile(pattern).groups
        except re.error as error:
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
        if groups == 0:
            raise ValueError(f"{pattern!r} has no group; put what is the answer in round brackets, as in '####(.*)'")
        return pattern

    def make(self, workshop: Workshop) -> RewardFunction:
        return self.matches

    def matches(self, prompts: Sequence[str], responses: Sequence[str]) -> list[float]:
        self.check_prompts(prompts)
        wanted = [self._answer(str(reference_of(prompt)), self.extract_reference) for prompt in prompts]
        said = [self._answer(response, self.extract) for response in responses]
        return [float(a == b) for a, b in zip(said, wanted, strict=True)]

    def check_prompts(self, prompts: Sequence[str]) -> None:
        check_references("exact_match", prompts)
        for prompt in prompts:
            if not self._answer(str(reference_of(prompt)), self.extract_reference):
                raise InputError(
                    f"exact_match finds no answer in the reference of {place_of(prompt) or repr(prompt[:40])}: "
                    f"{reference_of(prompt)!r:.80}"
                )

    def deeds(self) -> Iterator[str]:
        return iter(())  # it compares texts

    def _answer(self, text: str, pattern: str | None) -> str | None:
        if pattern is not None:
            found = [match[1] for match in re.finditer(pattern, text) if match[1] is not None]
            if not found:
                return None
            text = found[-1]
        text = text.casefold() if self.ignore_case else text
        text = text.translate(_NO_PUNCTUATION) if self.ignore_punctuation else text
        return " ".join(text.split())


_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
