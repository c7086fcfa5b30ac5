"""One model family: how it embeds, masks, rotates, walks its layers, norms and forms logits. Nothing else knows.

burnish calls a decoder's layers one by one, so that it can stop at the trunk, share a prefix and reserve the KV cache
once. A family that does more between its layers than Llama does belongs here, and nowhere else.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from burnish.decoder import attention, fast_linear, fast_norm
from burnish.decoder.fast_linear import times_weight
from burnish.decoder.key_values import Recorder
from burnish.decoder.shared_context import causal_mask, positions_of
from burnish.errors import InputError, is_out_of_memory

FAMILIES = "Llama, Qwen2, Qwen3 or Mistral"


class Decoder:
    """A causal language model of a family built like Llama, frozen."""

    def __init__(self, model: Any) -> None:
        model.eval()  # for good: dropout would move the ratios before anything is learned
        self.model = model.requires_grad_(False)
        self.config = model.config
        self.stack = model.get_decoder()
        for part in ("embed_tokens", "layers", "norm", "rotary_emb"):
            if not hasattr(self.stack, part):
                raise InputError(
                    f"{type(model).__name__} is not built like a Llama, Qwen or Mistral decoder (it has no {part!r}); "
                    "use a model of one of those families"
                )
        self.layers = self.stack.layers
        self.num_layers = len(self.layers)
        self.head: Tensor = model.get_output_embeddings().weight  # [V, H]
        self._adopt()

    # ------------------------------------------------------------------------------------------------- the walk

    def embed(self, ids: Tensor) -> Tensor:
        return self.stack.embed_tokens(ids)  # [B, S, H]

    def run_layers(self, hidden: Tensor, key_mask: Tensor, cache: Any, layers: range) -> Tensor:
        """Hidden states at the last positions of `key_mask` through some layers.  [B, Q, H] -> [B, Q, H]"""
        num_queries = hidden.shape[1]
        positions = positions_of(key_mask)[:, -num_queries:]
        shared = cache.shared
        own = key_mask if shared is None else key_mask[:, shared.width :]
        mask = attention.Blocks.of(causal_mask(own, num_queries), self._heads_per_key, hidden.dtype, shared)
        rotary = self.stack.rotary_emb(hidden, positions)
        for i in layers:
            hidden = self.layers[i](
                hidden,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                position_embeddings=rotary,
            )
        return hidden

    def norm(self, hidden: Tensor) -> Tensor:
        return self.stack.norm(hidden)

    def logits(self, states: Tensor) -> Tensor:
        """Of normed states.  [N, H] -> [N, V]"""
        return times_weight(states, self.head)

    # ------------------------------------------------------------------------------------------------- its sizes

    @property
    def hidden_size(self) -> int:
        return self.head.shape[1]

    @property
    def number_bytes(self) -> int:
        return self.head.element_size()

    def key_shape(self, width: int) -> tuple[int, int, int]:
        """Of the keys of one layer: heads, tokens, numbers."""
        config = self.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return config.num_key_value_heads, width, head_dim

    @property
    def key_bytes(self) -> int:
        """Memory of one token's keys and values in one layer."""
        key_heads, _, head_dim = self.key_shape(0)
        return 2 * key_heads * head_dim * self.number_bytes

    @property
    def activation_bytes(self) -> int:
        """What one layer of a training pass keeps of each token until its gradient is computed.

        Two residual streams and two normed ones, the queries and the attention's result (each as computed and as laid
        out for the next product), keys and values, and four tensors of the feed-forward part.
        """
        config = self.config
        _, _, head_dim = self.key_shape(0)
        numbers = 4 * config.hidden_size + 4 * config.num_attention_heads * head_dim + 4 * config.intermediate_size
        return numbers * self.number_bytes + self.key_bytes

    @property
    def work_bytes(self) -> int:
        """What one layer holds of each token while it works, without gradients."""
        return (3 * self.config.intermediate_size + 6 * self.config.hidden_size) * self.number_bytes

    @property
    def _heads_per_key(self) -> int:
        return self.config.num_attention_heads // self.config.num_key_value_heads

    # --------------------------------------------------------------------------------------------- the self-check

    @torch.no_grad()
    def _adopt(self) -> None:
        """Walking the layers ourselves must give the logits that the model's own forward pass gave, or we refuse it."""
        # Ordinary tokens from all over the vocabulary. The first ids are often control tokens, which a model hardly saw
        # in training: their rounding errors are fifty times larger.
        ids = torch.linspace(0, len(self.head) - 1, 18, device=self.head.device).long()[None, 1:-1]  # [1, 16]
        theirs = self.model(input_ids=ids, use_cache=False).logits.float()
        self.model.set_attn_implementation(attention.NAME)
        for module in self.stack.modules():
            fast_linear.adopt(module)
            fast_norm.adopt(module)
        try:
            hidden = self.run_layers(self.embed(ids), torch.ones_like(ids).bool(), Recorder(), range(self.num_layers))
            ours = self.logits(self.norm(hidden)[0]).float()
            difference = float((ours - theirs[0]).abs().max() / theirs.abs().max())
        except (TypeError, ValueError, RuntimeError, AttributeError) as error:
            if is_out_of_memory(error):
                raise
            difference = torch.inf
        if not difference <= (1e-4 if self.head.dtype == torch.float32 else 5e-2):
            raise InputError(
                f"{type(self.model).__name__} does something in or between its layers that burnish does not know "
                f"(its logits come out differently); use a model of the {FAMILIES} family"
            )


def context_length(model_config: Any) -> int:
    """Tokens that fit. A sliding window is the limit where there is one: every token must see all before it."""
    text_config = model_config.get_text_config()
    positions = getattr(text_config, "max_position_embeddings", None)
    if positions is None:
        raise InputError(f"{text_config.model_type} is not a model of the {FAMILIES} family; use one")
    return int(min(positions, getattr(text_config, "sliding_window", None) or positions))
