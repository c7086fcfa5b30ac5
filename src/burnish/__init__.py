"""burnish: PPO fine-tuning for language models on the machine you have.

Names are imported when they are first used, so that `burnish --help` does not wait for torch.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from burnish.advantage import GAEAdvantage, ReturnCalculator, TDError
    from burnish.base_setup import EMBEDDED_NAME, BaseSetup
    from burnish.config import PPOConfig, RewardModelConfig, SFTConfig, TrainConfig, load_train_config
    from burnish.errors import BurnishError, DivergedError, InputError
    from burnish.experience_buffer import ExperienceBuffer
    from burnish.models import PolicyModel, RewardModel, Sampler, SFTModel, SharedBase, ValueModel
    from burnish.ppo_trainer import ModelTrainer, PPOTrainer, RewardComputer, SequenceGenerator, ValueAdder
    from burnish.reward_kl import KLController, KLDivergence, RewardAdjuster
    from burnish.reward_trainer import RewardTrainer
    from burnish.sa_pairs import SAPairs
    from burnish.sft_trainer import SFTTrainer
    from burnish.token_attribution import SAPairBuilder, TokenAttributionExtractor
    from burnish.training import PolicyLoss, ValueLoss

__version__ = "0.1.0"

# Torch's threads wait for each other by spinning, about a millisecond with OpenMP's default. Beside another busy
# program the one waited for is often not running at all, and a step takes many times as long; a short spin costs an
# undisturbed step next to nothing (docs/performance.md). OpenMP reads this when torch is imported, so it is set before
# that. What the user has set stays.
if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
    os.environ["GOMP_SPINCOUNT"] = "1000"

_NAMES_IN = {
    "advantage": ["GAEAdvantage", "ReturnCalculator", "TDError"],
    "base_setup": ["EMBEDDED_NAME", "BaseSetup"],
    "config": ["PPOConfig", "RewardModelConfig", "SFTConfig", "TrainConfig", "load_train_config"],
    "errors": ["BurnishError", "DivergedError", "InputError"],
    "experience_buffer": ["ExperienceBuffer"],
    "models": ["PolicyModel", "RewardModel", "SFTModel", "Sampler", "SharedBase", "ValueModel"],
    "ppo_trainer": ["ModelTrainer", "PPOTrainer", "RewardComputer", "SequenceGenerator", "ValueAdder"],
    "reward_kl": ["KLController", "KLDivergence", "RewardAdjuster"],
    "reward_trainer": ["RewardTrainer"],
    "sa_pairs": ["SAPairs"],
    "sft_trainer": ["SFTTrainer"],
    "token_attribution": ["SAPairBuilder", "TokenAttributionExtractor"],
    "training": ["PolicyLoss", "ValueLoss"],
}
_ROOM_OF = {name: room for room, names in _NAMES_IN.items() for name in names}

__all__ = sorted(_ROOM_OF)


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'burnish' has no attribute {name!r}")
    return getattr(importlib.import_module(f"burnish.{_ROOM_OF[name]}"), name)
