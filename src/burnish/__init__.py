"""burnish: PPO fine-tuning for language models on the machine you have.

Names are imported when they are first used, so that `burnish --help` does not wait for torch.
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from burnish.base_setup.base_setup import BaseSetup
    from burnish.base_setup.embedded import EMBEDDED_NAME
    from burnish.config import PPOConfig, RewardModelConfig, SFTConfig, TrainConfig, load_train_config
    from burnish.decoder.shared_base import SharedBase
    from burnish.errors import BurnishError, ConfigError, DivergedError, InputError
    from burnish.models.policy_model import PolicyModel
    from burnish.models.reward_model import RewardModel
    from burnish.models.sft_model import SFTModel
    from burnish.models.value_model import ValueModel
    from burnish.ppo.advantage import GAEAdvantage, ReturnCalculator, TDError
    from burnish.ppo.experience_buffer import ExperienceBuffer
    from burnish.ppo.generator import SequenceGenerator
    from burnish.ppo.model_trainer import ModelTrainer
    from burnish.ppo.ppo_trainer import PPOTrainer
    from burnish.ppo.reward_computer import RewardComputer
    from burnish.ppo.reward_kl import KLController, KLDivergence, RewardAdjuster
    from burnish.ppo.token_attribution import SAPairBuilder, TokenAttributionExtractor
    from burnish.ppo.training import PolicyLoss, ValueLoss
    from burnish.ppo.value_adder import ValueAdder
    from burnish.rollout.sampling import Sampler
    from burnish.sa_pairs.table import SAPairs
    from burnish.supervised.reward_trainer import RewardTrainer
    from burnish.supervised.sft_trainer import SFTTrainer

__version__ = "0.2.0"

# Torch's threads wait for each other by spinning, about a millisecond with OpenMP's default. Beside another busy
# program the one waited for is often not running at all, and a step takes many times as long; a short spin costs an
# undisturbed step next to nothing (docs/performance.md). OpenMP reads this when torch is imported, so it is set before
# that. What the user has set stays.
if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
    os.environ["GOMP_SPINCOUNT"] = "1000"

# Where torchao and bitsandbytes are installed, transformers and peft import them whether or not they are used. They
# then warn of kernels that this machine lacks, and torch of its enums: in every command, and nothing that a user could
# mend.
for _talkative in ("torchao", "torch.utils._pytree", "bitsandbytes.backends.cpu.ops"):
    logging.getLogger(_talkative).setLevel(logging.ERROR)

_NAMES_IN = {
    "base_setup.base_setup": ["BaseSetup"],
    "base_setup.embedded": ["EMBEDDED_NAME"],
    "config": ["PPOConfig", "RewardModelConfig", "SFTConfig", "TrainConfig", "load_train_config"],
    "decoder.shared_base": ["SharedBase"],
    "errors": ["BurnishError", "ConfigError", "DivergedError", "InputError"],
    "models.policy_model": ["PolicyModel"],
    "models.reward_model": ["RewardModel"],
    "models.sft_model": ["SFTModel"],
    "models.value_model": ["ValueModel"],
    "ppo.advantage": ["GAEAdvantage", "ReturnCalculator", "TDError"],
    "ppo.experience_buffer": ["ExperienceBuffer"],
    "ppo.generator": ["SequenceGenerator"],
    "ppo.model_trainer": ["ModelTrainer"],
    "ppo.ppo_trainer": ["PPOTrainer"],
    "ppo.reward_computer": ["RewardComputer"],
    "ppo.reward_kl": ["KLController", "KLDivergence", "RewardAdjuster"],
    "ppo.token_attribution": ["SAPairBuilder", "TokenAttributionExtractor"],
    "ppo.training": ["PolicyLoss", "ValueLoss"],
    "ppo.value_adder": ["ValueAdder"],
    "rollout.sampling": ["Sampler"],
    "sa_pairs.table": ["SAPairs"],
    "supervised.reward_trainer": ["RewardTrainer"],
    "supervised.sft_trainer": ["SFTTrainer"],
}
_ROOM_OF = {name: room for room, names in _NAMES_IN.items() for name in names}

__all__ = sorted(_ROOM_OF)


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'burnish' has no attribute {name!r}")
    return getattr(importlib.import_module(f"burnish.{_ROOM_OF[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
