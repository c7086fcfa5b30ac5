"""Several learned judges that have to agree as a reward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from burnish.rewards.model import JudgedPart
from burnish.rewards.part import TokenJudge, Workshop

if TYPE_CHECKING:
    from torch import Tensor


class EnsemblePart(JudgedPart):
    """Several reward models, trained with different seeds or on different judgements. What only one of them likes is
    more likely to be its mistake than a better answer.
    """

    path_keys = model_keys = ("paths",)
    kind: Literal["ensemble"] = "ensemble"
    paths: list[str] = Field(min_length=2)
    """Folders of the reward runs, or of their adapters."""
    combine: Literal["mean", "worst", "cautious"] = "cautious"
    """`mean`; `worst`: the lowest score counts; `cautious`: the mean, less `caution` times the variance among them."""
    caution: float = Field(0.5, ge=0)

    @property
    def judges(self) -> list[str]:
        return self.paths

    def make(self, workshop: Workshop) -> RewardEnsemble:
        assert workshop.reward_model is not None
        return RewardEnsemble([workshop.reward_model(path) for path in self.paths], self.combine, self.caution)


class RewardEnsemble:
    """Several reward models on the one base, whose scores are combined: `mean`, `worst` or `cautious`."""

    def __init__(self, members: Sequence[TokenJudge], combine: str = "cautious", caution: float = 0.5) -> None:
        self.members = list(members)
        self.combine = combine
        self.caution = caution
        self.remarks = {"disagreement": 0.0}
        """Mean standard deviation among the members, over the responses scored last."""

    @property
    def models(self) -> list[Any]:
        return [model for member in self.members for model in member.models]

    def judge(self, sa_pairs: Any) -> Tensor:
        """One score per response, without gradient.  -> [B]"""
        import torch  # as a config is read without it

        return self._combined(torch.stack([member.judge(sa_pairs) for member in self.members]))

    def compute_rewards(self, prompts: Sequence[str], responses: Sequence[str]) -> list[float]:
        """Scores of texts, as each member would read them."""
        import torch

        by_member = [member.compute_rewards(prompts, responses) for member in self.members]
        return self._combined(torch.tensor(by_member)).tolist()

    def _combined(self, scores: Tensor) -> Tensor:
        from burnish.maths import combined_scores

        self.remarks["disagreement"] = float(scores.std(0, correction=0).mean())
        return combined_scores(scores, self.combine, self.caution)
