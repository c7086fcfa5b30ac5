"""What every stage has in common: the model, its adapters, how texts become tokens, the seed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from burnish.config.keys import BASE, DATA, FIXED, MEASURED, PATH, marked
from burnish.config.rollout_config import ServedRollout
from burnish.errors import ConfigError, Problem, nearest

EMBEDDED_NAME = "embedded/SmolLM2-135M-Instruct"
REVISION = r"^\w[\w.-]*(/\w[\w.-]*)*$"  # a commit, tag or branch; no path that leads elsewhere


class ModelConfig(BaseModel):
    """A base model with adapters, and the texts that go through it."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=(), allow_inf_nan=False
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(problems_of(error, type(self))) from None

    stage: ClassVar[str] = ""
    """Which stage it configures: the name of its part of a pipeline's folder."""
    section: ClassVar[str] = ""
    """And of its section in a pipeline's file."""
    command: ClassVar[str] = ""
    """And of its command."""

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """With some keys changed, and checked like any other config."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | dict(update or {}))

    def __setattr__(self, name: str, value: Any) -> None:
        """Frozen: other parts have been made from it already."""
        raise AttributeError(f"a config does not change; make another one: config.model_copy(update={{{name!r}: ...}})")

    # ---- model
    model_name: Annotated[str, FIXED, BASE, PATH] = "Qwen/Qwen3-0.6B-Base"
    """Base model: a hub id, a local folder, a .gguf file (converted once), or `embedded/SmolLM2-135M-Instruct`, which
    needs no hub."""
    revision: Annotated[str | None, FIXED, BASE] = Field(None, pattern=REVISION)
    """Which version of a hub model: a commit, a tag or a branch. Unset: the newest. A commit stays what it is; for a
    folder or a file it is left out."""
    lora_r: Annotated[int, FIXED, BASE] = Field(16, ge=1, le=65_536)
    """Rank of the adapters. Usual 8-64; a higher rank can learn more and costs memory."""
    lora_alpha: Annotated[int, FIXED, BASE] = Field(32, ge=1, le=1_000_000)
    """Adapter scale: the adapter's output is multiplied by lora_alpha / lora_r. Usual: twice lora_r."""
    lora_dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout inside the adapters. PPO leaves it off (it would move the ratios before anything is learned); it is
    only written into the saved adapters. Usual 0-0.1."""
    lora_layers: Annotated[Literal["all"] | int | list[int], FIXED, BASE] = "all"
    """Layers with adapters: `all`, a number of top layers, or a list. Fewer top layers: faster and smaller, because
    the layers below are computed once per rollout; they learn less per step."""
    lora_target_modules: Annotated[Literal["all-linear"] | list[str], FIXED, BASE] = "all-linear"
    """Linear modules of a layer that get an adapter, for example [q_proj, v_proj]. Fewer: smaller and weaker."""
    adapter_scope: Annotated[Literal["response", "sequence"], FIXED, BASE] = "response"
    """Where the adapters act. `response`: on the end of the prompt and the response, so that the prompt is read once
    for all roles and epochs. `sequence`: everywhere, the ordinary LoRA that can be merged into the base."""
    device: Annotated[str, BASE] = "auto"
    """`auto` (a GPU if there is one), or a torch device such as `cpu` or `cuda:0`."""
    dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], FIXED, BASE] = "auto"
    """Number format of the base. `auto`: float32 on CPU (bfloat16 is slow on most), bfloat16 on GPU."""
    quantize: Annotated[Literal["int8", "nf4"] | None, FIXED, BASE] = None
    """Store the base's linear layers in fewer bits: `int8` (a byte a weight, by torchao) or `nf4` (half a byte, by
    bitsandbytes). Unset: as dtype says, which adapters, heads and embeddings keep. Less memory for the base; int8 is
    close to the plain base, nf4 further from it, and steps take longer. Needs `pip install "burnish[quantize]"`."""
    shard: Annotated[bool, BASE] = False
    """Spread the base's layers over the processes of the run (FSDP2), so that each holds its part of them. For a base
    that one device cannot hold: less memory, slower steps, the same results. One process holds everything anyway."""
    shard_offload: Annotated[bool, BASE] = False
    """Keep these parts in the machine's memory, and only the layer that computes on the GPU. Needs shard; slower
    still."""

    # ---- prompts and generation
    chat_template: Annotated[bool, FIXED, BASE] = False
    """Give prompts as a user's message through the tokenizer's chat template. Set it for instruct models."""
    system_prompt: Annotated[str | None, FIXED, BASE] = None
    """System message for the chat template; without it the template's own default is used."""
    max_new_tokens: Annotated[int, MEASURED] = Field(10, ge=1, le=10_000_000)
    """Longest response. Usual 16-256: long enough for the reward to be reached; time grows linearly with it."""

    # ---- the machine and the dice
    seed: Annotated[int, FIXED] = Field(0, ge=0, lt=2**31)
    """Sampling, data order and initialisation all follow from it."""
    prompt_cache_mb: int = Field(1024, ge=0, le=10**9)
    """Memory for the base's reading of prompts that may come back in a later step (response scope). Usual: what the
    machine can spare; with room for all prompts each is read once in the whole run."""
    micro_batch_size: int | None = Field(None, ge=1, le=10**9)
    """Most responses in one forward and backward pass. Unset: as many as activation_mb allows. Changes memory and
    speed, never the result."""
    activation_mb: int = Field(512, ge=1, le=10**9)
    """Memory for what one training pass keeps until its gradients are computed; the micro-batch is chosen from it.
    Usual: 256-4096. Changes memory and speed, never the result."""

    @field_validator("*", mode="before")
    @classmethod
    def _check_value(cls, value: Any, info: ValidationInfo) -> Any:
        """YAML's `yes` is no number, and Python's None is written null."""
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError("this key does not take true or false")
        if value == "None":
            raise ValueError("to unset this key, write null")
        if value == "" and str(info.field_name) in marked(cls, DATA, PATH):
            raise ValueError("this key is empty")
        if isinstance(value, str) and re.search("[\0\ud800-\udfff]", value):
            raise ValueError("this text holds characters that no file can")
        return value

    @field_validator("lora_layers", "lora_target_modules")
    @classmethod
    def _check_layers(cls, value: Any) -> Any:
        if (
            value == []
            or (isinstance(value, int) and not 1 <= value <= 10**6)
            or (isinstance(value, list) and any(isinstance(v, int) and v < 0 for v in value))
        ):
            raise ValueError("nothing to adapt")
        return value

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        """Rules between keys; all that are broken are reported at once, each on a line of its own."""
        broken = self.broken_rules()
        if broken:
            raise ValueError("\n".join(broken))
        return self

    def broken_rules(self) -> list[str]:
        """Rules between keys that do not hold, each as a sentence. A stage with rules of its own adds them."""
        broken = []
        if self.system_prompt is not None and not self.chat_template:
            broken.append("system_prompt is part of a chat template; set chat_template: true, or leave it out")
        if self.shard and self.quantize is not None:
            broken.append("shard does not go with quantize: FSDP cannot cut weights that are stored in fewer bits")
        if self.shard_offload and not self.shard:
            broken.append("shard_offload is about the parts of a sharded base; set shard: true, or leave it out")
        return broken


