"""Rough input: names, paths, numbers and terminals that nobody planned for end in a sentence, never in a traceback."""

import pytest

from burnish import InputError, PPOConfig
from burnish.config import RewardModelConfig, SFTConfig, TrainConfig

# ---------------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("top_p", 1e-300), ("temperature", 1e-300), ("temperature", 1e300), ("value_clip", 1e300), ("kl_coef", 1e308),
        ("learning_rate", 1e38), ("learning_rate", 2), ("value_learning_rate", 1e38), ("max_grad_norm", 1e300),
        ("stop_token_penalty", 1e300), ("adaptive_kl_target", 1e-300), ("adaptive_kl_target", 1e300),
        ("target_kl_stop", 1e300), ("max_kl", 1e300), ("reward_timeout", 1e300),
    ],
)  # fmt: skip
def test_a_number_that_no_one_can_mean_is_refused_with_its_range(key, value):
    with pytest.raises(InputError, match=f"{key}: Input should be (greater|less) than or equal to") as caught:
        PPOConfig(**{key: value})
    assert f"(got {value!r})" in str(caught.value)


@pytest.mark.parametrize("kind", [TrainConfig, SFTConfig, RewardModelConfig])
def test_no_number_of_a_config_may_be_endless(kind):
    data = {"prompts": "p.txt"} if kind is TrainConfig else {"demonstrations": "d", "preferences": "p"}
    data = {key: value for key, value in data.items() if key in kind.model_fields}
    numbers = [key for key, field in kind.model_fields.items() if field.annotation in NUMBERS]
    assert len(numbers) > 10
    for key in numbers:
        with pytest.raises(InputError, match=f"{key}: "):
            kind(**data, **{key: 10**30})


NUMBERS = (int, float, int | None, float | None)
