"""The orchestrator: one PPO step is ten verbs in a row."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from burnish.advantage import GAEAdvantage, ReturnCalculator, TDError
from burnish.base_setup import BaseSetup
from burnish.checkpoints import State
from burnish.clock import Clock
from burnish.config import PPOConfig
from burnish.config.reward_parts import ModelPart, RewardPart, unique_names
from burnish.errors import DivergedError, InputError
from burnish.experience_buffer import ExperienceBuffer
from burnish.guards import ConstantRewardGuard, RunawayGuard, SamplerGapGuard
from burnish.maths import linear_decay
from burnish.metrics import sampler_gap, step_metrics
from burnish.models import PolicyModel, RewardModel, Sampler, SFTModel, ValueModel
from burnish.models.adapter_files import adapter_folder, load_adapter
from burnish.ppo_trainer.generator import SequenceGenerator
from burnish.ppo_trainer.memory_report import memory_report
from burnish.ppo_trainer.model_trainer import ModelTrainer
from burnish.ppo_trainer.reward_computer import RewardComputer, RewardFunction, WeightedReward, only_scored
from burnish.ppo_trainer.value_adder import ValueAdder
from burnish.reward_kl import KLController, KLDivergence, RewardAdjuster
from burnish.rewards import check_parts, function_of
from burnish.runs import Run
from burnish.sa_pairs import SAPairs
from burnish.training_state import (
    optimizer_state,
    parameters_state,
    random_state,
    restore_optimizer,
    restore_parameters,
    restore_random,
)


class PPOTrainer:
    """Builds all models and components from a config, and runs PPO steps.

    `reward` overrides config.reward with a function f(prompts, responses) -> list (or with a third parameter `tokens`,
    for rewards per token), or a RewardModel. `model` and `tokenizer` override config.model_name with ready-made ones.
    """

    def __init__(
        self,
        config: PPOConfig,
        reward: RewardFunction | RewardModel | None = None,
        model: Any = None,
        tokenizer: Any = None,
    ) -> None:
        self.config = config
        self._num_reward_models = 0
        if reward is None:
            check_parts(config.reward_parts, config.reward_timeout)  # one that does not exist fails before any loading
        self.setup = BaseSetup(config, model, tokenizer)
        self.base = self.setup.base
        self.setup.add_adapter("policy")
        self.setup.add_adapter("value")
        self.policy = PolicyModel(self.base, "policy", config.temperature)
        self.sft_model = SFTModel(self.base, config.temperature)
        self.value_model = ValueModel(self.base, "value")
        if config.sft is not None:
            self._start_from_sft(adapter_folder(config.sft, "sft"))

        self.clock = Clock()
        sampler = Sampler(config.temperature, config.top_k, config.top_p)
        self.generator = SequenceGenerator(
            self.policy,
            self.sft_model,
            self.setup.encoder,
            sampler,
            config.max_new_tokens,
            self.clock,
            keep_reference=config.kl_in != "reward" and config.kl_estimator == "exact",
        )
        self.reward_computer = (
            self.reward_of(config.reward_parts)
            if reward is None
            else RewardComputer(reward, self.base.tokenizer, self.clock)
        )
        if config.value_from_reward:
            self._start_value_from_reward()
        self.kl_divergence = KLDivergence(config.kl_estimator)
        self.kl_controller = KLController(config.kl_coef, config.adaptive_kl_target, config.adaptive_kl_horizon)
        self.reward_adjuster = RewardAdjuster(config.stop_token_penalty, config.whiten_rewards)
        self.value_adder = ValueAdder(self.value_model, self.clock)
        self.td_error = TDError(config.gamma)
        self.gae_advantage = GAEAdvantage(config.gamma, config.lam)
        self.return_calculator = ReturnCalculator(config.gamma, config.value_target)
        self.experience_buffer = ExperienceBuffer()
        self.model_trainer = ModelTrainer(self.policy, self.value_model, config, self.clock)
        self.runaway_guard = RunawayGuard(config.max_kl)
        self.constant_reward_guard = ConstantRewardGuard()
        self.sampler_gap_guard = SamplerGapGuard(self.base.head.dtype)
        self.step = 0
        self.sampling_generator = torch.Generator(self.base.device).manual_seed(config.seed)

    def reward_of(self, parts: Sequence[RewardPart]) -> RewardComputer:
        """A reward as the config writes it. Every reward model becomes an adapter of its own on the shared base."""
        weighted = []
        for part, name in zip(parts, unique_names([p.name for p in parts]), strict=True):
            reward: RewardFunction | RewardModel
            if isinstance(part, ModelPart):
                reward = self._reward_model(part.path)
            else:
                reward = function_of(part, self.config.reward_timeout)
            weighted.append(WeightedReward(name, reward, part.weight))
        return RewardComputer(weighted, self.base.tokenizer, self.clock)

    def _reward_model(self, path: str) -> RewardModel:
        adapter = f"reward_{self._num_reward_models}"
        self._num_reward_models += 1
        self.setup.add_adapter(adapter)
        return RewardModel(self.base, self.setup.encoder.encode, adapter).load(adapter_folder(path, "reward"))

    def _start_from_sft(self, folder: Path) -> None:
        """The SFT adapter twice: frozen as the reference, and as the policy's start."""
        self.setup.add_adapter("sft")
        load_adapter(self.base, "sft", folder)
        load_adapter(self.base, "policy", folder)
        self.sft_model = SFTModel(self.base, self.config.temperature, adapter="sft")

    def _start_value_from_reward(self) -> None:
        part = next(p for p in self.config.reward_parts if isinstance(p, ModelPart))
        self.value_model.start_from(adapter_folder(part.path, "reward"), part.weight)

    # ----------------------------------------------------------------------------------------------- the step

    def ppo_step(self, prompts: Sequence[str]) -> dict[str, Any]:
        """One complete PPO step: rollout, score, KL, reward, value, TD error, advantage, returns, store, train.

        Gives `generated_texts`, `rewards`, `value_loss`, `policy_loss`, the SA pairs and the step's metrics.
        """
        started = self._begin_step(prompts)

        sa_pairs, texts = self.generator.generate_sequences(prompts, self.sampling_generator)  # 1 rollout
        rewards = self.reward_computer.compute_rewards(prompts, texts, sa_pairs)  # 2 score
        prompts, texts, sa_pairs, rewards = only_scored(prompts, texts, sa_pairs, rewards)
        sa_pairs = self.kl_divergence.add_kl_to_sa_pairs(sa_pairs)  # 3 KL to the reference
        sa_pairs = self.reward_adjuster.adjust_rewards_with_kl(sa_pairs, rewards, self.charged_kl_coef)  # 4 reward
        sa_pairs = self.value_adder.add_values_to_sa_pairs(sa_pairs)  # 5 value
        sa_pairs = self.td_error.compute_td_errors(sa_pairs)  # 6 TD error
        sa_pairs = self.gae_advantage.compute_gae_advantages(sa_pairs)  # 7 advantage
        sa_pairs = self.return_calculator.add_reward_to_go(sa_pairs)  # 8 returns
        self.experience_buffer.store(sa_pairs)  # 9 store
        value_loss = self.model_trainer.train_value_model(self.experience_buffer)  # 10 train both models
        policy_loss = self._train_policy_after_warmup()

        losses = {"value_loss": value_loss, "policy_loss": policy_loss}
        return self._end_step(started, prompts, sa_pairs, texts, rewards) | losses

    @property
    def kl_coef(self) -> float:
        """Price of one nat now."""
        return self.kl_controller.kl_coef

    @property
    def charged_kl_coef(self) -> float:
        """What of it the reward charges: nothing where the loss does."""
        return 0.0 if self.config.kl_in == "loss" else self.kl_coef

    def _begin_step(self, prompts: Sequence[str]) -> float:
        if self.config.lr_schedule == "linear" and self.step >= self.config.steps:
            raise InputError(
                f"all {self.config.steps} steps of this config are done and its learning rate has decayed to 0; "
                "set steps higher, or lr_schedule: constant"
            )
        if self.config.lr_schedule == "linear":
            self.model_trainer.set_learning_rates(linear_decay(self.step, self.config.steps))
        self.generator.agree_on_invocation(prompts)
        self.experience_buffer.clear()
        self.clock.reset()
        return time.perf_counter()

    def _train_policy_after_warmup(self) -> float:
        if self.step < self.config.value_warmup_steps:
            return 0.0
        for sa_pairs in self.experience_buffer.tables:
            self.sampler_gap_guard.check(sampler_gap(sa_pairs))
        return self.model_trainer.train_policy_model(self.experience_buffer, self.kl_coef)

    def _end_step(
        self, started: float, prompts: Sequence[str], sa_pairs: SAPairs, texts: list[str], rewards: list[Any]
    ) -> dict[str, Any]:
        metrics: dict[str, Any] = step_metrics(sa_pairs, rewards, self.kl_coef) | self.model_trainer.metrics
        metrics |= {
            "reward_parts": dict(self.reward_computer.part_means),
            "left_out": self.reward_computer.num_left_out,
            "learning_rate": self.model_trainer.policy_optimizer.param_groups[0]["lr"],
            "policy_updates": self.policy.num_updates,
            "value_updates": self.value_model.num_updates,
            "buffer_mb": self.experience_buffer.nbytes / 2**20,
            "seconds": time.perf_counter() - started,
            **{f"seconds_{name}": seconds for name, seconds in self.clock.seconds.items()},
        }
        self.kl_controller.update(metrics["kl"], sa_pairs.mask.shape[0])
        self.runaway_guard.check(metrics["kl"] / max(metrics["response_tokens"], 1))
        self.constant_reward_guard.check(rewards)
        self.step += 1
        return {
            "step": self.step,
            "prompts": list(prompts),
            "generated_texts": texts,
            "rewards": rewards,
            "sa_pairs": sa_pairs,
            **metrics,
        }

    # ------------------------------------------------------------------------------------------------ the run

    def train(
        self, prompts: Sequence[str], on_step: Callable[[dict[str, Any]], None] | None = None
    ) -> list[dict[str, Any]]:
        """Runs the configured steps and gives their results. Which prompts a step takes follows from (seed, step)."""
        self.generator.agree_on_invocation(prompts)  # every prompt is checked before any long work
        history = []
        while self.step < self.config.steps:
            results = self.ppo_step(self.prompts_of_step(prompts, self.step))
            if on_step:
                on_step(results)
            history.append({k: v for k, v in results.items() if k != "sa_pairs"})  # the pairs hold the shared context
        return history

    def prompts_of_step(self, prompts: Sequence[str], step: int) -> list[str]:
        """batch_size prompts: all prompts in a random order, then all again in another, cut into steps."""
        positions = range(step * self.config.batch_size, (step + 1) * self.config.batch_size)
        rounds = {p // len(prompts) for p in positions}
        orders = {r: _order(len(prompts), self.config.seed, r) for r in rounds}
        return [prompts[orders[p // len(prompts)][p % len(prompts)]] for p in positions]

    def save(self, folder: str | Path) -> None:
        """Writes config and adapters as a run does: peft loads adapters/policy, `burnish generate` the folder."""
        run = Run(Path(folder)).begin(self.config)
        run.save_adapter(self.value_model)
        run.save_adapter(self.policy)

    # ------------------------------------------------------------------------------------------ what can be saved

    def state(self) -> State:
        """All that later steps depend on. `restore` brings it back, and the next step is the same to the bit."""
        counters = {
            "step": self.step,
            "policy_updates": self.policy.num_updates,
            "value_updates": self.value_model.num_updates,
        }
        guards = {
            "steps_beyond": self.runaway_guard.steps_beyond,
            "steps_constant": self.constant_reward_guard.steps_constant,
            "first_gap": self.sampler_gap_guard.first_gap,
        }
        kl_coef = {"now": self.kl_coef, "configured": self.config.kl_coef}
        values = {"counters": counters, "kl_coef": kl_coef, "invocation": self.base.invocation, "guards": guards}
        state = State(values=values)
        state.add("policy", parameters_state(self.policy.parameters()))
        state.add("value", parameters_state(self.value_model.parameters()))
        state.add("policy_optimizer", optimizer_state(self.model_trainer.policy_optimizer))
        state.add("value_optimizer", optimizer_state(self.model_trainer.value_optimizer))
        return state.add("random", random_state(self._generators))

    def sound_state(self) -> State:
        """The state to go on from: refused if the last updates left models that give no numbers."""
        ruined = self.model_trainer.ruined(self.experience_buffer)
        if ruined:
            raise DivergedError(
                f"the updates of step {self.step} ruined the {ruined}: it gives no numbers any more. The step is not "
                "saved. Lower the learning rate",
                step=self.step,
            )
        return self.state()

    def restore(self, state: State) -> None:
        """Goes on where `state` was taken, in a trainer of the same config."""
        restore_parameters(self.policy.parameters(), state.part("policy"))
        restore_parameters(self.value_model.parameters(), state.part("value"))
        restore_optimizer(self.model_trainer.policy_optimizer, state.part("policy_optimizer"))
        restore_optimizer(self.model_trainer.value_optimizer, state.part("value_optimizer"))
        restore_random(self._generators, state.part("random"))
        self.base.invocation, self.base.invocation_is_loaded = list(state.value("invocation")), True
        kl_coef = state.value("kl_coef")
        if kl_coef["configured"] == self.config.kl_coef:  # else it was changed on the way, and that is meant
            self.kl_controller.kl_coef = float(kl_coef["now"])
        guards = state.value("guards")
        self.runaway_guard.steps_beyond = int(guards["steps_beyond"])
        self.constant_reward_guard.steps_constant = int(guards["steps_constant"])
        self.sampler_gap_guard.first_gap = guards["first_gap"]
        counters = state.value("counters")
        self.step = int(counters["step"])
        self.policy.num_updates = int(counters["policy_updates"])
        self.value_model.num_updates = int(counters["value_updates"])

    @property
    def _generators(self) -> dict[str, torch.Generator]:
        return {"sampling": self.sampling_generator, "mini_batches": self.model_trainer.order}

    def memory_report(self, prompts: Sequence[str] = ()) -> list[tuple[str, float, str]]:
        """Name, megabytes, what they are: of every role, and with prompts also of the work on them and the peak."""
        return memory_report(self, prompts)


def _order(size: int, seed: int, round_number: int) -> list[int]:
    """A random order of range(size), one for each round through the prompts."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + round_number)
    return torch.randperm(size, generator=generator).tolist()
