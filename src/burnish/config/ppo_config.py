"""Everything that can be set, in one place. The text under a field is its help and its documentation."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from burnish.errors import ConfigError, nearest


class PPOConfig(BaseModel):
    """One PPO fine-tuning: model, rollout, reward, credit, update."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=(), allow_inf_nan=False
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(problems_of(error, type(self))) from None

    # ---- model
    model_name: str = "Qwen/Qwen3-0.6B-Base"
    """Base model: a hub id, a local folder, or `embedded/SmolLM2-135M-Instruct`, which needs no hub."""
    lora_r: int = Field(16, ge=1)
    """Rank of the adapters. Usual 8-64; a higher rank can learn more and costs memory."""
    lora_alpha: int = Field(32, ge=1)
    """Adapter scale: the adapter's output is multiplied by lora_alpha / lora_r. Usual: twice lora_r."""
    lora_dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout inside the adapters. PPO leaves it off (it would move the ratios before anything is learned); it is
    only written into the saved adapters. Usual 0-0.1."""
    lora_layers: Literal["all"] | int | list[int] = "all"
    """Layers with adapters: `all`, a number of top layers, or a list. Fewer top layers: faster and smaller, because
    the layers below are computed once per rollout; they learn a little less per step."""
    lora_target_modules: Literal["all-linear"] | list[str] = "all-linear"
    """Linear modules of a layer that get an adapter, for example [q_proj, v_proj]. Fewer: smaller and weaker."""
    adapter_scope: Literal["response", "sequence"] = "response"
    """Where the adapters act. `response`: on the end of the prompt and the response, so that the prompt is read once
    for all roles and epochs. `sequence`: everywhere, the ordinary LoRA that can be merged into the base."""
    device: str = "auto"
    """`auto` (a GPU if there is one), or a torch device such as `cpu` or `cuda:0`."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number format of the base. `auto`: float32 on CPU (bfloat16 is slow on most), bfloat16 on GPU."""

    # ---- prompts and generation
    chat_template: bool = False
    """Give prompts as a user's message through the tokenizer's chat template. Set it for instruct models."""
    system_prompt: str | None = None
    """System message for the chat template; without it the template's own default is used."""
    max_new_tokens: int = Field(10, ge=1)
    """Longest response. Usual 16-256: long enough for the reward to be reached; time grows linearly with it."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature, applied when scoring too. Usual 0.7-1.0; lower explores less."""
    top_k: int = Field(50, ge=0)
    """Keep the k most likely tokens, 0 for all. Usual 20-100; small sets read better and make the head cheap."""
    top_p: float = Field(0.95, gt=0, le=1)
    """Keep the smallest set of tokens with this probability, 1 for all. Usual 0.9-1; lower explores less. Below 1, set
    top_k too: without it the sets can be very large, and they are stored."""

    # ---- reward and KL
    reward: str = "tldr"
    """A named rule (`tldr`, `sentiment`), a Python function as `file.py:name`, or the folder of a reward model."""
    kl_coef: float = Field(0.1, ge=0)
    """Price of one nat of distance to the reference. Usual 0.01-0.2; higher keeps the text closer to where it was."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k1"
    """What is charged per token, with d = logprob - ref_logprob: k1 = d, k2 = d^2/2, k3 = exp(-d) - 1 + d."""
    adaptive_kl_target: float | None = Field(None, gt=0)
    """If set, kl_coef drifts so that the KL per response meets this many nats. Usual 3-10."""
    adaptive_kl_horizon: int = Field(10_000, ge=1)
    """Responses over which the adaptive kl_coef may change by 20 %. Usual: those of 10-100 steps. Smaller reacts
    faster."""
    stop_token_penalty: float = Field(0.0, ge=0)
    """Subtracted from the score of a response without a stop token. Usual 0-1; raises the share that finishes."""

    # ---- credit
    gamma: float = Field(0.99, gt=0, le=1)
    """Discount per token. 1.0 is usual for text; lower favours reward that comes soon."""
    lam: float = Field(0.95, ge=0, le=1)
    """GAE's lambda. 1: advantages from whole returns (noisy); 0: from one-step predictions (biased)."""
    value_target: Literal["reward_to_go", "gae"] = "reward_to_go"
    """What the value model learns: the discounted rewards to come, or advantage + value."""
    whiten_rewards: bool = False
    """Scale per-token rewards to unit variance over the batch (the mean stays)."""
    whiten_advantages: bool = True
    """Scale advantages to mean 0 and variance 1 over the batch's real tokens. Steadies the step size."""

    # ---- update
    steps: int = Field(100, ge=1)
    """PPO steps of the run: each is one rollout and its updates. Usual 10-1000; the learning rates decay over
    them."""
    batch_size: int = Field(32, ge=1)
    """Responses per PPO step. Usual 16-512. Larger: less noise; decoding grows slower than linearly."""
    epochs: int = Field(4, ge=1)
    """Passes over each rollout. Usual 1-4; more reuse the data harder and move the policy further."""
    mini_batch_size: int | None = Field(None, ge=1)
    """Responses per optimizer step; must divide batch_size. Usual: batch_size, or a part of it down to an eighth.
    Smaller: more and noisier updates per rollout. Unset: the whole rollout."""
    micro_batch_size: int | None = Field(None, ge=1)
    """Most responses in one forward and backward pass. Unset: as many as activation_mb allows. Changes memory and
    speed, never the result."""
    activation_mb: int = Field(512, ge=1)
    """Memory for what one training pass keeps until its gradients are computed; the micro-batch is chosen from it.
    Usual: 256-4096. Changes memory and speed, never the result."""
    learning_rate: float = Field(1e-5, gt=0)
    """Policy learning rate. 1e-5 is careful; LoRA adapters often take 1e-4 to 1e-3."""
    value_learning_rate: float = Field(1e-4, gt=0)
    """Value model learning rate. Usual: one to ten times the policy's."""
    lr_schedule: Literal["linear", "constant"] = "linear"
    """`linear` decays both learning rates to 0 over `steps`."""
    clip_epsilon: float = Field(0.2, gt=0, lt=1)
    """PPO's clip: how far a token's probability ratio may move before it earns nothing more. Usual 0.1-0.3."""
    value_clip: float | None = Field(0.2, gt=0)
    """How far a value may move from the rollout's in one step before its loss stops counting; null for no limit.
    Usual 0.2, in the reward's units; smaller is steadier and slower."""
    value_warmup_steps: int = Field(0, ge=0)
    """First steps that train the value model only. 1-3 keep a bad critic from steering the policy."""
    target_kl_stop: float | None = Field(None, gt=0)
    """Ends a rollout's policy epochs early once the update's approximate KL exceeds this. Usual 0.02-0.1."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are scaled down to this norm, policy and value apart. Usual 0.5-1; lower tames rare large updates."""

    # ---- run
    seed: int = Field(0, ge=0, lt=2**31)
    """Sampling, data order and initialisation all follow from it."""
    prompt_cache_mb: int = Field(1024, ge=0)
    """Memory for the base's reading of prompts that may come back in a later step (response scope). Usual: what the
    machine can spare; with room for all prompts each is read once in the whole run."""

    @field_validator("*", mode="before")
    @classmethod
    def _means_what_it_says(cls, value: Any, info: ValidationInfo) -> Any:
        """YAML's `yes` is no number, and Python's None is written null."""
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError("this key is not a yes or no")
        if value == "None":
            raise ValueError("for nothing, write null")
        return value

    @field_validator("lora_layers", "lora_target_modules")
    @classmethod
    def _names_something(cls, value: Any) -> Any:
        if (
            value == []
            or (isinstance(value, int) and value < 1)
            or (isinstance(value, list) and any(isinstance(v, int) and v < 0 for v in value))
        ):
            raise ValueError("nothing to adapt")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Rules between keys, all told at once (each on a line of its own)."""
        broken = []
        batch, mini = self.batch_size, self.mini_batch_size
        if mini is not None and batch % mini:
            lower, upper = batch // mini * mini, (batch // mini + 1) * mini
            way_out = f"{lower} or {upper}" if lower else f"{upper}"
            broken.append(f"batch_size {batch} is not a multiple of mini_batch_size {mini}; try batch_size {way_out}")
        if self.system_prompt is not None and not self.chat_template:
            broken.append("system_prompt is part of a chat template; set chat_template: true, or leave it out")
        if self.value_warmup_steps >= self.steps:
            broken.append(
                f"value_warmup_steps {self.value_warmup_steps} leaves no step of {self.steps} to train the policy"
            )
        if broken:
            raise ValueError("\n".join(broken))
        return self

    @property
    def optimizer_steps_per_ppo_step(self) -> int:
        """Optimizer steps of each model for a full rollout."""
        return self.epochs * (self.batch_size // (self.mini_batch_size or self.batch_size))


# Where pydantic's own words would mislead: what the key takes.
TAKES = {
    "lora_layers": "takes `all`, a number of top layers, or a list of layer numbers from 0",
    "lora_target_modules": "takes `all-linear` or a list such as [q_proj, v_proj]",
    "reward": "takes a rule's name, `file.py:function` or a folder, as text; "
    "a function itself goes to PPOTrainer(config, reward=...)",
    "run_name": "takes letters, digits, dots, dashes and underscores, at most 64, and begins with a letter or digit; "
    "a number or a date goes in quotes",
}
# Names that other trainers use for the same thing.
ELSEWHERE = {
    "lr": "learning_rate",
    "gae_lambda": "lam",
    "lambda": "lam",
    "clip_range": "clip_epsilon",
    "cliprange": "clip_epsilon",
    "ppo_epochs": "epochs",
    "num_ppo_epochs": "epochs",
    "init_kl_coef": "kl_coef",
    "max_length": "max_new_tokens",
}


def problems_of(error: ValidationError, config: type[BaseModel]) -> list[str]:
    """One line for each wrong key, with the nearest name for a key that does not exist."""
    problems: dict[str, str] = {}  # by key: a field with several types reports each of them, and one line is enough
    for item in error.errors():
        sentence = item["msg"].removeprefix("Value error, ")
        if not item["loc"]:  # rules between keys, a line each
            problems |= {line: line for line in sentence.split("\n")}
            continue
        key = str(item["loc"][0])
        if item["type"] == "extra_forbidden":
            known = ELSEWHERE.get(key)
            hint = f"; it is called {known!r} here" if known else nearest(key, config.model_fields)
            problem = f"unknown key {key!r}{hint}"
        elif item["type"] == "missing":
            problem = f"{key} is missing; add a line `{key}: ...` (`burnish config {key}` explains it)"
        else:
            problem = f"{key}: {TAKES.get(key, sentence)} (got {item['input']!r})"
        problems.setdefault(key, problem)
    return list(problems.values())
