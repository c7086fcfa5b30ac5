"""The PPO step and its components."""

from burnish.ppo_trainer.generator import SequenceGenerator
from burnish.ppo_trainer.model_trainer import ModelTrainer
from burnish.ppo_trainer.ppo_trainer import PPOTrainer
from burnish.ppo_trainer.reward_computer import RewardComputer
from burnish.ppo_trainer.value_adder import ValueAdder

__all__ = ["ModelTrainer", "PPOTrainer", "RewardComputer", "SequenceGenerator", "ValueAdder"]
