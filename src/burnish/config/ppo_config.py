"""Everything that PPO can be told, in one place. The text under a field is its help and its documentation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from burnish.config.keys import FIXED, MEASURED, PATH, RUN
from burnish.config.model_config import ModelConfig
from burnish.config.ppo_rules import broken_rules
from burnish.config.recipes import RECIPES, Recipe
from burnish.config.rollout_config import ServedRollout
from burnish.rewards.part import RewardPart
from burnish.rewards.parts import AnyPart, parts_of


class PPOConfig(ModelConfig):
    """One PPO fine-tuning: model, rollout, reward, credit, update."""

    stage = section = "ppo"

    recipe: Annotated[Recipe, FIXED] = "ppo"
    """A group of keys set at once (docs/recipes.md). `ppo` sets none: it is what the defaults describe. What the config
    gives itself wins. `burnish config --recipe rloo` prints what a recipe sets."""

    # ---- start
    sft: Annotated[str | None, PATH, RUN] = None
    """What training starts from, and the reference that the KL is measured to: folder of an SFT run (`burnish sft`), or
    of any LoRA in peft's format, which is merged into the base (docs/models.md). Unset: the base model itself."""
    value_from_reward: bool = False
    """Start the value model from the reward model (of an ensemble, its first) instead of from nothing. It then predicts
    sensible values at once; needs a reward of kind `model` or `ensemble`."""

    # ---- generation
    temperature: Annotated[float, MEASURED] = Field(1.0, ge=0.001, le=1000)
    """Sampling temperature, applied when scoring too. Usual 0.7-1.0; lower explores less."""
    top_k: Annotated[int, MEASURED] = Field(50, ge=0, le=4096)
    """Keep the k most likely tokens, 0 for all. Usual 20-100; small sets read better and make the policy's head cheap.
    The reference always counts with its whole vocabulary: text it would not sample costs its full KL."""
    top_p: Annotated[float, MEASURED] = Field(0.95, ge=0.001, le=1)
    """Keep the smallest set of tokens with this probability, 1 for all. Usual 0.9-1; lower explores less. Below 1 it
    needs top_k: the sets are stored, and must not grow without bound."""
    rollout: ServedRollout | None = None
    """A server that generates the responses of every step, such as {engine: vllm, url: "http://127.0.0.1:8000"}
    (docs/scaling.md). Unset: burnish decodes them itself, as it does held-out answers in any case."""

    # ---- reward and KL
    reward: Annotated[str | list[AnyPart], PATH, MEASURED] = "tldr"
    """What is learned: a rule's name, a Python function as `file.py:name`, the folder of a reward model, or a list of
    weighted parts of several kinds (docs/rewards.md)."""
    reward_timeout: float = Field(60.0, gt=0, le=1_000_000)
    """Seconds that a Python reward function may take for a batch. One that takes longer is stopped, asked again, and
    then asked for each response alone; what still fails is left out of the step."""
    reward_against: Annotated[Literal["nothing", "start", "reference"], FIXED] = "nothing"
    """What scores count from in training. `start`: the mean score of the first step's responses, which the start model
    gave. `reference`: the score of each prompt's own reference answer. Metrics and verdict show scores as they are."""
    reward_shape: Literal["linear", "sigmoid"] = "linear"
    """`sigmoid` squeezes what is left into 0 to 1 (PAR): an answer that a reward model finds absurdly good earns
    little more than a good one, so there is less to gain from its mistakes. Needs reward_against."""
    reward_clip: float | None = Field(None, gt=0, le=1e6)
    """Scores beyond this many above or below count as this in training. Usual 3-10 for a reward model; unset: none."""
    overlong_tokens: int = Field(0, ge=0, le=10_000_000)
    """Over the last so many of max_new_tokens, a response loses up to overlong_penalty, linearly. 0: never."""
    overlong_penalty: float = Field(1.0, ge=0, le=1e6)
    """What a response of max_new_tokens loses, with overlong_tokens."""
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
    top-p cut off by themselves (-log of the mass that they keep, a token): a lower target cannot be met, and kl_coef
    would only rise."""
    adaptive_kl_horizon: int = Field(10_000, ge=1, le=10**9)
    """Responses over which the adaptive kl_coef may change by 20 %. Usual: those of 10-100 steps. Smaller reacts
    faster."""
    stop_token_penalty: float = Field(0.0, ge=0, le=1e6)
    """Subtracted from the score of a response without a stop token. Usual 0-1; raises the share that finishes."""

    # ---- credit
    baseline: Annotated[
        Literal["gae", "leave_one_out", "group_mean", "group_normalised", "batch_mean", "tether"], FIXED
    ] = "gae"
    """What a reward is compared with. `gae`: the value model's predictions, token by token. From other responses to the
    same prompt, without a value model: `leave_one_out` (their mean, RLOO), `group_mean` (the mean of all, Dr. GRPO),
    `group_normalised` (that, divided by their spread, GRPO). From the whole batch: `batch_mean` (REINFORCE++).
    `tether`: leave_one_out mixed with the value model, by a weight that is fitted on earlier batches."""
    gamma: float = Field(0.99, gt=0, le=1)
    """Discount per token. 1.0 is usual for text; lower favours reward that comes soon, and so short answers
    (long ones where scores are negative): the sooner one ends, the less its score is discounted."""
    lam: float = Field(0.95, ge=0, le=1)
    """GAE's lambda. 1: advantages from whole returns (noisy); 0: from one-step predictions (biased). Below 1 it favours
    short answers a little too, until the value model has learned: the score fades on its way back from the end."""
    value_target: Literal["reward_to_go", "gae"] = "reward_to_go"
    """What the value model learns: the discounted rewards to come, or advantage + value."""
    value_lam: float | None = Field(None, ge=0, le=1)
    """Lambda of the value model's own target, with value_target: gae. Unset: lam. (1 is reward_to_go.)"""
    value_range: Annotated[tuple[float, float] | None, FIXED] = None
    """Lowest and highest value that the value model can predict, such as [0, 1] for a reward within it. It then starts
    in the middle, and no outlier can pull it out."""
    value_reads_reference: Annotated[bool, FIXED] = False
    """Let the value model read the prompt's reference answer too (a field of the prompts' rows). It knows better what
    a response is worth; the policy never sees the reference."""
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
    responses_per_prompt: Annotated[int, FIXED] = Field(1, ge=1, le=10**6)
    """Responses to each prompt of a step; must divide batch_size, which stays the number of responses. Usual 1, or 2-16
    to compare them with each other. What the base has read of a prompt is kept and read once for all of them."""
    epochs: int = Field(4, ge=1, le=10_000)
    """Passes over each rollout. Usual 1-4; more reuse the data harder and move the policy further."""
    mini_batch_size: int | None = Field(None, ge=1, le=10**9)
    """Responses per optimizer step; must divide batch_size. Usual: batch_size, or a part of it down to an eighth.
    Smaller: more and noisier updates per rollout. Unset: the whole rollout. Responses to one prompt stay together."""
    value_epochs: int | None = Field(None, ge=1, le=10_000)
    """Passes of the value model over each rollout. Unset: epochs. Usual: as many as the policy's, or a few more."""
    learning_rate: float = Field(1e-5, gt=0, le=1)
    """Policy learning rate. 1e-5 is careful; LoRA adapters often take 1e-4 to 1e-3."""
    value_learning_rate: float = Field(1e-4, gt=0, le=1)
    """Value model learning rate. Usual: one to ten times the policy's."""
    lr_schedule: Literal["linear", "constant"] = "linear"
    """`linear` decays both learning rates to 0 over `steps`."""
    policy_loss: Literal["clip", "dppo", "cispo", "sequence"] = "clip"
    """What bounds an update. `clip`: PPO's, a token whose ratio has moved by clip_epsilon earns nothing more. `dppo`: a
    token whose probability has moved by clip_epsilon does; rare tokens, whose ratios are noise, may move freely.
    `cispo`: a token's weight is clipped, never its gradient. `sequence`: one ratio for the whole response, the
    geometric mean of its tokens' (GSPO); it needs clip_epsilon of about 3e-4."""
    clip_epsilon: float = Field(0.2, gt=0, lt=1)
    """PPO's clip: how far a token's probability ratio may move before it earns nothing more. Usual 0.1-0.3."""
    clip_high: float | None = Field(None, gt=0, le=100)
    """The clip's upper side. Unset: clip_epsilon. Usual 0.28: unlikely tokens may then rise further, which keeps
    variety."""
    dual_clip: float | None = Field(None, gt=1, le=1000)
    """Bounds the loss of a token with a negative advantage at this many times the advantage. Usual 3; unset: no
    bound. With policy_loss: clip."""
    entropy_coef: float = Field(0.0, ge=0, le=1000)
    """Worth of one nat of entropy per token, in the reward's units. Usual 0-0.01; higher keeps answers varied."""
    aggregate: Literal["tokens", "sequences", "constant"] = "tokens"
    """How tokens add up to the policy's loss. `tokens`: each counts the same. `sequences`: each response counts the
    same. `constant`: their sum is divided by max_new_tokens, so that a long response's tokens do not count for less."""
    value_clip: float | None = Field(0.2, gt=0, le=1e6)
    """How far a value may move from the rollout's in one step before its loss stops counting; null for no limit.
    Usual 0.2, in the reward's units; smaller is steadier and slower."""
    value_warmup_steps: int = Field(0, ge=0, le=10**9)
    """First steps that train the value model only. 1-3 keep a bad critic from steering the policy."""
    value_warmup_epochs: int | None = Field(None, ge=1, le=10_000)
    """Passes of the value model over each rollout of these steps, unclipped. Unset: value_epochs. Usual 4-16."""
    target_kl_stop: float | None = Field(0.2, gt=0, le=1e6)
    """Ends a rollout's policy epochs early once the update's approximate KL exceeds this. Usual 0.02-0.2; null for no
    limit."""
    max_kl: float | None = Field(2.0, gt=0, le=1e6)
    """Stops a run whose policy is further than this from the reference, in nats per token, three steps in a row.
    Healthy runs stay below 1; null for no limit."""
    max_grad_norm: float = Field(1.0, gt=0, le=1e6)
    """Gradients are scaled down to this norm, policy and value apart. Usual 0.5-1; lower tames rare large updates."""

    @model_validator(mode="before")
    @classmethod
    def _apply_recipe(cls, values: Any) -> Any:
        """What the recipe sets, where nothing else is given."""
        recipe = values.get("recipe") if isinstance(values, dict) else None
        return RECIPES[recipe].keys | values if isinstance(recipe, str) and recipe in RECIPES else values

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """With some keys changed; another recipe changes all its keys, and those of the one before that are as it set
        them."""
        update = dict(update or {})
        if update.get("recipe") in RECIPES:
            before = RECIPES[self.recipe].keys
            left = {key: self.default_of(key) for key, value in before.items() if getattr(self, key) == value}
            update = left | RECIPES[update["recipe"]].keys | update
        return super().model_copy(update=update, deep=deep)

    def broken_rules(self) -> list[str]:
        return super().broken_rules() + broken_rules(self)

    @classmethod
    def default_of(cls, key: str) -> Any:
        """What a key is where nobody sets it."""
        return cls.model_fields[key].default

    @property
    def has_critic(self) -> bool:
        """Whether a value model is built and trained."""
        return self.baseline in ("gae", "tether")

    @property
    def prompts_per_step(self) -> int:
        return self.batch_size // self.responses_per_prompt

    @property
    def needs_references(self) -> str:
        """The keys, in words, for which every prompt needs a reference answer."""
        needs = {"value_reads_reference": self.value_reads_reference}
        needs["reward_against: reference"] = self.reward_against == "reference"
        return " and ".join(key for key, needed in needs.items() if needed)

    @property
    def reward_parts(self) -> list[RewardPart]:
        return parts_of(self.reward)

    @property
    def optimizer_steps_per_ppo_step(self) -> int:
        """Optimizer steps of the policy for a full rollout."""
        return self.epochs * (self.batch_size // (self.mini_batch_size or self.batch_size))
