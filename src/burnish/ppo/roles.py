"""The models of a trainer, each an adapter on its one base."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from burnish.base_setup.base_setup import BaseSetup
from burnish.base_setup.lora_files import adapter_folder
from burnish.config import PPOConfig
from burnish.models.adapter_files import load_adapter
from burnish.models.policy_model import PolicyModel
from burnish.models.reward_model import RewardModel
from burnish.models.sft_model import SFTModel
from burnish.models.value_model import ValueModel


@dataclass
class Roles:
    """Who takes part in a step. Where no critic is needed, none is built."""

    policy: PolicyModel
    sft_model: SFTModel
    value_model: ValueModel | None

    @classmethod
    def on(cls, setup: BaseSetup, config: PPOConfig, has_critic: bool) -> Roles:
        setup.add_adapter("policy")
        if has_critic:
            setup.add_adapter("value")
        policy = PolicyModel(setup.base, "policy", config.temperature)
        value_model = ValueModel(setup.base, "value", config.value_range) if has_critic else None
        reference = None if setup.start is None else _reference_and_start(setup, setup.start)
        return cls(policy, SFTModel(setup.base, config.temperature, adapter=reference), value_model)


def _reference_and_start(setup: BaseSetup, folder: Path) -> str:
    """The SFT adapter twice: frozen as the reference, and as the policy's start."""
    setup.add_adapter("sft")
    load_adapter(setup.base, "sft", folder)
    load_adapter(setup.base, "policy", folder)
    return "sft"


class RewardModels:
    """Every reward model that a config names becomes an adapter of its own."""

    def __init__(self, setup: BaseSetup) -> None:
        self.setup = setup
        self.loaded = 0

    def load(self, path: str) -> RewardModel:
        adapter = f"reward_{self.loaded}"
        self.loaded += 1
        self.setup.add_adapter(adapter)
        model = RewardModel(self.setup.base, self.setup.encoder.encode, adapter)
        return model.load(adapter_folder(path, "reward"))
