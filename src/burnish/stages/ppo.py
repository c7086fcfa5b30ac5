"""The PPO stage: measure, train, measure again, show both."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

from rich.console import Console

from burnish import terminal
from burnish.base_setup.base_setup import check_prompts
from burnish.base_setup.embedded import EMBEDDED_NAME, embedded_model_folder
from burnish.config import PPOConfig
from burnish.data import Prompts
from burnish.evaluation import Evaluation, evaluate
from burnish.memory import peak_bytes
from burnish.ppo_trainer import PPOTrainer, RewardComputer
from burnish.ppo_trainer.generator import NO_SHARED_ENDING
from burnish.ppo_trainer.reward_computer import RewardFunction
from burnish.rewards import resolve_reward
from burnish.runs import Run

SHOWN_SAMPLES = 4


def run_ppo(
    config: PPOConfig,
    prompts: Prompts,
    run_dir: str | Path,
    run_name: str | None,
    console: Console,
    samples_per_step: int = 2,
) -> Run:
    """Trains, and leaves a run folder behind. All input is checked before the folder is made."""
    started = time.perf_counter()
    reward = resolve_reward(config.reward)
    if not isinstance(reward, str):
        _try_out(reward, prompts.train)
    run = Run.new(run_dir, run_name)
    with terminal.busy(console, terminal.loading(config)):
        check_prompts(config, [*prompts.train, *prompts.held_out])
        trainer = PPOTrainer(config, None if isinstance(reward, str) else reward)
        with warnings.catch_warnings():  # a missing ending is announced below, in the run's own words
            warnings.simplefilter("ignore", UserWarning)
            trainer.generator.agree_on_invocation([*prompts.train, *prompts.held_out])
    run.begin(config)
    memory = trainer.memory_report([*prompts.train, *prompts.held_out])
    _announce(console, trainer, prompts, run, memory)

    before = _measure(console, trainer, prompts, "before")
    with terminal.StepProgress(console, config.steps) as progress:
        trainer.clock.on_phase = progress.on_phase

        def on_step(results: dict[str, Any]) -> None:
            run.log_step(results)
            step_prompts = trainer.prompts_of_step(prompts.train, results["step"] - 1)
            run.log_samples(results, step_prompts, trainer.base.tokenizer, samples_per_step)
            progress.on_step(results)

        try:
            trainer.train(prompts.train, on_step)
        finally:  # what was learned is kept, whatever ended the training
            trainer.save(run.folder)
        trainer.clock.on_phase = None
    after = _measure(console, trainer, prompts, "after")

    seconds, peak_gb = round(time.perf_counter() - started), peak_bytes() / 1e9
    if before is not None and after is not None:
        cost = {
            "seconds": seconds,
            "peak_memory_gb": round(peak_gb, 2),
            "memory": {n: round(mb) for n, mb, _ in memory},
        }
        run.write_result({"before": before.as_dict(), "after": after.as_dict(), **cost})
        _compare(console, before, after)
    console.print(
        f"Took {seconds // 60}:{seconds % 60:02d} minutes and {peak_gb:.1f} GB of memory at its peak.", highlight=False
    )
    console.print(how_to_use(run, config, trainer.base.invocation), highlight=False, soft_wrap=True)
    return run


def _try_out(reward: RewardFunction, prompts: list[str]) -> None:
    """A reward that fails on any two answers fails now, not after the model is loaded and a batch generated."""
    RewardComputer(reward).compute_rewards(prompts[:2], ["A first answer.", "And a second one."][: len(prompts)])


def _announce(
    console: Console, trainer: PPOTrainer, prompts: Prompts, run: Run, memory: list[tuple[str, float, str]]
) -> None:
    config = trainer.config
    console.print(terminal.memory_table(memory))
    updates = config.optimizer_steps_per_ppo_step
    console.print(
        f"{config.steps} PPO steps of {config.batch_size} responses, {len(prompts.train)} prompts; each step makes "
        f"{updates} optimizer {'step' if updates == 1 else 'steps'} of each model. "
        f"Adapters act on the {config.adapter_scope}, reward: {trainer.reward_computer.name}. Run folder: {run.folder}",
        highlight=False,
    )
    if trainer.base.tokenizer.pad_token_id is None:
        console.print("The tokenizer has no pad token; none is needed: padding is masked by length.", highlight=False)
    if config.adapter_scope == "response" and not trainer.base.invocation:
        console.print(NO_SHARED_ENDING, highlight=False)


def _measure(console: Console, trainer: PPOTrainer, prompts: Prompts, when: str) -> Evaluation | None:
    if not prompts.held_out:
        return None
    with terminal.busy(console, f"measuring {len(prompts.held_out)} held-out prompts {when} training"):
        return evaluate(trainer, prompts.held_out, prompts.references)


def _compare(console: Console, before: Evaluation, after: Evaluation) -> None:
    console.print(terminal.before_after_table(before, after))
    console.print(terminal.samples_table(before, after, SHOWN_SAMPLES))
    mean, half = before.table()["reward"]
    now = after.table()["reward"][0]
    where = "above" if now > mean + half else "below" if now < mean - half else "inside"
    console.print(
        f"Held-out reward {mean:.3f} before, {now:.3f} after: {where} the 95 % interval of before "
        f"({mean - half:.3f} to {mean + half:.3f}).",
        highlight=False,
    )


def how_to_use(run: Run, config: PPOConfig, invocation: list[int]) -> str:
    """The adapter's path and what loads it."""
    base = str(embedded_model_folder()) if config.model_name == EMBEDDED_NAME else config.model_name
    lines = [f"\nThe tuned adapter is in {run.policy_folder}", f'  burnish generate {run.folder} "your prompt"']
    if config.adapter_scope == "sequence" or invocation:
        lines += [
            "or from Python:",
            "  from transformers import AutoModelForCausalLM",
            "  from peft import PeftModel",
            f'  base = AutoModelForCausalLM.from_pretrained("{base}")',
            f'  model = PeftModel.from_pretrained(base, "{run.policy_folder}")',
        ]
    if config.adapter_scope == "sequence":
        lines.append("(`model.merge_and_unload()` folds it into the base.)")
    elif invocation:
        lines.append("(An activated LoRA: it acts from the prompt's last tokens on, so do not merge it.)")
    return "\n".join(lines)
