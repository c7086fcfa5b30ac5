"""What a trainer takes over from a run folder, so that the run goes on in Python; and what of Python no folder has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.base_setup.lora_files import adapter_folder
from burnish.base_setup.sources import full_name, is_on_the_hub
from burnish.config import PPOConfig, TrainConfig
from burnish.errors import InputError, NoCheckpointError
from burnish.models.adapter_files import load_adapter
from burnish.models.frozen import fingerprint_of_frozen
from burnish.ppo.advantage import StatefulEstimator
from burnish.runs.checkpoints import Checkpoints
from burnish.runs.run import GIVEN, Run
from burnish.runs.same_run import Now, Then, may_resume
from burnish.runs.trust import refusal, unproven

if TYPE_CHECKING:
    from burnish.ppo.ppo_trainer import PPOTrainer


def named_after(model: Any, config: PPOConfig) -> PPOConfig:
    """A model that is given is not the one that a config names by default: it is named by where it was loaded from."""
    name = "" if model is None else getattr(model, "name_or_path", "")
    if not name or "model_name" in config.model_fields_set:
        return config
    return config.model_copy(update={"model_name": str(Path(name).resolve()) if Path(name).is_dir() else name})


def given_from_python(config: PPOConfig, **given: Any) -> dict[str, str]:
    """What was given and cannot be found again by the config, by name. A model whose name the config has can."""
    if "model_name" in config.model_fields_set:
        given["model"] = None
    return {what: getattr(own, "__name__", type(own).__name__) for what, own in given.items() if own is not None}


def given_before(run: Run) -> dict[str, str]:
    """The same, of the trainer that made a run."""
    return run.read(GIVEN) if run.has(GIVEN) else {}


def config_of_run(run: Run, given: Mapping[str, Any], changes: Mapping[str, Any], trust: bool) -> PPOConfig:
    """The run's settings with some of them changed, if they ask for nothing that its user did not ask for.

    `given` is what takes the place of something that the settings name: reward, model, estimator, engine.
    """
    if run.stage != "ppo":
        raise InputError(
            f"{run.folder} is a run of the stage {run.stage}, and from_run takes a PPO run"
            + (f"; PPO starts from this one with PPOConfig(sft={str(run.folder)!r})" if run.stage == "sft" else "")
        )
    for name, was in given_before(run).items():
        if given.get(name) is None:
            raise InputError(
                f"{run.folder} was trained with a {name} that was given from Python ({was}), and no file has it; give "
                f"it again: PPOTrainer.from_run(folder, {name}=...)"
            )
    settings = run.settings | dict(changes)
    config = (TrainConfig if "prompts" in settings else PPOConfig)(**settings)
    file = run.path("config.yaml")
    deeds = unproven(file, _deeds(config, given))
    if deeds and not trust:
        raise refusal(file, deeds, "call from_run with trust=True")
    return config


def _deeds(config: PPOConfig, given: Mapping[str, Any]) -> Iterator[str]:
    """What building the trainer would do because the config says so."""
    if given.get("model") is None and is_on_the_hub(config):
        yield f"ask the model hub for {full_name(config)}"
    if given.get("reward") is None:
        for part in config.reward_parts:
            yield from part.deeds()
    if given.get("engine") is None and config.rollout is not None:
        yield from config.rollout.deeds()


def take_over(trainer: PPOTrainer, run: Run) -> None:
    """What the run has learned, and what its last step was charged and compared with."""
    if not run.policy_folder.is_dir():
        raise InputError(
            f"{run.folder} has saved no policy yet; PPOTrainer.from_run(folder, resume=True) takes its last checkpoint"
        )
    load_adapter(trainer.base, "policy", run.policy_folder)
    if trainer.value_model is not None:
        folder = adapter_folder(run.folder, "value")
        load_adapter(trainer.base, "value", folder)
        trainer.value_model.load_head(folder)
    rows = run.read_lines("metrics.jsonl")
    if rows:
        trainer.kl_controller.kl_coef = rows[-1].get("kl_coef", trainer.kl_coef)
        trainer.centre.start_score = rows[0]["reward"] if trainer.config.reward_against == "start" else None
        estimator = trainer.estimator
        if isinstance(estimator, StatefulEstimator) and estimator.state().keys() <= rows[-1].keys():
            estimator.restore(rows[-1])


def continue_from_checkpoint(trainer: PPOTrainer, run: Run, reward_is_given: bool) -> None:
    """The newest checkpoint that verifies: the next step is the one that the run itself would have made."""
    checkpoints = Checkpoints(Path(run.path("checkpoints")))
    steps = [found.step for found in checkpoints.all() if found.problem is None]
    if not steps:
        raise NoCheckpointError(
            f"{run.folder} has no checkpoint to continue from; without resume=True training begins again from what its "
            "adapters have learned"
        )
    state = checkpoints.load(steps[-1])
    trained = [updates.role for updates in trainer.model_trainer.updates.values()]
    known: dict[str, Any] = {"base model": trainer.base.identity.parts, "device": str(trainer.base.device)}
    if not reward_is_given:  # else its models are the caller's business
        frozen = trainer.reward_computer.models
        known["frozen adapters"] = fingerprint_of_frozen(trainer.base, trained, frozen)
    may_resume(run.folder, Then(state.value("config"), state.value("identity")), Now(trainer.config, known))
    trainer.restore(state)
