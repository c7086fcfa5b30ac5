"""The file that `burnish pipeline` reads: what the stages share, and a section for each.

model:        keys that all stages have (model_name, lora_layers, chat_template, max_new_tokens, seed ...)
sft:          demonstrations and the SFT stage's own keys; leave the section out to start from the base model
reward_model: preferences or scores; leave it out to train against ppo's own `reward`. `members: 3` trains three with
              seeds that follow each other, and PPO asks them all (a reward of kind `ensemble`)
ppo:          prompts and PPO's own keys
run_dir, run_name
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from burnish.config.files import folder_inside, lines_of, parse, read_mapping, start_paths_at
from burnish.config.keys import BASE, DATA, marked
from burnish.config.model_config import ModelConfig
from burnish.config.stage_configs import NAME, RewardModelConfig, RunConfig, SFTConfig, TrainConfig
from burnish.errors import ConfigError, InputError, Problem, nearest
from burnish.processes import world
from burnish.rewards.parts import part_of

SECTIONS: dict[str, type[RunConfig]] = {kind.section: kind for kind in (SFTConfig, RewardModelConfig, TrainConfig)}
SAMPLING = ("temperature", "top_k", "top_p")
MOST_MEMBERS = 16
KEYS = ("model", *SECTIONS, "run_dir", "run_name")


@dataclass(frozen=True)
class PipelineConfig:
    """Each stage's config, with the folders of the stages before it filled in."""

    folder: Path
    """All stages' run folders are in it: sft/, reward/ (reward-2/, reward-3/ ...) and ppo/."""
    sft: SFTConfig | None
    reward_models: list[RewardModelConfig]
    """None, one, or the members of an ensemble."""
    ppo: TrainConfig
    values: dict[str, Any]
    """What it was made from; kept with the runs, so that they can be resumed."""

    @property
    def reward_model(self) -> RewardModelConfig | None:
        """The first."""
        return next(iter(self.reward_models), None)

    @property
    def starts(self) -> dict[str, str | None]:
        """What the stages after SFT start from, by their sections."""
        return {own.section: own.sft for own in self.reward_models} | {self.ppo.section: self.ppo.sft}

    @property
    def stages(self) -> dict[str, RunConfig]:
        """Those that there are, by the names of their folders, in their order."""
        stages = (self.sft, *self.reward_models, self.ppo)
        return {str(own.run_name): own for own in stages if own is not None}


def load_pipeline_config(
    path: str | Path, overrides: list[str] | None = None, folder: Path | None = None
) -> PipelineConfig:
    """Reads the file; `section.key=value` overrides a setting of a section. `folder` is where its runs are already."""
    path = Path(path)
    values = _with_best_of_in_ppo(read_mapping(path))
    for section in ("model", *SECTIONS):
        if isinstance(values.get(section), dict):
            _start_paths_at(path.parent, section, values[section])
    for override in overrides or []:
        target, equals, value = override.partition("=")
        section, dot, key = target.partition(".")
        if not equals:
            raise InputError(f"override {override!r} is not of the form section.key=value, such as ppo.steps=20")
        if dot and section not in ("model", *SECTIONS):
            raise InputError(f"override {override!r}: there is no section {section!r}{nearest(section, KEYS)}")
        if not dot and section in TrainConfig.model_fields and section not in (*KEYS, "best_of"):
            raise InputError(f"override {override!r}: name the section too, such as ppo.{override}")
        if dot and values.get(section) is None:
            values[section] = {}
        place = values[section] if dot else values
        if not isinstance(place, dict):
            raise InputError(f"{section} in {path} is no mapping of `key: value` lines, so {override!r} has no place")
        as_text = not dot and section in ("run_dir", "run_name")
        place[key if dot else section] = value if as_text else parse(value, f"override {override!r}")
        if dot:  # paths on the command line begin where it was given
            _start_paths_at(Path(), section, place)
    name = values.get("run_name") or world.time_of_start() or time.strftime("%Y%m%d-%H%M%S")
    if not re.fullmatch(NAME, str(name)):
        raise InputError(f"run_name {name!r}: letters, digits, dots, dashes and underscores, at most 64")
    try:
        return pipeline_config(values, folder or folder_inside(Path(str(values.get("run_dir", "runs"))), str(name)))
    except ConfigError as error:
        raise ConfigError(error.problems, str(path), lines_of(path, overrides or [])) from None


def _start_paths_at(folder: Path, section: str, values: dict[str, Any]) -> None:
    """Of a section's keys; those of `model` may be any stage's."""
    for kind in SECTIONS.values() if section == "model" else (SECTIONS[section],):
        start_paths_at(folder, kind, values)


