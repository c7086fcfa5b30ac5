"""Recipes: groups of keys that belong together, each under the name that the field gives it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Recipe = Literal["ppo", "rloo", "grpo", "dr_grpo", "dapo", "gspo", "reinforce++", "tether"]


@dataclass(frozen=True)
class RecipeKeys:
    """What a recipe sets, and what it is."""

    meaning: str
    keys: dict[str, Any]


# Several responses to a prompt, compared as wholes: nothing is discounted, and the comparison sets the scale.
COMPARED = {"responses_per_prompt": 4, "gamma": 1.0, "whiten_advantages": False}

RECIPES: dict[str, RecipeKeys] = {
    "ppo": RecipeKeys("PPO with a value model, as the defaults describe it.", {}),
    "rloo": RecipeKeys(
        "Each response against the mean of the prompt's other responses; no value model.",
        {"baseline": "leave_one_out", **COMPARED},
    ),
    "grpo": RecipeKeys(
        "Each response against its group, divided by the group's spread; the KL in the loss; no value model.",
        {
            "baseline": "group_normalised",
            **COMPARED,
            "aggregate": "sequences",
            "kl_in": "loss",
            "kl_estimator": "k3",
        },
    ),
    "dr_grpo": RecipeKeys(
        "GRPO without its two biases: no division by the spread, none by the length; no KL.",
        {
            "baseline": "group_mean",
            **COMPARED,
            "aggregate": "constant",
            "kl_coef": 0.0,
        },
    ),
    "dapo": RecipeKeys(
        "GRPO with a wider clip upwards and every token counting the same; no KL.",
        {
            "baseline": "group_normalised",
            **COMPARED,
            "clip_high": 0.28,
            "kl_coef": 0.0,
        },
    ),
    "gspo": RecipeKeys(
        "GRPO with one ratio for a whole response; no KL.",
        {
            "baseline": "group_normalised",
            **COMPARED,
            "policy_loss": "sequence",
            "clip_epsilon": 3e-4,
            "clip_high": 4e-4,
            "aggregate": "sequences",
            "kl_coef": 0.0,
        },
    ),
    "reinforce++": RecipeKeys(
        "The rewards to come, whitened over the batch; one response per prompt, no value model.",
        {"baseline": "batch_mean", "gamma": 1.0},
    ),
    "tether": RecipeKeys(
        "Leave-one-out, mixed with the value model as far as that has earned it.",
        {"baseline": "tether", **COMPARED, "value_epochs": 4},
    ),
}
