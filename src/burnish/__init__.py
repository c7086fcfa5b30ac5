"""burnish: PPO fine-tuning for language models on the machine you have."""

from burnish.advantage import GAEAdvantage, ReturnCalculator, TDError
from burnish.base_setup import EMBEDDED_NAME, BaseSetup
from burnish.config import PPOConfig, TrainConfig, load_train_config
from burnish.errors import BurnishError, DivergedError, InputError
from burnish.experience_buffer import ExperienceBuffer
from burnish.models import PolicyModel, RewardModel, Sampler, SFTModel, SharedBase, ValueModel
from burnish.ppo_trainer import ModelTrainer, PPOTrainer, RewardComputer, SequenceGenerator, ValueAdder
from burnish.reward_kl import KLController, KLDivergence, RewardAdjuster
from burnish.token_attribution import SAPairs
from burnish.token_attribution.extractor import TokenAttributionExtractor
from burnish.token_attribution.sa_pair_builder import SAPairBuilder
from burnish.training import PolicyLoss, ValueLoss

__version__ = "0.1.0"

__all__ = [
    "EMBEDDED_NAME",
    "BaseSetup",
    "BurnishError",
    "DivergedError",
    "ExperienceBuffer",
    "GAEAdvantage",
    "InputError",
    "KLController",
    "KLDivergence",
    "ModelTrainer",
    "PPOConfig",
    "PPOTrainer",
    "PolicyLoss",
    "PolicyModel",
    "ReturnCalculator",
    "RewardAdjuster",
    "RewardComputer",
    "RewardModel",
    "SAPairBuilder",
    "SAPairs",
    "SFTModel",
    "Sampler",
    "SequenceGenerator",
    "SharedBase",
    "TDError",
    "TokenAttributionExtractor",
    "TrainConfig",
    "ValueAdder",
    "ValueLoss",
    "ValueModel",
    "load_train_config",
]
