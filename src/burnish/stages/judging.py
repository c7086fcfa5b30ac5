"""The answers of start and tuned model to held-out prompts, and the verdict on them."""

from __future__ import annotations

import math

from rich.console import Console

from burnish.config import TrainConfig
from burnish.evaluation import people
from burnish.evaluation.evaluation import Evaluation, both_scored
from burnish.evaluation.measure import EVAL_SEED, evaluate
from burnish.evaluation.verdict import Verdict
from burnish.models.adapter_files import load_adapter
from burnish.models.policy_model import PolicyModel
from burnish.ppo.ppo_trainer import PPOTrainer
from burnish.ppo.reward_computer import RewardComputer
from burnish.runs.run import JUDGEMENTS, Run
from burnish.show import terminal
from burnish.stages.evaluate import HeldOut, write_verdict
from burnish.stages.leaks import warn_of_leaks


def judge_run(console: Console, held_out: HeldOut, best_of: int, ask: int, choose: people.Choose) -> Verdict:
    """Loads start and tuned model, measures both, and asks a person if wanted."""
    run, config, prompts = held_out.run, held_out.config, held_out.prompts
    warn_of_leaks(config, prompts)
    with terminal.busy(console, terminal.loading(config)):
        trainer = PPOTrainer(config)
        load_adapter(trainer.base, "policy", run.policy_folder)
    second = second_reward(trainer, config)
    for computer in filter(None, (trainer.reward_computer, second)):
        computer.keep_answers(run.path(JUDGEMENTS))
    with terminal.busy(console, f"start and tuned model answer {len(prompts)} held-out prompts"):
        start = evaluate(trainer, prompts, start_model(trainer), second)
        tuned = evaluate(trainer, prompts, None, second)
    start, tuned = both_scored(start, tuned)
    if ask:
        people.ask(run, start, tuned, ask, choose)
    return conclude(console, trainer, run, start, tuned, best_of)


def conclude(
    console: Console,
    trainer: PPOTrainer,
    run: Run,
    start: Evaluation,
    tuned: Evaluation,
    best_of: int,
) -> Verdict:
    """From two measurements, and what people said of them, to the verdict: shown, and kept in verdict.json."""
    best = None
    if best_of > 1:
        with terminal.busy(console, f"the start model answers {best_of - 1} more times"):
            best = _best_of(trainer, start, best_of)
    return write_verdict(console, run, start, tuned, best, best_of)


def start_model(trainer: PPOTrainer) -> PolicyModel:
    """What the policy was before PPO: the base, or the SFT stage's model."""
    return PolicyModel(trainer.base, trainer.sft_model.adapter, trainer.config.temperature)


def second_reward(trainer: PPOTrainer, config: TrainConfig) -> RewardComputer | None:
    """The reward that training does not see, if the config names one."""
    parts = config.eval_reward_parts
    return trainer.reward_of(parts) if parts else None


def _best_of(trainer: PPOTrainer, first: Evaluation, n: int) -> Evaluation:
    """For each prompt the answer with the highest reward among n: the one measured already, and n - 1 new ones."""
    speaker = start_model(trainer)
    tries = [first, *(evaluate(trainer, first.prompts, speaker, None, EVAL_SEED + k) for k in range(1, n))]
    best = Evaluation(prompts=list(first.prompts))
    for number in range(len(first.prompts)):
        winner = max((t for t in tries if math.isfinite(t.reward[number])), key=lambda t: t.reward[number])
        best.texts.append(winner.texts[number])
        best.reward.append(winner.reward[number])
    return best
