"""What scores count from in training (`reward_against`)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import torch
from torch import Tensor

from burnish.data.records import prompt_key, reference_of, require_references
from burnish.errors import RewardFailedError
from burnish.ppo.reward_computer import RewardComputer
from burnish.ppo.scores import Scores


class ScoreCentre:
    """Zero, the start model's mean score, or the score of each prompt's reference answer."""

    def __init__(self, against: str, device: torch.device) -> None:
        self.against = against
        self.device = device
        self.start_score: float | None = None
        """Mean score of the start model, once the first step has shown it."""

    def of(self, prompts: Sequence[str], rewards: Scores, reward_computer: RewardComputer) -> Tensor | float:
        """One number for all responses, or one for each.  [B]"""
        if self.against == "reference":
            require_references(prompts, "reward_against: reference")
            return torch.tensor(_scores_of_references(prompts, reward_computer), device=self.device)
        if self.against == "start" and self.start_score is None:
            self.start_score = fmean(rewards.totals)
        return self.start_score or 0.0


def _scores_of_references(prompts: Sequence[str], reward_computer: RewardComputer) -> list[float]:
    """For each prompt; equal ones are asked about once."""
    answers = {(prompt_key(p), reference_of(p)): (p, str(reference_of(p))) for p in prompts}
    asked, references = zip(*answers.values(), strict=True)
    scores = reward_computer.compute_rewards(asked, references).totals
    for prompt, score in zip(asked, scores, strict=True):
        if score is None:
            raise RewardFailedError(
                f"the reference answer of {prompt[:60]!r} could not be scored, which reward_against: reference needs"
            )
    by_prompt = dict(zip(answers, scores, strict=True))
    return [by_prompt[prompt_key(p), reference_of(p)] for p in prompts]
