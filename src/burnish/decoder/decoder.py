"""One model family: how it embeds, masks, rotates, walks its layers, norms and forms logits. Nothing else knows.

burnish calls a decoder's layers one by one, so that it can stop at the trunk, share a prefix and reserve the KV cache
once. A family that does more between its layers than these lines know belongs here, and nowhere else. Until it does,
whole_model.py takes it: slower, by the model's own forward pass.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from burnish.decoder import attention, fast_linear, fast_norm
from burnish.decoder.fast_linear import times_weight
from burnish.decoder.head import Head
from burnish.decoder.key_values import FixedPrefix, GrowingCache, Reading, Recorder
from burnish.decoder.quantized import is_sharded
from burnish.decoder.sharded import SpreadHead
from burnish.decoder.shared_context import causal_mask, positions_of, seen_through_window
from burnish.errors import InputError, is_out_of_memory

FULL, SLIDING = "full_attention", "sliding_attention"
PROBE_WINDOW = 7  # while a model is looked at its windows are this small, so that a short text is longer than they are
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}  # of the logits' largest; half precision: 5e-2


class CannotWalkError(Exception):
    """Why a model's layers cannot be called one by one."""


class Decoder:
    """A causal language model whose layers are attention and feed-forward blocks, frozen."""

    shares_prompts = True
    shares_trunk = True
    sharing = "shared: prompt and trunk"
    reason = ""
    pads_left = True
    keeps_states = False
    state_bytes = 0

    def __init__(self, model: Any) -> None:
        model.eval()  # for good: dropout would move the ratios before anything is learned
        self.model = model.requires_grad_(False)
        self.config = model.config.get_text_config()
        self.stack = model.get_decoder()
        for part in ("embed_tokens", "layers", "norm", "rotary_emb"):
            if not hasattr(self.stack, part):
                raise CannotWalkError(f"it has no {part!r}")
        self.layers = self.stack.layers
        self.num_layers = len(self.layers)
        self.output, self._state_scale = output_of(model)
        self.head = self.output.like  # [V, H]
        self.kinds = self._kinds()
        self._rotary_has_kinds = "layer_type" in inspect.signature(self.stack.rotary_emb.forward).parameters
        self.reads_prefixes_together = SLIDING not in self.kinds and not self._attention_is_written_out()
        """Whether several sequences can read one copy of a prefix: not where what is seen of it depends on the query,
        or the attention is written out."""
        self._adopt()

    def _attention_is_written_out(self) -> bool:
        capped = getattr(self.config, "attn_logit_softcapping", None) is not None
        return capped or any(name.endswith("sinks") for name, _ in self.layers.named_parameters())

    def _kinds(self) -> list[str]:
        """What each layer sees: everything before, or a window."""
        kinds = getattr(self.config, "layer_types", None)
        if kinds is None:
            kinds = [SLIDING if getattr(self.config, "sliding_window", None) else FULL] * self.num_layers
        other = set(kinds) - {FULL, SLIDING}
        if other:
            raise CannotWalkError(f"it has layers of the kind {', '.join(sorted(other))}")
        return list(kinds)

    # ------------------------------------------------------------------------------------------------- the walk

    def embed(self, ids: Tensor) -> Tensor:
        embedded = self.stack.embed_tokens(ids)  # [B, S, H]
        multiplier = getattr(self.stack, "embedding_multiplier", None)
        return embedded if multiplier is None else embedded * multiplier

    def run_layers(self, hidden: Tensor, key_mask: Tensor, cache: Any, layers: range) -> Tensor:
        """Hidden states at the last positions of `key_mask` through some layers.  [B, Q, H] -> [B, Q, H]"""
        num_queries = hidden.shape[1]
        positions = positions_of(key_mask)[:, -num_queries:]
        shared = cache.shared
        own = key_mask if shared is None else key_mask[:, shared.width :]
        everything = causal_mask(own, num_queries)
        masks, rotary = {}, {}
        for kind in {self.kinds[i] for i in layers}:
            seen = everything if kind == FULL else seen_through_window(everything, self.config.sliding_window)
            masks[kind] = attention.Blocks.of(seen, self._heads_per_key, hidden.dtype, shared)
            of_kind = (kind,) if self._rotary_has_kinds else ()
            rotary[kind] = self.stack.rotary_emb(hidden, positions, *of_kind)
        for i in layers:
            hidden = self.layers[i](
                hidden,
                attention_mask=masks[self.kinds[i]],
                position_ids=positions,
                past_key_values=cache,
                position_embeddings=rotary[self.kinds[i]],
            )
        return hidden

    def norm(self, hidden: Tensor) -> Tensor:
        """States, ready for the head."""
        normed = self.stack.norm(hidden)
        return normed if self._state_scale == 1.0 else normed * self._state_scale

    def logits(self, states: Tensor) -> Tensor:
        """Of normed states.  [N, H] -> [N, V]"""
        return self.output.formed(times_weight(states, self.output.weight))

    # ------------------------------------------------------------------------------------------------- its sizes

    @property
    def hidden_size(self) -> int:
        return self.head.shape[1]

    @property
    def number_bytes(self) -> int:
        return self.head.element_size()

    @property
    def num_key_layers(self) -> int:
        """Those with keys and values: all."""
        return self.num_layers

    def nothing_read(self) -> Reading:
        """What we store of a text without tokens."""
        return Reading(self.head.new_zeros(self.num_layers, 2, *self.key_shape(0)), {})

    def key_shape(self, width: int) -> tuple[int, int, int]:
        """Of the keys of one layer: heads, tokens, numbers."""
        return key_shape(self.config, width)

    @property
    def key_bytes(self) -> int:
        """Memory of one token's keys and values in one layer."""
        key_heads, _, head_dim = self.key_shape(0)
        return 2 * key_heads * head_dim * self.number_bytes

    @property
    def activation_bytes(self) -> int | None:
        """What one layer of a training pass keeps of each token until its gradient is computed; None with experts,
        whose own work depends on how transformers goes about it.

        Two residual streams and two normed ones, the queries and the attention's result (each as computed and as laid
        out for the next product), keys and values, and four tensors of the feed-forward part.
        """
        if getattr(self.config, "num_experts_per_tok", None):
            return None
        _, _, head_dim = self.key_shape(0)
        queries = self.config.num_attention_heads * head_dim
        numbers = 4 * self.config.hidden_size + 4 * queries + 4 * feed_forward_size(self.config)
        return numbers * self.number_bytes + self.key_bytes

    @property
    def work_bytes(self) -> int:
        """What one layer holds of each token while it works, without gradients."""
        return (3 * feed_forward_size(self.config) + 6 * self.config.hidden_size) * self.number_bytes

    @property
    def _heads_per_key(self) -> int:
        return self.config.num_attention_heads // self.config.num_key_value_heads

    # --------------------------------------------------------------------------------------------- the self-check

    def _adopt(self) -> None:
        """Walking the layers ourselves must give what the model's own forward pass gave, or we leave it as it was."""
        ids, key_mask = probe(self.head)
        before = self.model.config._attn_implementation
        with small_windows(self.config):
            try:
                theirs, their_gradient = self._of_whole_model(ids, key_mask)
                self.model.set_attn_implementation(attention.NAME)
                for module in self.stack.modules():
                    fast_linear.adopt(module)
                    fast_norm.adopt(module)
                problem = self._difference(ids, key_mask, theirs, their_gradient)
            except (TypeError, ValueError, RuntimeError, AttributeError, KeyError, IndexError) as error:
                if is_out_of_memory(error):
                    raise
                problem = (str(error).strip() or type(error).__name__).splitlines()[0]
        if problem:
            self.model.set_attn_implementation(before)
            for module in self.stack.modules():
                module.__dict__.pop("forward", None)  # what adopt put there
            raise CannotWalkError(problem)

    def _of_whole_model(self, ids: Tensor, key_mask: Tensor) -> tuple[Tensor, Tensor]:
        """The model's own logits of real tokens [N, V], and what the embeddings do to their spread [B, S, H]."""
        embedded = self.stack.embed_tokens(ids).requires_grad_()
        out = self.model(
            inputs_embeds=embedded, attention_mask=key_mask.long(), position_ids=positions_of(key_mask), use_cache=False
        )
        logits = out.logits.float()[key_mask]
        (gradient,) = torch.autograd.grad(logits.std(-1).sum(), embedded)
        return logits.detach(), gradient

    def _difference(self, ids: Tensor, key_mask: Tensor, theirs: Tensor, their_gradient: Tensor) -> str | None:
        """Where our walk differs from the model's own pass; None if nowhere."""
        limit = TOLERANCE.get(self.head.dtype, 5e-2)
        everything, half = range(self.num_layers), ids.shape[1] // 2

        def differ(hidden: Tensor, real: Tensor, expected: Tensor) -> bool:
            logits = self.logits(self.norm(hidden)[real]).float()
            return not bool((logits - expected).abs().max() <= limit * theirs.abs().max())

        embedded = self.stack.embed_tokens(ids).requires_grad_()
        multiplier = getattr(self.stack, "embedding_multiplier", None)
        hidden = embedded if multiplier is None else embedded * multiplier
        hidden = self.run_layers(hidden, key_mask, Recorder(), everything)
        if differ(hidden, key_mask, theirs):
            return "its logits come out differently when its layers are called one by one"
        (gradient,) = torch.autograd.grad(self.logits(self.norm(hidden)[key_mask]).float().std(-1).sum(), embedded)
        if not (gradient - their_gradient).abs().max() <= 10 * limit * their_gradient.abs().max():
            return "its gradients come out differently when its layers are called one by one"

        with torch.no_grad():
            recorder = Recorder()
            self.run_layers(self.embed(ids[:, :half]), key_mask[:, :half], recorder, everything)
            prefix = torch.stack(recorder.layers)  # [layers, 2, B, key_heads, half, D]
            late = torch.zeros_like(key_mask)
            late[:, half:] = True
            hidden = self.run_layers(self.embed(ids[:, half:]), key_mask, FixedPrefix(prefix, 0), everything)
            if differ(hidden, key_mask[:, half:], theirs[late[key_mask]]):
                return "it does not continue a text from stored keys and values"
            room = self.head.new_zeros(self.num_layers, 2, len(ids), *self.key_shape(ids.shape[1]))
            room[..., :half, :] = prefix
            cache = GrowingCache(room, filled=half)
            for t in range(half, ids.shape[1]):
                hidden = self.run_layers(self.embed(ids[:, t : t + 1]), key_mask[:, : t + 1], cache, everything)
                cache.advance(1)
            last = torch.zeros_like(key_mask)
            last[:, -1] = True
            if differ(hidden, key_mask[:, -1:], theirs[last[key_mask]]):
                return "it does not decode token by token from stored keys and values"
        return None


