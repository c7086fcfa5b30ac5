"""Settings: checked once, all errors at once, frozen afterwards."""

from burnish.config.ppo_config import PPOConfig
from burnish.config.train_config import TrainConfig, load_train_config

__all__ = ["PPOConfig", "TrainConfig", "load_train_config"]
