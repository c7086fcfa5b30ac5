"""What a kind of reward says of itself: its keys in a config, and all that the rest of burnish asks of it.

A new kind is a subclass of `RewardPart` and a line in `KINDS` (parts.py). From Python, an instance of any subclass can
be given in a config without that line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict

RewardFunction = Callable[..., Sequence[Any]]
"""f(prompts, responses) -> one number per response. A function with a third parameter `tokens` also gets the tokens of
each response as text (the stop token included), and may return one list of numbers per response, one for each token."""


@runtime_checkable
class TokenJudge(Protocol):
    """What reads a response's tokens where they are at hand, and not its text: a RewardModel, or several as one."""

    @property
    def models(self) -> Sequence[Any]:
        """The reward models on the shared base that it asks."""

    def judge(self, sa_pairs: Any) -> Any:
        """One score per response, without gradient.  -> [B]"""

    def compute_rewards(self, prompts: Sequence[str], responses: Sequence[str]) -> list[float]:
        """Of texts from elsewhere."""


@dataclass(frozen=True)
class Workshop:
    """What a part may need to become something that scores."""

    seconds: float = 60.0
    """Time limit for one batch (`reward_timeout`)."""
    reward_model: Callable[[str], Any] | None = None
    """Loads a reward model from its folder onto the shared base; None while no base is loaded."""
    start_answers: Callable[[Sequence[str]], list[str]] | None = None
    """What the model that training starts from would answer; None while no base is loaded."""


class RewardPart(BaseModel):
    """One part of a reward."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=(), allow_inf_nan=False
    )

    path_keys: ClassVar[tuple[str, ...]] = ()
    """Its keys that name something on disk: a relative path in a config file starts at that file's folder."""
    model_keys: ClassVar[tuple[str, ...]] = ()
    """Those of them that name models: a folder that is gone when a run is resumed has been moved, and is no other."""

    kind: str
    """Which class it is."""
    weight: float = 1.0
    """What this part's score is multiplied with before the parts are added. May be negative."""

    @property
    def title(self) -> str:
        """Its name in metrics and tables."""
        return self.kind

    @property
    def judges(self) -> list[str]:
        """Folders of the reward models that it asks."""
        return []

    @property
    def needs_base(self) -> bool:
        """Whether it scores with the base model at hand only."""
        return bool(self.judges)

    def make(self, workshop: Workshop) -> Any:
        """What scores: a RewardFunction, or a TokenJudge. It may have more to it:

        asked_by_one    True: where several processes make a run, one asks about all responses
        remarks         numbers by name about the responses scored last, logged beside its mean score
        take_costs()    numbers by name: what it has cost since it was asked last
        keep_answers()  takes the file of a run in which it keeps what it need not ask again
        """
        raise NotImplementedError

    def check(self, workshop: Workshop) -> RewardFunction | None:
        """Refuses what cannot work, before any model is loaded. Gives the function, if it may be tried out on made-up
        answers."""
        return self.make(workshop)

    def check_prompts(self, prompts: Sequence[str]) -> None:
        """Refuses prompts whose answers it cannot score."""

    def files(self) -> list[Path]:
        """The files that its scores depend on. A change between two halves of a run is reported."""
        return []

    def deeds(self) -> Iterator[str]:
        """What it does that the config of a stranger must not do unasked."""
        yield f"use a reward of kind {self.kind}"