# ----------------------------------------------------------------------------------- what both kinds of decoder know


def output_of(model: Any) -> tuple[Head, float]:
    """How a model forms logits, and what its states are multiplied with before that."""
    config, linear = model.config.get_text_config(), model.get_output_embeddings()
    if linear is None:
        raise InputError(f"{type(model).__name__} has no head that gives logits; use a causal language model")
    scale = getattr(config, "logit_scale", None) or getattr(config, "lm_head_multiplier", None) or 1.0
    scale /= getattr(config, "logits_scaling", None) or 1.0
    cap = getattr(config, "final_logit_softcapping", None) or getattr(config, "logits_soft_cap", None)
    bias = getattr(linear, "bias", None)
    is_spread = is_sharded(linear.weight)
    return SpreadHead(linear, bias, cap) if is_spread else Head(linear.weight, bias, cap), float(scale)


def key_shape(config: Any, width: int) -> tuple[int, int, int]:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return getattr(config, "num_key_value_heads", None) or config.num_attention_heads, width, head_dim


def feed_forward_size(config: Any) -> int:
    """Numbers of one token inside a layer's feed-forward part: of all experts that it goes to."""
    width = getattr(config, "moe_intermediate_size", None) or getattr(config, "intermediate_size", None)
    experts = getattr(config, "num_experts_per_tok", None) or 1
    return int(experts * (width or 4 * config.hidden_size))


def probe(head: Tensor) -> tuple[Tensor, Tensor]:
    """Two texts of different length, padded on the left.  -> ids [2, S], mask [2, S]"""
    # Ordinary tokens from all over the vocabulary. The first ids are often control tokens, which a model hardly saw in
    # training: their rounding errors are fifty times larger.
    width = 24
    ids = torch.linspace(0, len(head) - 1, 2 * width + 2, device=head.device).long()[1:-1].reshape(width, 2).T
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[1, :5] = False
    return ids.contiguous(), mask


@contextmanager
def small_windows(config: Any) -> Iterator[None]:
    """While a model is looked at: a window of thousands of tokens would not show in a short text."""
    window = getattr(config, "sliding_window", None)
    if window is None:
        yield
        return
    config.sliding_window = PROBE_WINDOW
    try:
        yield
    finally:
        config.sliding_window = window


def context_length(model_config: Any) -> int:
    """Tokens that fit. A model that names no limit has none."""
    text_config = model_config.get_text_config()
    named = getattr(text_config, "max_position_embeddings", None) or getattr(text_config, "seq_length", None)
    return int(named or 2**31)
