"""What can be known to fail before a model is loaded fails then."""

from __future__ import annotations

from pathlib import Path

from burnish.config import TrainConfig
from burnish.data import Split
from burnish.data.records import require_references
from burnish.errors import InputError
from burnish.ppo.reward_computer import RewardComputer
from burnish.rewards.part import RewardFunction
from burnish.rollout.server import HELLO, servers_of
from burnish.show.trackers import check_tracker
from burnish.stages.stage import check_rewards


def check_before_loading(config: TrainConfig, prompts: Split[str], not_yet: Path | None = None) -> None:
    """Rewards, tracker, rollout server and number of prompts, while nothing has been spent. `not_yet` is the folder of
    a pipeline whose reward model is still to come; its server may be too.
    """
    check_tracker(config.tracker)
    functions = check_rewards(config, not_yet)
    for asked_about, own in ((prompts.everything, config.reward_parts), (prompts.held_out, config.eval_reward_parts)):
        for part in own:
            part.check_prompts(asked_about)
    for function in functions:
        if function is not None:
            _try_out(function, prompts.train)
    if config.rollout is not None and not_yet is None:
        for server in servers_of(config.rollout):
            server.greet(config.rollout.model or config.model_name, HELLO)
    if needs := config.needs_references:
        require_references(prompts.train, needs)
    each, needed = config.responses_per_prompt, config.prompts_per_step
    if len(prompts.train) < needed:
        names = f"batch_size {config.batch_size}" if each == 1 else f"the {needed} of a step"
        raise InputError(
            f"there are {len(prompts.train)} prompts to train on, fewer than {names}: a step would take some of them "
            f"twice. Lower batch_size to {len(prompts.train) * each}, or add prompts"
        )


def _try_out(reward: RewardFunction, prompts: list[str]) -> None:
    """A reward that fails on any two answers fails now, not after the model is loaded and a batch generated."""
    answers = ["A first answer.", "And a second one."][: len(prompts)]
    RewardComputer(reward, strict=True).compute_rewards(prompts[:2], answers)
