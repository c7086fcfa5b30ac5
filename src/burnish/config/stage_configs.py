"""The files that commands read: a stage's settings, where its data comes from and where its results go.

Relative paths in a config file start at the file's folder; those in overrides, and run_dir, where the command runs.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from burnish.config.keys import DATA, FIXED, MEASURED, PATH, PLACE, RUN, VERDICT
from burnish.config.model_config import ModelConfig
from burnish.config.ppo_config import PPOConfig
from burnish.errors import nearest
from burnish.rewards.part import RewardPart
from burnish.rewards.parts import AnyPart, parts_of

COLUMNS = ("prompt", "messages", "reference", "completion", "chosen", "rejected", "response", "score")
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class RunConfig(ModelConfig):
    """What every command says about its data and its run folder."""

    fields: Annotated[dict[str, str], FIXED] = Field(default_factory=dict)
    """Other names for the data's columns, ours first: {prompt: question, chosen: better}."""
    skip_bad: Annotated[bool, FIXED] = False
    """Leave out rows that cannot be used, prompts that do not fit the context among them, and count them, instead of
    stopping."""
    num_eval_prompts: Annotated[int | float | None, FIXED] = Field(None, ge=0, le=10**9)
    """Prompts to hold out and measure on, with all their rows: a count, or a share such as 0.1. 0 measures nothing, an
    interval needs 2. Unset: a tenth of the prompts, at least 16 and at most 64, but never more than a quarter. Not used
    where held-out data has a file of its own, nor for bundled texts, which bring their own split."""
    save_every: int = Field(10, ge=0, le=10**9)
    """Steps between checkpoints, 0 for none by steps. A killed run loses at most this many."""
    save_minutes: float = Field(10.0, gt=0, le=1e6)
    """Minutes after which a checkpoint is due, however few steps were made."""
    keep_checkpoints: int = Field(2, ge=1, le=10**9)
    """How many of the last checkpoints stay; the best one stays too."""
    run_dir: Annotated[str, PLACE] = "runs"
    """Folder that run folders are created in."""
    run_name: Annotated[str | None, PLACE] = Field(None, pattern=NAME)
    """Name of this run's folder. Unset: the time of its start."""

    @field_validator("fields")
    @classmethod
    def _maps_known_columns(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if name not in COLUMNS:
                raise ValueError(f"{name!r} is not a known column ({', '.join(COLUMNS)}){nearest(name, COLUMNS)}")
        return value

    @field_validator("num_eval_prompts")
    @classmethod
    def _check_num_eval_prompts(cls, value: float | None) -> float | None:
        if value == 1:
            raise ValueError("one held-out prompt gives no interval; use 0, or 2 and more")
        if value is not None and value > 1 and value != int(value):
            raise ValueError("this is neither a count nor a share; use a whole number, or one between 0 and 1")
        return value if value is None or 0 < value < 1 else int(value)


class TrainConfig(PPOConfig, RunConfig):
    """Config of `burnish train`: all PPO settings, and the run's files."""

    command = "train"

    prompts: Annotated[str, DATA]
    """Prompts to train on: a .jsonl, .json, .csv, .tsv, .parquet or .txt file (one prompt per line), or a dataset's
    name. A relative path in a config file starts at that file's folder (so do all other paths)."""
    eval_prompts: Annotated[str | None, DATA] = None
    """Held-out prompts in a file of their own. Without it, `num_eval_prompts` are set aside from `prompts`."""
    eval_reward: Annotated[str | list[AnyPart] | None, PATH, MEASURED] = None
    """A second reward that training does not see (written like `reward`): the verdict compares by it too, so that a
    model which only learned to please its reward is found out."""
    best_of: Annotated[int, VERDICT] = Field(4, ge=1, le=10_000)
    """What the verdict compares with: the start model's best of this many answers, by the reward. 1 leaves it out."""
    samples_per_step: int = Field(2, ge=0, le=10**9)
    """Responses per step that are written to samples.jsonl with all their per-token columns."""
    tracker: Literal["tensorboard", "wandb", "trackio"] | None = None
    """Also send every step's metrics to this tracker. Each is installed apart: pip install tensorboard (or wandb,
    trackio)."""

    @property
    def all_reward_parts(self) -> list[RewardPart]:
        """Those that training and verdict ask."""
        return [*self.reward_parts, *self.eval_reward_parts]

    @property
    def eval_reward_parts(self) -> list[RewardPart]:
        return [] if self.eval_reward is None else parts_of(self.eval_reward)


class SupervisedConfig(RunConfig):
    """Training on texts that people wrote or judged."""

    max_new_tokens: int = Field(128, ge=1, le=10_000_000)
    """Longest answer, in tokens. Longer ones are cut: they lose their end, and what only the end shows."""
    epochs: int = Field(2, ge=1, le=10_000)
    """Passes over the data. Usual 1-3; more fit it harder."""
    batch_size: Annotated[int, FIXED] = Field(16, ge=1, le=10**9)
    """Rows per optimizer step. Usual 8-64."""
    learning_rate: float = Field(2e-4, gt=0, le=1)
    """Peak learning rate: reached after a tenth of the updates, then decaying linearly to 0. Usual 1e-4 to 1e-3."""
    max_grad_norm: float = Field(1.0, gt=0, le=1e6)
    """Gradients are scaled down to this norm. Usual 0.5-1."""


class SFTConfig(SupervisedConfig):
    """Config of `burnish sft`: LoRA on demonstrations."""

    stage = section = command = "sft"

    demonstrations: Annotated[str, DATA]
    """Rows of `prompt` and `completion`, or of `messages`, the last of them the assistant's: a .jsonl, .json, .csv,
    .tsv or .parquet file, or a dataset's name."""
    eval_demonstrations: Annotated[str | None, DATA] = None
    """Held-out demonstrations. Without it, `num_eval_prompts` prompts are set aside."""


class RewardModelConfig(SupervisedConfig):
    """Config of `burnish reward`: a reward model from preferences, human scores, or both."""

    stage = command = "reward"
    section = "reward_model"

    preferences: Annotated[str | None, DATA] = None
    """Rows of `prompt` (or `messages`), `chosen` and `rejected`: a .jsonl, .json, .csv, .tsv or .parquet file, or a
    dataset's name."""
    scores: Annotated[str | None, DATA] = None
    """Rows of `prompt`, `response` and `score`: what people thought of single answers."""
    eval_preferences: Annotated[str | None, DATA] = None
    """Held-out preferences. Without it, `num_eval_prompts` prompts are set aside."""
    sft: Annotated[str | None, PATH, RUN] = None
    """Folder of an SFT run, or of any LoRA in peft's format: the reward model starts from it, and scores are centred on
    its answers. PPO needs the same."""
    num_centring_prompts: int = Field(32, ge=0, le=10**9)
    """Training prompts that the start model answers when training is done, so that its mean score becomes 0 and the
    spread 1. 0 uses the training answers instead."""
    temperature: float = Field(1.0, ge=0.001, le=1000)
    """Sampling temperature of these answers. As PPO will sample, or its start will not score 0; a pipeline takes all
    three from its section ppo."""
    top_k: int = Field(50, ge=0, le=4096)
    """These answers are drawn from the k most likely tokens, 0 for all."""
    top_p: float = Field(0.95, ge=0.001, le=1)
    """And from the smallest set of tokens with this probability, 1 for all."""

    def broken_rules(self) -> list[str]:
        broken = super().broken_rules()
        if self.preferences is None and self.scores is None:
            broken.append("a reward model needs data: set preferences, scores or both")
        if self.eval_preferences is not None and self.preferences is None:
            broken.append("eval_preferences without preferences: there is nothing to train on")
        return broken
