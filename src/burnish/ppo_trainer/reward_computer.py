"""Scores: asks the reward, and lets nothing into training that is not a finite number per response or token."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from burnish.clock import Clock, timed
from burnish.errors import BurnishError, InputError
from burnish.models import RewardModel
from burnish.reward_kl import finite_number
from burnish.sa_pairs import SAPairs

RewardFunction = Callable[..., Sequence[Any]]
"""f(prompts, responses) -> one number per response. A function with a third parameter `tokens` also gets the tokens of
each response as text (the stop token included), and may return one list of numbers per response, one for each token."""


class RewardComputer:
    """Scores responses with a Python function or a RewardModel."""

    def __init__(self, reward: RewardFunction | RewardModel, tokenizer: Any = None, clock: Clock | None = None) -> None:
        self.reward = reward
        self.tokenizer = tokenizer
        self.clock = clock or Clock()

    @property
    def name(self) -> str:
        return getattr(self.reward, "__name__", type(self.reward).__name__)

    @timed
    def compute_rewards(
        self, prompts: Sequence[str], generated_texts: Sequence[str], sa_pairs: SAPairs | None = None
    ) -> list[Any]:
        """One reward per response. `sa_pairs` are the responses' own, for rewards that look at tokens."""
        if len(prompts) != len(generated_texts):
            raise InputError(f"{len(prompts)} prompts but {len(generated_texts)} responses; rewards need one for each")
        rewards = self._ask(list(prompts), list(generated_texts), sa_pairs)
        rewards = rewards.tolist() if hasattr(rewards, "tolist") else rewards  # a tensor or an array
        if isinstance(rewards, str) or not isinstance(rewards, Sequence):
            raise InputError(f"reward {self.name} returned {rewards!r:.60}; it must return a list, one per response")
        if len(rewards) != len(prompts):
            raise InputError(
                f"reward {self.name} returned {len(rewards)} values for {len(prompts)} responses; it needs one each"
            )
        return [self._checked(reward, number) for number, reward in enumerate(rewards)]

    def _ask(self, prompts: list[str], texts: list[str], sa_pairs: SAPairs | None) -> Any:
        if isinstance(self.reward, RewardModel):
            if sa_pairs is not None:
                return self.reward.score_pairs(sa_pairs)
            return self.reward.compute_rewards(prompts, texts)
        try:
            if "tokens" in inspect.signature(self.reward).parameters:
                return self.reward(prompts, texts, self._tokens(texts, sa_pairs))
            return self.reward(prompts, texts)
        except BurnishError:
            raise
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{frame.filename}:{frame.lineno}"
            raise InputError(f"reward {self.name} failed with {type(error).__name__}: {error} ({where})") from error

    def _tokens(self, texts: list[str], sa_pairs: SAPairs | None) -> list[list[str]]:
        """The tokens of each response as text: those generated, or, for text from elsewhere, the tokenizer's."""
        if sa_pairs is not None:
            ids = [action[mask].tolist() for action, mask in zip(sa_pairs["action"], sa_pairs.mask, strict=True)]
        elif self.tokenizer is not None:
            ids = [self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        else:
            return [text.split() for text in texts]
        return [[self.tokenizer.decode([i]) for i in response] for response in ids]

    def _checked(self, reward: Any, number: int) -> Any:
        what = f"reward {self.name}, response {number}"
        reward = reward.tolist() if hasattr(reward, "tolist") else reward
        if isinstance(reward, Sequence) and not isinstance(reward, str):
            return [finite_number(value, f"{what}, token {t}") for t, value in enumerate(reward)]
        return finite_number(reward, what)
