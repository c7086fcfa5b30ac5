"""Which of PPO's keys go together: combinations that mean nothing are refused with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from burnish.config.ppo_config import PPOConfig


def broken_rules(config: PPOConfig) -> list[str]:
    """Each a sentence with the way out; none if the keys fit together."""
    broken = []
    for key, size in (
        ("mini_batch_size", config.mini_batch_size),
        ("responses_per_prompt", config.responses_per_prompt),
    ):
        if size is not None and config.batch_size % size:
            lower, upper = config.batch_size // size * size, (config.batch_size // size + 1) * size
            way_out = f"{lower} or {upper}" if lower else f"{upper}"
            broken.append(f"batch_size {config.batch_size} is not a multiple of {key} {size}; try batch_size {way_out}")
    if config.reward_shape == "sigmoid" and config.reward_against == "nothing":
        broken.append("reward_shape: sigmoid needs to know what an ordinary score is; set reward_against: start")
    if config.overlong_tokens > config.max_new_tokens:
        broken.append(f"overlong_tokens {config.overlong_tokens} is more than max_new_tokens {config.max_new_tokens}")
    if _is_given_alone(config, "overlong_penalty", "overlong_tokens"):
        broken.append("overlong_penalty without overlong_tokens is never charged; set overlong_tokens, or leave it out")
    if config.value_from_reward and not any(part.judges for part in config.reward_parts):
        broken.append("value_from_reward needs a reward model; add a part of kind model to reward, or leave it out")
    if config.reward == []:
        broken.append("reward is an empty list; name at least one part")
    broken += _of_kl(config) + _of_rollout(config)
    if config.value_warmup_steps >= config.steps:
        broken.append(
            f"value_warmup_steps {config.value_warmup_steps} leaves no step of {config.steps} to train the policy"
        )
    return broken + _of_credit(config) + _of_loss(config)


def _of_credit(config: PPOConfig) -> list[str]:
    broken = []
    each, mini = config.responses_per_prompt, config.mini_batch_size
    if config.baseline in ("leave_one_out", "group_mean", "group_normalised", "tether") and each == 1:
        broken.append(
            f"baseline: {config.baseline} compares responses to the same prompt, and there is one; set "
            "responses_per_prompt: 4"
        )
    if mini is not None and mini % each and not config.batch_size % each:
        broken.append(
            f"mini_batch_size {mini} would tear apart the {each} responses to a prompt; use a multiple of {each}"
        )
    whole = config.baseline in ("leave_one_out", "group_mean", "group_normalised")
    if whole and config.gamma != 1:
        broken.append(f"baseline: {config.baseline} compares whole returns, which nothing discounts; set gamma: 1")
    if config.policy_loss == "sequence" and not whole:
        broken.append(
            "policy_loss: sequence has one ratio for a response, so all its tokens need the same advantage; use a "
            "baseline of whole responses, such as group_normalised"
        )
    if config.baseline != "gae" and config.lam != config.default_of("lam"):
        broken.append(f"lam belongs to GAE, and baseline is {config.baseline}; leave it out")
    if not config.has_critic and (idle := _given_to_the_critic(config)):
        broken.append(f"baseline: {config.baseline} has no value model; leave out {', '.join(idle)}")
    if _is_given_alone(config, "value_warmup_epochs", "value_warmup_steps"):
        broken.append("value_warmup_epochs without value_warmup_steps warms up nothing; set value_warmup_steps: 1")
    if config.value_lam is not None and config.value_target != "gae":
        broken.append("value_lam needs value_target: gae; reward_to_go is what a value_lam of 1 gives")
    if config.value_range is not None and not config.value_range[0] < config.value_range[1]:
        broken.append(f"value_range {list(config.value_range)} is not of the form [lowest, highest]")
    if config.value_range is not None and config.value_from_reward:
        broken.append("value_from_reward takes over a head without bounds; leave out value_range, or it")
    return broken


def _given_to_the_critic(config: PPOConfig) -> list[str]:
    """Keys of the value model that somebody chose. The config.yaml of a run has all keys, so there it says nothing
    that one is given."""
    built_by = ("value_from_reward", "value_reads_reference", "value_range", "value_warmup_steps")
    trained_by = [key for key in type(config).model_fields if key.startswith("value_") and key not in built_by]
    changed = [key for key in built_by if getattr(config, key) != config.default_of(key)]
    given = [key for key in trained_by if key in config.model_fields_set]
    return changed + (given if len(given) < len(trained_by) else [])


def _is_given_alone(config: PPOConfig, key: str, needed: str) -> bool:
    return key in config.model_fields_set and needed not in config.model_fields_set


def _of_loss(config: PPOConfig) -> list[str]:
    if config.dual_clip is not None and config.policy_loss != "clip":
        return [f"dual_clip bounds policy_loss: clip, not {config.policy_loss}; leave it out"]
    return []


def _of_kl(config: PPOConfig) -> list[str]:
    broken = []
    fitting = {"reward": ("k1",), "loss": ("exact", "k2", "k3"), "both": ("exact",)}[config.kl_in]
    if config.kl_estimator not in fitting:
        broken.append(
            f"kl_estimator {config.kl_estimator} has the wrong gradient with kl_in: {config.kl_in}; use "
            f"{' or '.join(fitting)}"
        )
    if config.kl_in != "reward" and config.whiten_rewards:
        broken.append(
            f"kl_in: {config.kl_in} prices the KL in the reward's units, which whiten_rewards changes; use one of them"
        )
    if config.top_k == 0 and config.top_p < 1:
        broken.append(
            f"top_p {config.top_p:g} without top_k keeps sets of any size, and they are stored; set top_k (50 to "
            "1000), or top_p: 1"
        )
    return broken


def _of_rollout(config: PPOConfig) -> list[str]:
    if config.rollout is None:
        return []
    broken = []
    if config.adapter_scope != "sequence":
        broken.append(
            "rollout: a server applies an adapter to the prompt too, and adapter_scope: response trains one that "
            "acts on the response alone; set adapter_scope: sequence"
        )
    if config.top_k or config.top_p < 1:
        broken.append(
            "rollout: a server does not say which tokens top_k and top_p kept, so its responses could not be "
            "scored as they were sampled; set top_k: 0 and top_p: 1"
        )
    return broken
