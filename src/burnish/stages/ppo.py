"""The PPO stage: measure, train, measure again, show both."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from rich.console import Console
from safetensors import SafetensorError

from burnish.base_setup.tokenizer_setup import PromptEncoder
from burnish.config import TrainConfig
from burnish.config.keys import MEASURED, marked
from burnish.data import Split, data_summary
from burnish.decoder.memory import machine, peak_bytes
from burnish.errors import BurnishError, DivergedError
from burnish.evaluation.evaluation import Evaluation, both_scored
from burnish.evaluation.measure import evaluate, most_likely_answers
from burnish.models.policy_model import PolicyModel
from burnish.ppo.ppo_trainer import PPOTrainer
from burnish.ppo.reward_computer import RewardComputer
from burnish.ppo.samples import log_step, response_rows
from burnish.processes import world
from burnish.runs.checkpoints import versions
from burnish.runs.run import JUDGEMENTS, Run
from burnish.runs.same_run import fingerprint_of_files
from burnish.runs.saving import Saving
from burnish.show import terminal
from burnish.show.trackers import open_tracker
from burnish.stages.announcing import announce, how_to_use
from burnish.stages.before_loading import check_before_loading
from burnish.stages.identity import identity_of
from burnish.stages.judging import conclude, second_reward, start_model
from burnish.stages.leaks import warn_of_leaks
from burnish.stages.opening import opened
from burnish.stages.stage import COMMAND, Beginning
from burnish.text import minutes, plain

NUM_ANSWERS = 6  # held-out prompts whose most likely answers are kept and shown
NUM_PROBES = 2  # prompts, held-out ones if there are any, that are answered again and again during training


def run(config: TrainConfig, data: Split[str], console: Console, beginning: Beginning = COMMAND) -> Run:
    """As in `Work` (stage.py)."""
    started = time.perf_counter()

    def check(prompts: Split[str]) -> None:
        check_before_loading(config, prompts)
        warn_of_leaks(config, prompts.held_out)

    def load(encoder: PromptEncoder) -> PPOTrainer:
        return PPOTrainer(config, encoder=encoder)

    with opened(console, config, data, load, check, beginning) as (run, work):
        if work is None:
            return run
        trainer, prompts, saving = work.trainer, work.data, work.saving
        memory = trainer.memory_report(prompts.everything)
        console.print(terminal.data_table(data_summary(prompts, work.encoder, config.max_new_tokens)))
        announce(console, trainer, prompts, run, memory)
        if trainer.server is not None:
            with terminal.busy(console, "the rollout server answers a probe"), world.together():
                trainer.server.check(trainer.policy)
        trained = [updates.role for updates in trainer.model_trainer.updates.values()]
        identity = identity_of(trainer.base, trained, prompts, trainer.reward_computer.models)
        second = second_reward(trainer, config)  # before random numbers are restored: its adapter may draw some
        for computer in filter(None, (trainer.reward_computer, second)):
            computer.keep_answers(run.path(JUDGEMENTS))
        identity["rewards"] = _fingerprint_of_rewards(config)  # which may be mended on the way; that is reported
        step = saving.begin(trainer.sound_state, trainer.restore, identity, beginning.from_step)
        if step:
            console.print(f"Resuming after step {step} of {config.steps}.", highlight=False)
            if trainer.server is not None:
                console.print(
                    "The state is exactly that of the checkpoint; the responses from here on are the server's, which "
                    "need not be those that it gave before.",
                    highlight=False,
                )

        journal = saving.journal
        journal.doing(step, config.steps, "measuring held-out prompts before training")
        before = _start(console, trainer, config, run, prompts.held_out, second)
        _train(console, trainer, config, prompts, run, saving)
        journal.doing(config.steps, config.steps, "measuring held-out prompts after training")
        after = _measure(console, trainer, prompts.held_out, second, "after")
        if before is not None and after is not None:
            before, after = both_scored(before, after)
            verdict = conclude(console, trainer, run, before, after, config.best_of)
            console.print(terminal.answers_table(_answers(console, trainer, run, prompts.held_out[:NUM_ANSWERS])))
            console.print(plain(verdict.sentence), highlight=False)
        seconds, peak_gb = round(time.perf_counter() - started), peak_bytes() / 1e9
        result = {"before": before and before.as_dict(), "after": after and after.as_dict(), "seconds": seconds}
        result["num_prompts"] = {"training": len(prompts.train), "held_out": len(prompts.held_out)}
        result |= _facts(peak_gb, memory) | saving.facts
        world.by_first(lambda: run.write("result.json", result))
    console.print(f"Took {minutes(seconds)} minutes and {peak_gb:.1f} GB of memory at its peak.", highlight=False)
    told = how_to_use(run, config, trainer.base.invocation, trainer.base.identity.merged)
    console.print(plain(told), highlight=False, soft_wrap=True)
    if run.pipeline_folder is None:  # which writes it itself
        console.print(plain(f"Verdict, curves and tokens as one page: burnish report {run.folder}"), highlight=False)
    return run


def _facts(peak_gb: float, memory: list[tuple[str, float, str]]) -> dict[str, Any]:
    """When and on what a run was made, and what it took."""
    return {
        "finished": time.strftime("%Y-%m-%d %H:%M"),
        "versions": versions(),
        "machine": machine(),
        "peak_memory_gb": round(peak_gb, 2),
        "memory": {name: round(mb) for name, mb, _ in memory},
    }


def _fingerprint_of_rewards(config: TrainConfig) -> str:
    """Functions and models that answers are scored with, in training and in the verdict."""
    return fingerprint_of_files(file for part in config.all_reward_parts for file in part.files())


def _start(
    console: Console,
    trainer: PPOTrainer,
    config: TrainConfig,
    run: Run,
    held_out: Sequence[str],
    second: RewardComputer | None,
) -> Evaluation | None:
    """The measurement before training, kept so that a resumed run compares with the same.

    A run that is resumed with another reward or other sampling measures its start model again.
    """
    values = config.model_dump(mode="json")
    settings = {key: values[key] for key in marked(TrainConfig, MEASURED)}
    settings["rewards"] = _fingerprint_of_rewards(config)
    kept = world.by_first(lambda: run.read("start.json") if run.has("start.json") else None)
    if kept is not None and kept["settings"] == settings:
        return Evaluation(**kept["evaluation"] | {"prompts": list(held_out)})  # with references and messages
    before = _measure(console, trainer, held_out, second, "before", start_model(trainer))
    if before is not None:
        kept = {"settings": settings, "evaluation": asdict(before)}
        world.by_first(lambda: run.write("start.json", kept))
    return before


def _train(
    console: Console, trainer: PPOTrainer, config: TrainConfig, prompts: Split[str], run: Run, saving: Saving
) -> None:
    with world.together():
        tracker = open_tracker(config.tracker if world.is_first() else None, run, trainer.step)
    probes = (prompts.held_out or prompts.train)[:NUM_PROBES]
    probe_steps = {round(config.steps * k / 3) for k in range(4)} if probes else set()
    with terminal.StepProgress(console, config.steps, trainer.step) as progress:

        def on_phase(phase: str) -> None:
            progress.on_phase(phase)
            saving.journal.doing(trainer.step + 1, config.steps, phase)

        trainer.clock.on_phase = on_phase

        def probe(step: int) -> None:
            """The most likely answers to the same prompts, in the course of training."""
            greedy = replace(trainer.generator.sampler, greedy=True)
            try:
                _, texts = trainer.generator.generate_sequences(probes, sampler=greedy)
            except DivergedError as error:
                raise DivergedError(str(error), step=step) from error
            run.log_probes(step, probes, texts)

        def on_step(results: dict[str, Any]) -> None:
            step = results["step"]
            with world.together():
                log_step(run, results, trainer.base.tokenizer, config.samples_per_step)
                tracker.log(results)
                progress.on_step(results)
            if step in probe_steps:
                probe(step)
            saving.after_step(step, results["reward"], is_last=step == config.steps)

        try:
            if trainer.step == 0 and probes:
                probe(0)
            trainer.train(prompts.train, on_step)
            with world.together():
                trainer.save(run.folder)
        except BaseException as error:
            if not isinstance(error, DivergedError):  # what was learned is there to be used, unless it is ruined
                with suppress(OSError, SafetensorError, BurnishError):
                    trainer.save(run.folder)
            if isinstance(error, DivergedError):
                raise DivergedError(f"{error}\n{_keep_responses(error, trainer, run, prompts.train)}") from error
            raise
        finally:
            tracker.close()
        trainer.clock.on_phase = None


def _keep_responses(error: DivergedError, trainer: PPOTrainer, run: Run, prompts: list[str]) -> str:
    """The step's responses, token by token, in a file of their own; its prompts, if it came to no responses."""
    step = error.step or trainer.step + 1
    name = f"diverged-step-{step}.jsonl"
    if world.is_first():
        (run.folder / name).unlink(missing_ok=True)
    tables = trainer.experience_buffer.tables or ([] if error.sa_pairs is None else [error.sa_pairs])
    for pairs in tables:
        for row in response_rows(step, trainer.generator.decode(pairs), pairs, trainer.base.tokenizer):
            run.append(name, row)
    for prompt in () if tables else trainer.prompts_of_step(prompts, step - 1):
        run.append(name, {"step": step, "prompt": prompt})
    return f"The {'responses' if tables else 'prompts'} of step {step} are in {run.folder / name}."


def _measure(
    console: Console,
    trainer: PPOTrainer,
    prompts: Sequence[str],
    second: RewardComputer | None,
    when: str,
    speaker: PolicyModel | None = None,
) -> Evaluation | None:
    if not prompts:
        return None
    with terminal.busy(console, f"measuring {len(prompts)} held-out prompts {when} training"):
        return evaluate(trainer, prompts, speaker, second)


def _answers(console: Console, trainer: PPOTrainer, run: Run, prompts: Sequence[str]) -> list[dict[str, str]]:
    """What a user would get of each model; kept in answers.json. The base is shown where PPO started from SFT."""
    speakers = {"start": start_model(trainer), "tuned": trainer.policy}
    if trainer.sft_model.adapter is not None:
        speakers = {"base": PolicyModel(trainer.base, None, trainer.config.temperature)} | speakers
    with terminal.busy(console, f"{' and '.join(speakers)} answer {len(prompts)} held-out prompts"):
        answers = most_likely_answers(trainer, prompts, speakers)
    world.by_first(lambda: run.write("answers.json", {"answers": answers}))
    return answers
