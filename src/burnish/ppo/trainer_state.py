"""All that a trainer's later steps depend on, taken out of it and put back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from burnish.ppo.advantage import StatefulEstimator
from burnish.runs.checkpoints import State
from burnish.runs.state import (
    optimizer_state,
    parameters_state,
    random_state,
    restore_optimizer,
    restore_parameters,
    restore_random,
)

if TYPE_CHECKING:
    from burnish.ppo.ppo_trainer import PPOTrainer


def state_of(trainer: PPOTrainer) -> State:
    trained = trainer.model_trainer.updates
    updates = {f"{name}_updates": own.role.num_updates for name, own in trained.items()}
    values: dict[str, Any] = {
        "counters": {"step": trainer.step} | updates,
        "kl_coef": {"now": trainer.kl_coef, "configured": trainer.config.kl_coef},
        "invocation": trainer.base.invocation,
        "guards": {
            "steps_beyond": trainer.runaway_guard.steps_beyond,
            "steps_constant": trainer.constant_reward_guard.steps_constant,
            "first_gap": trainer.sampler_gap_guard.first_gap,
        },
    }
    if trainer.config.reward_against == "start":
        values["start_score"] = trainer.centre.start_score
    if isinstance(trainer.estimator, StatefulEstimator):
        values |= trainer.estimator.state()
    state = State(values=values)
    for name, own in trained.items():
        state.add(name, parameters_state(own.role.parameters()))
        state.add(f"{name}_optimizer", optimizer_state(own.optimizer))
    return state.add("random", random_state(_generators(trainer)))


def restore_into(trainer: PPOTrainer, state: State) -> None:
    counters = state.value("counters")
    for name, own in trainer.model_trainer.updates.items():
        restore_parameters(own.role.parameters(), state.part(name))
        restore_optimizer(own.optimizer, state.part(f"{name}_optimizer"))
        own.role.num_updates = int(counters[f"{name}_updates"])
    restore_random(_generators(trainer), state.part("random"))
    trainer.base.act_from(state.value("invocation"), loaded=True)
    kl_coef = state.value("kl_coef")
    if kl_coef["configured"] == trainer.config.kl_coef:  # else it was changed on the way, and that is meant
        trainer.kl_controller.kl_coef = float(kl_coef["now"])
    guards = state.value("guards")
    trainer.runaway_guard.steps_beyond = int(guards["steps_beyond"])
    trainer.constant_reward_guard.steps_constant = int(guards["steps_constant"])
    trainer.sampler_gap_guard.first_gap = guards["first_gap"]
    if trainer.config.reward_against == "start":
        trainer.centre.start_score = state.value("start_score")
    if isinstance(trainer.estimator, StatefulEstimator):
        trainer.estimator.restore({name: state.value(name) for name in trainer.estimator.state()})
    trainer.step = int(counters["step"])


def _generators(trainer: PPOTrainer) -> dict[str, torch.Generator]:
    return {"sampling": trainer.sampling_generator, "mini_batches": trainer.model_trainer.order}
