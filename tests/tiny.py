"""A two-layer random model and a byte-level tokenizer: everything real but the size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from burnish import PolicyModel, PPOConfig, PPOTrainer, SAPairs
from burnish.config import SFTConfig
from burnish.models.updates import Batch, cut
from burnish.rollout.local import LocalEngine
from burnish.rollout.rollout import Rollout
from burnish.runs.same_run import Now, Then, may_resume

TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
FAMILIES = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config, "mistral": MistralConfig}


def tiny_tokenizer(pad: bool = True, eos: bool = True, chat: bool = True) -> PreTrainedTokenizerFast:
    """256 bytes, then the special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special: dict[str, Any] = {}
    if eos:
        special["eos_token"] = "<eos>"
    if pad:
        special["pad_token"] = "<pad>"
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    if chat:
        fast.chat_template = TEMPLATE
    return fast


def tiny_model(
    family: str = "llama", layers: int = 2, seed: int = 0, context: int = 256, eos: bool = True, **more: Any
) -> Any:
    """Random weights, wide enough that the next token is neither certain nor uniform."""
    torch.manual_seed(seed)
    config = FAMILIES[family](
        num_hidden_layers=layers,
        max_position_embeddings=context,
        initializer_range=0.3,
        eos_token_id=256 if eos else None,
        bos_token_id=None,
        pad_token_id=None,
        tie_word_embeddings=True,
        **{
            "vocab_size": 258,
            "hidden_size": 32,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "intermediate_size": 64,
            **({"sliding_window": None} if family == "mistral" else {}),
            **more,
        },
    )
    return AutoModelForCausalLM.from_config(config).eval()


def tiny_config(**changes: Any) -> PPOConfig:
    defaults: dict[str, Any] = {
        "model_name": "tiny",
        "lora_r": 4,
        "lora_alpha": 8,
        "batch_size": 8,
        "max_new_tokens": 6,
        "epochs": 2,
        "steps": 10,
        "learning_rate": 1e-3,
        "prompt_cache_mb": 16,
        "max_kl": None,  # random weights go far
    }
    config = PPOConfig(**(defaults | changes))
    if not config.has_critic or "value_learning_rate" in changes:
        return config
    return config.model_copy(update={"value_learning_rate": 1e-3})


def tiny_trainer(reward: Any = None, layers: int = 2, **changes: Any) -> PPOTrainer:
    return PPOTrainer(tiny_config(**changes), reward or count_vowels, tiny_model(layers=layers), tiny_tokenizer())


def perturb(trainer: PPOTrainer, seed: int = 0, scale: float = 0.3) -> None:
    """Gives every adapter random weights, so that the roles really differ."""
    g = torch.Generator().manual_seed(seed)
    for p in [*trainer.policy.parameters(), *trainer.value_model.parameters()]:
        p.data += torch.randn(p.shape, generator=g) * scale


def generate(policy: PolicyModel, *given: Any, **more: Any) -> Rollout:
    return LocalEngine().generate(policy, *given, **more)


def encoded(trainer: PPOTrainer, prompts: list[str] | None = None) -> list[list[int]]:
    """Token ids, after the trainer has agreed where its adapters begin to act."""
    prompts = prompts or PROMPTS
    trainer.generator.agree_on_invocation(prompts)
    return trainer.generator.encoder.encode(prompts)


def assert_says_the_same(model: Any, prompts: list[list[int]], pairs: SAPairs) -> None:
    """One forward pass of `model` over each prompt and response gives the log-probabilities that the pairs have."""
    for row, prompt in enumerate(prompts):
        response = pairs["action"][row, : int(pairs.mask[row].sum())]
        with torch.no_grad():
            logits = model(torch.cat([torch.tensor(prompt), response])[None]).logits[0, len(prompt) - 1 : -1]
        expected = logits.float().log_softmax(1).gather(1, response[:, None]).squeeze(1)
        torch.testing.assert_close(pairs["logprob"][row, : len(response)], expected, atol=2e-4, rtol=1e-3)


def passes_of(mini_batch: Batch[SAPairs], max_tokens: float, most: int | None = None) -> list[SAPairs]:
    """A mini-batch as it is cut for training."""
    return [
        items.take(chosen) for items in mini_batch.items for chosen in cut(items.sizes, max_tokens, most, items.shared)
    ]


def watch_loss(trainer: Any, watch: Any) -> None:
    """`watch(batch, loss_of)` takes the place of a supervised trainer's loss."""
    learning = trainer.epochs.learning
    trainer.epochs.learning = replace(learning, loss_of=lambda batch: watch(batch, learning.loss_of))


def changes(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What a run of the same settings is told of another identity."""
    config = SFTConfig(demonstrations="-")
    return may_resume(Path("run"), Then(config.model_dump(), then), Now(config, now)).identity


def count_vowels(prompts: list[str], responses: list[str]) -> list[float]:
    return [sum(c in "aeiou" for c in r) / max(len(r), 1) for r in responses]


PROMPTS = [
    "a:",
    "hello there:",
    "the quick brown fox:",
    "one two three four five six:",
    "x y:",
    "why not:",
    "go:",
    "end:",
]
