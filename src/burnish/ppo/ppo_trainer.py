"""The orchestrator: one PPO step is ten verbs in a row."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch

from burnish.base_setup.base_setup import BaseSetup
from burnish.base_setup.lora_files import adapter_folder
from burnish.base_setup.tokenizer_setup import PromptEncoder
from burnish.config import PPOConfig
from burnish.data.records import require_references
from burnish.drawing.notebook import html_of_trainer
from burnish.errors import DivergedError, InputError
from burnish.maths import linear_decay
from burnish.models.adapter_files import save_to_run
from burnish.models.policy_model import PolicyModel
from burnish.models.reward_model import RewardModel
from burnish.ppo.advantage import (
    Estimator,
    GAEAdvantage,
    ReturnCalculator,
    StatefulEstimator,
    TDError,
    refuse_half_a_state,
)
from burnish.ppo.baselines import baseline_of
from burnish.ppo.clock import Clock
from burnish.ppo.experience_buffer import ExperienceBuffer
from burnish.ppo.from_run import (
    config_of_run,
    continue_from_checkpoint,
    given_before,
    given_from_python,
    named_after,
    take_over,
)
from burnish.ppo.generator import SequenceGenerator
from burnish.ppo.guards import ConstantRewardGuard, RunawayGuard, SamplerGapGuard
from burnish.ppo.memory_report import memory_report
from burnish.ppo.metrics import by_process, sampler_gap, step_metrics
from burnish.ppo.model_trainer import ModelTrainer
from burnish.ppo.prompt_order import prompts_of_step
from burnish.ppo.reward_computer import RewardComputer, only_scored, weighted
from burnish.ppo.reward_kl import KLController, KLDivergence, RewardAdjuster, shaping_of
from burnish.ppo.roles import RewardModels, Roles
from burnish.ppo.score_centre import ScoreCentre
from burnish.ppo.scores import Scores
from burnish.ppo.trainer_state import restore_into, state_of
from burnish.ppo.value_adder import ValueAdder
from burnish.processes import world
from burnish.rewards.part import RewardFunction, RewardPart, Workshop
from burnish.rollout.rollout import Engine
from burnish.rollout.sampling import Sampler
from burnish.rollout.vllm import VllmEngine
from burnish.runs.checkpoints import State
from burnish.runs.run import GIVEN, Run
from burnish.sa_pairs.response import first_responses
from burnish.sa_pairs.table import SAPairs


class PPOTrainer:
    """Builds all models and components from a config, and runs PPO steps.

    `reward` overrides config.reward with a function f(prompts, responses) -> list (or with a third parameter `tokens`,
    for rewards per token), or a RewardModel. `model` and `tokenizer` override config.model_name with ready-made ones.
    `estimator` computes advantages without a critic, instead of config.baseline. Where no critic is needed, no value
    model is built, trained or saved. `engine` generates instead of the local decoder, and instead of config.rollout.
    `encoder` has read the prompts already.
    """

    def __init__(
        self,
        config: PPOConfig,
        reward: RewardFunction | RewardModel | None = None,
        model: Any = None,
        tokenizer: Any = None,
        estimator: Estimator | None = None,
        engine: Engine | None = None,
        encoder: PromptEncoder | None = None,
    ) -> None:
        self.config = config = named_after(model, config)
        self.given = given_from_python(config, reward=reward, model=model, estimator=estimator, engine=engine)
        self.estimator = estimator or baseline_of(config)
        refuse_half_a_state(self.estimator)
        if reward is None:
            for part in config.reward_parts:
                part.check(Workshop(config.reward_timeout))  # what does not exist fails before anything is loaded
        start = None if config.sft is None else adapter_folder(config.sft, "sft")
        self.setup = BaseSetup(config, model, tokenizer, encoder, start)
        self.base = self.setup.base
        roles = Roles.on(self.setup, config, has_critic=config.has_critic and estimator is None)
        self.policy, self.sft_model, self.value_model = roles.policy, roles.sft_model, roles.value_model
        self.reward_models = RewardModels(self.setup)

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
            engine=engine,
        )
        self.invocation = self.generator.invocation
        self.reward_computer = (
            self.reward_of(config.reward_parts)
            if reward is None
            else RewardComputer(reward, self.base.tokenizer, self.clock)
        )
        if config.value_from_reward and self.value_model is not None:
            part = next(part for part in config.reward_parts if part.judges)
            self.value_model.start_from(adapter_folder(part.judges[0], "reward"), part.weight)
        self.kl_divergence = KLDivergence(config.kl_estimator)
        self.kl_controller = KLController(config.kl_coef, config.adaptive_kl_target, config.adaptive_kl_horizon)
        self.reward_adjuster = RewardAdjuster(config.stop_token_penalty, config.whiten_rewards, shaping_of(config))
        self.centre = ScoreCentre(config.reward_against, self.base.device)
        references = self.setup.encoder if config.value_reads_reference else None
        self.value_adder = None if self.value_model is None else ValueAdder(self.value_model, self.clock, references)
        self.td_error = TDError(config.gamma)
        self.gae_advantage = GAEAdvantage(config.gamma, config.lam)
        self.return_calculator = ReturnCalculator(config.gamma, config.value_target, config.value_lam)
        self.experience_buffer = ExperienceBuffer()
        self.model_trainer = ModelTrainer(self.policy, self.value_model, config, self.clock)
        self.runaway_guard = RunawayGuard(config.max_kl)
        self.constant_reward_guard = ConstantRewardGuard()
        self.sampler_gap_guard = SamplerGapGuard(self.base.head.dtype, config.rollout)
        self.server = (
            VllmEngine(config.rollout, config.model_name, self.sampler_gap_guard.limit)
            if config.rollout is not None and engine is None
            else None
        )
        self.step = 0
        self.history: list[dict[str, Any]] = []
        """The metrics of every step that this trainer has made."""
        self.sampling_generator = torch.Generator(self.base.device).manual_seed(config.seed)

    @classmethod
    def from_run(
        cls,
        folder: str | Path,
        reward: RewardFunction | RewardModel | None = None,
        model: Any = None,
        tokenizer: Any = None,
        estimator: Estimator | None = None,
        engine: Engine | None = None,
        *,
        resume: bool = False,
        trust: bool = False,
        **changes: Any,
    ) -> Self:
        """A trainer as a run left it, to generate with or to train further; `changes` are keys of its config.

        It has what the run's adapters have learned, and begins a training of its own at step 0. With `resume` it is in
        the state of the newest checkpoint instead, optimizers and random numbers included. A run that is not this
        user's has nothing run and nobody asked, unless `trust` is set.
        """
        run = Run.open(folder)
        given = {"reward": reward, "model": model, "estimator": estimator, "engine": engine}
        trainer = cls(config_of_run(run, given, changes, trust), tokenizer=tokenizer, **given)
        trainer.given = given_before(run) | trainer.given
        if resume:
            continue_from_checkpoint(trainer, run, reward_is_given=reward is not None)
        else:
            take_over(trainer, run)
        return trainer

    def __repr__(self) -> str:
        return (
            f"PPOTrainer({self.base.identity.name}, reward {self.reward_computer.name}, step {self.step} of "
            f"{self.config.steps})"
        )

    def _repr_html_(self) -> str:
        """In a notebook: what is set, the curves so far, and responses of the last step."""
        settings = self.config.model_dump(mode="json", exclude_defaults=True, exclude={"model_name", "steps"})
        last = self.experience_buffer.tables[-1:]
        samples = [sample for pairs in last for sample in first_responses(pairs, most=2)]
        total = sum(len(pairs.mask) for pairs in last)
        return html_of_trainer(repr(self), settings, self.history, samples, total)

    def reward_of(self, parts: list[RewardPart]) -> RewardComputer:
        """A reward as the config writes it. Every reward model becomes an adapter of its own on the shared base."""
        workshop = Workshop(self.config.reward_timeout, self.reward_models.load, self._start_answers)
        return RewardComputer(weighted(parts, workshop), self.base.tokenizer, self.clock)

    def _start_answers(self, prompts: Sequence[str]) -> list[str]:
        """The most likely ones of the model that training starts from."""
        start = PolicyModel(self.base, self.sft_model.adapter, self.config.temperature)
        greedy = replace(self.generator.sampler, greedy=True)
        size, texts = self.config.batch_size, []
        for first in range(0, len(prompts), size):
            batch = list(prompts[first : first + size])
            texts += self.generator.generate_sequences(batch, sampler=greedy, speaker=start)[1]
        return texts

    # ----------------------------------------------------------------------------------------------- the step

    def ppo_step(self, prompts: Sequence[str]) -> dict[str, Any]:
        """One complete PPO step: rollout, score, KL, reward, value, TD error, advantage, returns, store, train.

        Gives `generated_texts`, `rewards`, `value_loss`, `policy_loss`, the SA pairs and the step's metrics.
        """
        started = self._begin_step(prompts)

        sa_pairs, texts = self.generator.generate_sequences(  # 1 rollout
            prompts, self.sampling_generator, engine=self.server
        )
        rewards = self.reward_computer.compute_rewards(prompts, texts, sa_pairs)  # 2 score
        prompts, texts, sa_pairs, rewards = only_scored(prompts, texts, sa_pairs, rewards)
        sa_pairs = self.kl_divergence.add_kl_to_sa_pairs(sa_pairs)  # 3 KL to the reference
        sa_pairs = self.reward_adjuster.adjust_rewards_with_kl(  # 4 reward
            sa_pairs, rewards, self.charged_kl_coef, self.centre.of(prompts, rewards, self.reward_computer)
        )
        if self.value_adder is not None:
            sa_pairs = self.value_adder.add_values_to_sa_pairs(sa_pairs, prompts)  # 5 value
            sa_pairs = self.td_error.compute_td_errors(sa_pairs)  # 6 TD error
            sa_pairs = self.gae_advantage.compute_gae_advantages(sa_pairs)  # 7 advantage
            sa_pairs = self.return_calculator.add_reward_to_go(sa_pairs)  # 8 returns
        if self.estimator is not None:
            sa_pairs = self.estimator.compute_advantages(sa_pairs)  # 7 another advantage than GAE's, most without 5-8
        self.experience_buffer.store(sa_pairs)  # 9 store
        losses = self._train_models()  # 10 train

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
        self.reward_computer.take_costs()  # those of a measurement are not this step's
        world.take_seconds_waited()
        return time.perf_counter()

    def _train_models(self) -> dict[str, float]:
        """The value model, then, once its warm-up is over, the policy."""
        for sa_pairs in self.experience_buffer.tables:
            self.sampler_gap_guard.check(sampler_gap(sa_pairs))
        losses = {}
        if self.value_model is not None:
            warming_up = self.step < self.config.value_warmup_steps
            losses["value_loss"] = self.model_trainer.train_value_model(self.experience_buffer, warming_up)
            if warming_up:
                return losses | {"policy_loss": 0.0}
        return losses | {"policy_loss": self.model_trainer.train_policy_model(self.experience_buffer, self.kl_coef)}

    def _end_step(
        self, started: float, prompts: Sequence[str], sa_pairs: SAPairs, texts: list[str], rewards: Scores
    ) -> dict[str, Any]:
        costs = self.reward_computer.take_costs()
        sa_pairs = self.model_trainer.add_ratios(sa_pairs)
        metrics: dict[str, Any] = step_metrics(sa_pairs, torch.tensor(rewards.totals), self.kl_coef)
        metrics |= self.model_trainer.metrics | {
            "reward_parts": dict(rewards.part_means),
            "left_out": rewards.num_left_out,
            **(self.estimator.metrics() if isinstance(self.estimator, StatefulEstimator) else {}),
            **({"reward_costs": costs} if costs else {}),
            "learning_rate": self.model_trainer.updates["policy"].learning_rate_now,
            **{f"{name}_updates": own.role.num_updates for name, own in self.model_trainer.updates.items()},
            "buffer_mb": self.experience_buffer.nbytes / 2**20,
            "seconds": time.perf_counter() - started,
            **{f"seconds_{name}": seconds for name, seconds in self.clock.seconds.items()},
            **by_process(time.perf_counter() - started),
        }
        self.kl_controller.update(metrics["kl"], sa_pairs.mask.shape[0])
        self.runaway_guard.check(metrics["kl"] / max(metrics["response_tokens"], 1))
        self.constant_reward_guard.check(rewards.totals)
        self.step += 1
        self.history.append({"step": self.step} | metrics)
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
        if self.server is not None:
            self.server.check(self.policy)
        if needs := self.config.needs_references:
            require_references(prompts, needs)
        if self.config.value_reads_reference:
            self.setup.encoder.encode_beside_references(prompts)
        history = []
        while self.step < self.config.steps:
            results = self.ppo_step(self.prompts_of_step(prompts, self.step))
            if on_step:
                on_step(results)
            history.append({k: v for k, v in results.items() if k != "sa_pairs"})  # the pairs hold the shared context
        return history

    def prompts_of_step(self, prompts: Sequence[str], step: int) -> list[str]:
        """One prompt for each response, those to the same prompt beside each other (prompt_order.py)."""
        chosen = prompts_of_step(prompts, step, self.config.prompts_per_step, self.config.seed)
        return [prompt for prompt in chosen for _ in range(self.config.responses_per_prompt)]

    def save(self, folder: str | Path) -> None:
        """Writes config and adapters as a run does: peft loads adapters/policy, `burnish generate` the folder."""
        run = Run(Path(folder)).begin(self.config)
        if self.given or run.has(GIVEN):
            run.write(GIVEN, self.given)
        for updates in reversed(self.model_trainer.updates.values()):  # the policy last: what it stands on is there
            save_to_run(run, updates.role)

    # ------------------------------------------------------------------------------------------ what can be saved

    def state(self) -> State:
        """All that later steps depend on. `restore` brings it back, and the next step is the same to the bit."""
        return state_of(self)

    def sound_state(self) -> State:
        """The state to resume from: refused if the last updates left a model that produces NaN."""
        ruined = self.model_trainer.ruined(self.experience_buffer)
        if ruined:
            raise DivergedError(
                f"the updates of step {self.step} ruined the {ruined}: it produces NaN. The step is not saved. "
                "Lower the learning rate",
                step=self.step,
            )
        return self.state()

    def restore(self, state: State) -> None:
        """Continues where `state` was taken, in a trainer of the same config."""
        restore_into(self, state)

    def memory_report(self, prompts: Sequence[str] = ()) -> list[tuple[str, float, str]]:
        """Name, megabytes, what they are: of every role, and with prompts also of the work on them and the peak."""
        return memory_report(self, prompts)