def pipeline_config(values: dict[str, Any], folder: Path) -> PipelineConfig:
    """The stages' configs; everything that is wrong with any of them in one error."""
    values = _with_best_of_in_ppo(values)
    others = [kind.command for kind in SECTIONS.values() if values.keys() & set(marked(kind, DATA))]
    meant = [] if "ppo" in values else others
    if meant:
        raise ConfigError([Problem(f"this is a file for `burnish {meant[0]}`, not for `burnish pipeline`")])
    problems = [Problem(f"unknown section {k!r}{nearest(str(k), KEYS)}", k) for k in values if k not in KEYS]
    if "ppo" not in values:
        problems.append(Problem("the section ppo is missing; it names the prompts and says how to train"))
    shared = values.get("model") or {}
    if not isinstance(shared, dict):
        problems.append(Problem("model must be a mapping of `key: value` lines", "model"))
        shared = {}
    stages: dict[str, Any] = {}
    for section, kind in SECTIONS.items():
        if section not in values:
            continue
        if not isinstance(values[section], dict):
            problems.append(Problem(f"{section} must be a mapping of `key: value` lines", section))
            continue
        borrowed = _sampling_of_ppo(section, values)
        own = borrowed | shared | {key: own for key, own in values[section].items() if key != "members"}
        filled = _from_before(section, values, folder)
        for key in own.keys() & filled.keys() - {"reward"}:  # what stands beside the learned reward is added to it
            problems.append(Problem(f"{section}: the pipeline itself sets {key}; leave it out", f"{section}.{key}"))
        try:
            stages[section] = kind(**(own | filled))
        except ConfigError as error:
            for problem in error.problems:
                if problem.key in borrowed.keys() - values[section].keys():
                    continue  # told of once, where it stands
                place = section if problem.key in values[section] else "model"
                sentence = re.sub(r"; a file with it is for .*", "; it has no place in this section", problem.sentence)
                problems.append(Problem(f"{section}: {sentence}", f"{place}.{problem.key}"))
    problems += _different_bases(stages, values)
    names = _names_of_members(values)
    if not names and isinstance(values.get("reward_model"), dict):
        sentence = f"reward_model: members takes a whole number from 1 to {MOST_MEMBERS}"
        problems.append(Problem(sentence, "reward_model.members"))
    if problems:
        raise ConfigError(problems)
    members = [
        stages["reward_model"].model_copy(update={"seed": stages["reward_model"].seed + n, "run_name": name})
        for n, name in enumerate(names)
    ]
    return PipelineConfig(folder, stages.get("sft"), members, stages["ppo"], values)


def _with_best_of_in_ppo(values: dict[str, Any]) -> dict[str, Any]:
    """Files of older versions have `best_of` beside the sections; it is a key of ppo."""
    if "best_of" not in values or not isinstance(values.get("ppo"), dict):
        return values
    rest = {key: value for key, value in values.items() if key != "best_of"}
    return rest | {"ppo": values["ppo"] | {"best_of": values["best_of"]}}


def _different_bases(stages: dict[str, ModelConfig], values: dict[str, Any]) -> list[Problem]:
    """One base model carries all stages: what makes it may not differ between sections."""
    problems = []
    for key in marked(ModelConfig, BASE):
        found = {section: getattr(own, key) for section, own in stages.items()}
        if len({repr(value) for value in found.values()}) > 1:
            said = ", ".join(f"{section}: {value!r}" for section, value in found.items())
            place = next((section for section in found if key in values[section]), "model")
            sentence = f"{key} differs between sections ({said}); all stages share one base, so set it once, in model"
            problems.append(Problem(sentence, f"{place}.{key}"))
    return problems


def _from_before(section: str, values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Where a stage finds the results of those before it, and puts its own."""
    filled: dict[str, Any] = {"run_dir": str(folder), "run_name": SECTIONS[section].stage}
    if section != "sft" and "sft" in values:
        filled["sft"] = str((folder / "sft").resolve())
    own = values[section]
    if section == "ppo" and "reward_model" in values:
        paths = [str((folder / name).resolve()) for name in _names_of_members(values) or ["reward"]]
        learned = {"kind": "ensemble", "paths": paths} if len(paths) > 1 else {"kind": "model", "path": paths[0]}
        filled["reward"] = [learned, *_as_parts(own.get("reward"))]
    return filled


def _names_of_members(values: dict[str, Any]) -> list[str]:
    """The folders of the reward models; none where there is no such section, or no such number."""
    section = values.get("reward_model")
    members = section.get("members", 1) if isinstance(section, dict) else None
    if type(members) is not int or not 1 <= members <= MOST_MEMBERS:
        return []
    return ["reward", *(f"reward-{number}" for number in range(2, members + 1))]


def _sampling_of_ppo(section: str, values: dict[str, Any]) -> dict[str, Any]:
    """The reward model is centred on answers that are drawn as PPO's will be."""
    ppo = values.get("ppo")
    if section != RewardModelConfig.section or not isinstance(ppo, dict):
        return {}
    return {key: ppo[key] for key in SAMPLING if key in ppo}


def _as_parts(reward: Any) -> list[Any]:
    """What stands beside the learned reward; whether it can be is checked with all the rest."""
    if isinstance(reward, str):
        try:
            return [part_of(reward).model_dump()]
        except ValidationError:
            return [{"kind": "python", "function": reward}]
    return [] if reward is None else list(reward) if isinstance(reward, list) else [reward]
