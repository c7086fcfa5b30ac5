"""Settings: every key with its meaning, checked when a config is made."""

from burnish.config.files import load_config, load_train_config
from burnish.config.model_config import ModelConfig
from burnish.config.ppo_config import PPOConfig
from burnish.config.stage_configs import RewardModelConfig, SFTConfig, TrainConfig
