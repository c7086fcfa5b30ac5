"""A tiny random model of every family that burnish is tested with, built from its config class."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

WINDOW = 12  # shorter than prompts and responses together
SIZES: dict[str, Any] = {
    "vocab_size": 258,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "initializer_range": 0.3,
    "eos_token_id": 256,
    "bos_token_id": None,
    "pad_token_id": None,
}
LIKE_LLAMA = {"num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 64, "max_position_embeddings": 256}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
DELTA = {
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
WALKED: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": WINDOW},
    "olmo": {},
    "olmo2": {},
    "olmo3": {"sliding_window": WINDOW},
    "smollm3": {},
    "phi3": {},
    "glm4": {},
    "ministral": {"sliding_window": WINDOW},
    "ministral3": {},
    "granite": {"embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5},
    "cohere": {},
    "cohere2": {"sliding_window": WINDOW},
    "gemma": {},
    "gemma2": {"sliding_window": WINDOW, "query_pre_attn_scalar": 8},
    "gemma3_text": {"sliding_window": WINDOW, "query_pre_attn_scalar": 8},
    "qwen3_moe": {"num_experts": 4, **EXPERTS},
    "mixtral": {"num_local_experts": 4},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW},
    "starcoder2": {},
    "stablelm": {},
    "nemotron": {},
    "exaone4": {},
    "helium": {},
    "seed_oss": {},
}
"""Their layers are called one by one."""
WITH_OUR_CACHE: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gpt_neox": {"intermediate_size": 64},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32, "max_position_embeddings": 256},
    "bloom": {},
    "phi": {"intermediate_size": 64},
    "gemma4_text": LIKE_LLAMA
    | {
        "sliding_window": WINDOW,
        "global_head_dim": 8,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 258,
        "num_kv_shared_layers": 0,
    },
}
"""Called as a whole, with keys and values in our caches."""
WITH_STATES: dict[str, dict[str, Any]] = {
    "lfm2": LIKE_LLAMA | {"layer_types": ["conv", "full_attention"] * 2, "block_dim": 32, "block_ff_dim": 64},
    "qwen3_5_text": LIKE_LLAMA | DELTA,
    "falcon_h1": LIKE_LLAMA
    | {
        "mamba_d_ssm": 64,
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "mamba_n_groups": 1,
        "mamba_d_state": 8,
        "mamba_chunk_size": 16,
    },
}
"""And with the states of convolutions and recurrences beside them."""
ON_THEIR_OWN: dict[str, dict[str, Any]] = {"mamba": {"state_size": 8}}
"""Called as a whole, with a state that nothing can be shared of."""
FAMILIES = {name: LIKE_LLAMA | more for name, more in WALKED.items()} | WITH_OUR_CACHE | WITH_STATES | ON_THEIR_OWN


def family_model(family: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = type(AutoConfig.for_model(family))(**SIZES | FAMILIES[family])
    return AutoModelForCausalLM.from_config(config).eval()
