"""Everything that PPO can be told, in one place. The text under a field is its help and its documentation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from burnish.config.keys import FIXED, MEASURED, PATH, RUN
from burnish.config.model_config import ModelConfig
from burnish.rewards.part import RewardPart
from burnish.rewards.parts import AnyPart, parts_of


class PPOConfig(ModelConfig):
    """One PPO fine-tuning: model, rollout, reward, credit, update."""

    stage = section = "ppo"

    # ---- start
    sft: Annotated[str | None, PATH, RUN] = None
    """Folder of an SFT run (`burnish sft`): its adapter becomes the reference and the policy's start. Unset: the base
    model itself is both."""
    value_from_reward: bool = False
    """Start the value model from the reward model instead of from nothing. It then predicts sensible values at once;
    needs a reward of kind `model`."""

    # ---- generation
    temperature: Annotated[float, MEASURED] = Field(1.0, ge=0.001, le=1000)
    """Sampling temperature, applied when scoring too. Usual 0.7-1.0; lower explores less."""
    top_k: Annotated[int, MEASURED] = Field(50, ge=0, le=4096)
    """Keep the k most likely tokens, 0 for all. Usual 20-100; small sets read better and make the policy's head cheap.
    The reference always counts with its whole vocabulary: text it would not sample costs its full KL."""
    top_p: Annotated[float, MEASURED] = Field(0.95, ge=0.001, le=1)
    """Keep the smallest set of tokens with this probability, 1 for all. Usual 0.9-1; lower explores less. Below 1 it
    needs top_k: the sets are stored, and must not grow without bound."""

    # ---- reward and KL
    reward: Annotated[str | list[AnyPart], PATH, MEASURED] = "tldr"
    """What is learned: a rule's name, a Python function as `file.py:name`, the folder of a reward model, or a list of
    weighted parts of several kinds (docs/rewards.md)."""
    reward_timeout: float = Field(60.0, gt=0, le=1_000_000)
    """Seconds that a Python reward function may take for a batch. One that takes longer is stopped, asked again, and
    then asked for each response alone; what still fails is left out of the step."""
    kl_coef: float = Field(0.1, ge=0, le=1000)
    """Price of one nat of distance to the reference. Usual 0.01-0.2; higher keeps the text closer to where it was."""
    kl_in: Literal["reward", "loss", "both"] = "reward"
    """Where the KL is charged. `reward`: on every token, with the estimator k1, which acts on the token itself and on
    those before it. `loss`: as a term of the policy's loss, in the reward's units; it acts on each token's own state
    only. `both`: the exact KL in the loss for a token's own state, and in the reward for the tokens before it. In the
    loss, the exact KL is the policy's before top-k and top-p, so that tokens outside the kept set are pulled too."""
    kl_estimator: Literal["k1", "k2", "k3", "exact"] = "k1"
    """What is charged for a token, with d = logprob - ref_logprob. In the reward: `k1` = d. In the loss: `exact`, the
    whole sum over the vocabulary, `k2` = d^2/2 or `k3` = exp(-d) - 1 + d. In both: `exact`. Any other pair of place and
    estimator has the wrong gradient and is refused (docs/design.md)."""
    adaptive_kl_target: float | None = Field(None, ge=1e-6, le=1e6)
    """If set, kl_coef drifts so that the KL per response meets this many nats. Usual 3-10, and above what top-k and
    top-p cut off by themselves (about -log top_p a token): a lower target cannot be met, and kl_coef would only
    rise."""
    adaptive_kl_horizon: int = Field(10_000, ge=1, le=10**9)
    """Responses over which the adaptive kl_coef may change by 20 %. Usual: those of 10-100 steps. Smaller reacts
    faster."""
    stop_token_penalty: float = Field(0.0, ge=0, le=1e6)
    """Subtracted from the score of a response without a stop token. Usual 0-1; raises the share that finishes."""

    # ---- credit
    gamma: float = Field(0.99, gt=0, le=1)
    """Discount per token. 1.0 is usual for text; lower favours reward that comes soon, and so short answers
    (long ones where scores are negative): the sooner one ends, the less its score is discounted."""
    lam: float = Field(0.95, ge=0, le=1)
    """GAE's lambda. 1: advantages from whole returns (noisy); 0: from one-step predictions (biased). Below 1 it favours
    short answers a little too, until the value model has learned: the score fades on its way back from the end."""
    value_target: Literal["reward_to_go", "gae"] = "reward_to_go"
    """What the value model learns: the discounted rewards to come, or advantage + value."""
    whiten_rewards: bool = False
    """Scale per-token rewards to unit variance over the batch (the mean stays)."""
    whiten_advantages: bool = True
    """Scale advantages to mean 0 and variance 1 over the batch's real tokens. Steadies the step size."""

    # ---- update
    steps: int = Field(100, ge=1, le=10**9)
    """PPO steps of the run: each is one rollout and its updates. Usual 10-1000; the learning rates decay over
    them."""
    batch_size: Annotated[int, FIXED] = Field(32, ge=1, le=10**9)
    """Responses per PPO step. Usual 16-512. Larger: less noise; decoding grows slower than linearly."""
    epochs: int = Field(4, ge=1, le=10_000)
    """Passes over each rollout. Usual 1-4; more reuse the data harder and move the policy further."""
    mini_batch_size: int | None = Field(None, ge=1, le=10**9)
    """Responses per optimizer step; must divide batch_size. Usual: batch_size, or a part of it down to an eighth.
    Smaller: more and noisier updates per rollout. Unset: the whole rollout."""
    learning_rate: float = Field(1e-5, gt=0, le=1)
    """Policy learning rate. 1e-5 is careful; LoRA adapters often take 1e-4 to 1e-3."""
    value_learning_rate: float = Field(1e-4, gt=0, le=1)
    """Value model learning rate. Usual: one to ten times the policy's."""
    lr_schedule: Literal["linear", "constant"] = "linear"
    """`linear` decays both learning rates to 0 over `steps`."""
    clip_epsilon: float = Field(0.2, gt=0, lt=1)
    """PPO's clip: how far a token's probability ratio may move before it earns nothing more. Usual 0.1-0.3."""
    value_clip: float | None = Field(0.2, gt=0, le=1e6)
    """How far a value may move from the rollout's in one step before its loss stops counting; null for no limit.
    Usual 0.2, in the reward's units; smaller is steadier and slower."""
    value_warmup_steps: int = Field(0, ge=0, le=10**9)
    """First steps that train the value model only. 1-3 keep a bad critic from steering the policy."""
    target_kl_stop: float | None = Field(0.2, gt=0, le=1e6)
    """Ends a rollout's policy epochs early once the update's approximate KL exceeds this. Usual 0.02-0.2; null for no
    limit."""
    max_kl: float | None = Field(2.0, gt=0, le=1e6)
    """Stops a run whose policy is further than this from the reference, in nats per token, three steps in a row.
    Healthy runs stay below 1; null for no limit."""
    max_grad_norm: float = Field(1.0, gt=0, le=1e6)
    """Gradients are scaled down to this norm, policy and value apart. Usual 0.5-1; lower tames rare large updates."""

    def broken_rules(self) -> list[str]:
        broken = super().broken_rules()
        batch, mini = self.batch_size, self.mini_batch_size
        if mini is not None and batch % mini:
            lower, upper = batch // mini * mini, (batch // mini + 1) * mini
            way_out = f"{lower} or {upper}" if lower else f"{upper}"
            broken.append(f"batch_size {batch} is not a multiple of mini_batch_size {mini}; try batch_size {way_out}")
        if self.value_from_reward and not self._reward_model_parts:
            broken.append("value_from_reward needs a reward model; add a part of kind model to reward, or leave it out")
        if self.reward == []:
            broken.append("reward is an empty list; name at least one part")
        broken += self._broken_rules_of_kl()
        if self.value_warmup_steps >= self.steps:
            broken.append(
                f"value_warmup_steps {self.value_warmup_steps} leaves no step of {self.steps} to train the policy"
            )
        return broken

    def _broken_rules_of_kl(self) -> list[str]:
        broken = []
        fitting = {"reward": ("k1",), "loss": ("exact", "k2", "k3"), "both": ("exact",)}[self.kl_in]
        if self.kl_estimator not in fitting:
            broken.append(
                f"kl_estimator {self.kl_estimator} has the wrong gradient with kl_in: {self.kl_in}; use "
                f"{' or '.join(fitting)}"
            )
        if self.kl_in != "reward" and self.whiten_rewards:
            broken.append(
                f"kl_in: {self.kl_in} prices the KL in the reward's units, which whiten_rewards changes; use one of "
                "them"
            )
        if self.top_k == 0 and self.top_p < 1:
            broken.append(
                f"top_p {self.top_p:g} without top_k keeps sets of any size, and they are stored; set top_k (50 to "
                "1000), or top_p: 1"
            )
        return broken

    @property
    def _reward_model_parts(self) -> list[RewardPart]:
        return [part for part in self.reward_parts if part.kind == "model"]

    @property
    def reward_parts(self) -> list[RewardPart]:
        return parts_of(self.reward)

    @property
    def optimizer_steps_per_ppo_step(self) -> int:
        """Optimizer steps of each model for a full rollout."""
        return self.epochs * (self.batch_size // (self.mini_batch_size or self.batch_size))
