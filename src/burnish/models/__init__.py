"""Four roles on one frozen base: policy, reference, value, reward."""

from burnish.models.policy_model import PolicyModel, Rollout
from burnish.models.reward_model import RewardModel
from burnish.models.sampling import Sampler
from burnish.models.sft_model import SFTModel
from burnish.models.shared_base import SharedBase
from burnish.models.value_model import ValueModel

__all__ = ["PolicyModel", "RewardModel", "Rollout", "SFTModel", "Sampler", "SharedBase", "ValueModel"]