# Where pydantic's own words would mislead: what the key takes.
TAKES = {
    "lora_layers": "takes `all`, a number of top layers, or a list of layer numbers from 0",
    "lora_target_modules": "takes `all-linear` or a list such as [q_proj, v_proj]",
    "reward": "takes a rule's name, `file.py:function` or a folder, as text, or a list of parts such as "
    "{kind: rule, name: repetition, weight: 0.2}; a function itself goes to PPOTrainer(config, reward=...)",
    "revision": "takes a commit, a tag or a branch of the model's repository; all digits go in quotes",
    "rollout": "takes a mapping such as {engine: vllm, url: http://127.0.0.1:8000}",
    "run_name": "takes letters, digits, dots, dashes and underscores, at most 64, and begins with a letter or digit; "
    "a number or a date goes in quotes",
}
TYPES = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "takes a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "takes a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "takes true or false"),
    "string_type": "takes text",
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


def problems_of(error: ValidationError, config: type[BaseModel]) -> list[Problem]:
    """One line for each wrong key, with the nearest name for a key that does not exist."""
    # By key: a field with several types reports each of them, and one line is enough.
    unknown = {str(i["loc"][0]): i["input"] for i in error.errors() if i["type"] == "extra_forbidden" and i["loc"]}
    meant = [command for key, given in unknown.items() if (command := _other_command(key, given))]
    if meant and any(item["type"] == "missing" for item in error.errors()):  # not a slip: the whole file is
        return [Problem(f"this is a file for `burnish {meant[0]}`, not for `burnish {getattr(config, 'command', '')}`")]
    problems: dict[str, Problem] = {}
    for item in error.errors():
        sentence = item["msg"].removeprefix("Value error, ")
        if not item["loc"]:  # rules between keys, a line each
            problems |= {line: Problem(line) for line in sentence.split("\n")}
            continue
        key = str(item["loc"][0])
        number = next((place for place in item["loc"] if isinstance(place, int)), None)
        if key in ("reward", "eval_reward") and number is not None:
            problems.setdefault(f"{key} {number}", Problem(f"{key}, part {number + 1}: {sentence}", key))
            continue
        if item["loc"][1:] == ("str",) and isinstance(item["input"], list):
            continue  # a list of parts was meant; what is wrong with it is reported by the other errors
        if key == "rollout" and len(item["loc"]) > 1:  # a mapping of its own
            inner = str(item["loc"][1])
            unknown_key = f"unknown key{nearest(inner, ServedRollout.model_fields)}"
            said = {"extra_forbidden": unknown_key, "missing": "is missing"}.get(item["type"], sentence)
            problems.setdefault(f"{key}.{inner}", Problem(f"{key}.{inner}: {said}", f"{key}.{inner}"))
            continue
        if item["type"] == "extra_forbidden":
            known, command = ELSEWHERE.get(key), _other_command(key, item["input"])
            hint = f"; it is called {known!r} here" if known else nearest(key, config.model_fields)
            hint = f"; a file with it is for `burnish {command}`" if command else hint
            problem = f"unknown key {key!r}{hint}"
        elif item["type"] == "missing":
            problem = f"{key} is missing; add a line `{key}: ...` (`burnish config {key}` explains it)"
        else:
            problem = f"{key}: {TAKES.get(key) or TYPES.get(item['type'], sentence)} (got {item['input']!r:.80})"
        problems.setdefault(key, Problem(problem, key))
    return list(problems.values())


def _other_command(key: str, given: Any) -> str | None:
    """The command that a file with such a key was written for."""
    others = [kind for kind in _kinds(ModelConfig) if kind.command]
    if isinstance(given, dict) and key in ("model", *(kind.section for kind in others)):
        return "pipeline"
    return next((kind.command for kind in others if key in marked(kind, DATA)), None)


def _kinds(config: type[ModelConfig]) -> Iterator[type[ModelConfig]]:
    for kind in config.__subclasses__():
        yield kind
        yield from _kinds(kind)
