"""Attention over grouped keys without copying them.

Models with fewer key heads than query heads usually repeat every key once per query head before attending. Here the
query heads of a group are laid out as extra query positions of their one key head instead: the same numbers, and the
cached prefix is read where it lies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from burnish.decoder.shared_prefix import SharedPrefix

NAME = "burnish_grouped"
# Arguments of a layer's attention that the mask has taken care of. Any other is an error: what is not known must not be
# left out in silence.
SAID_BY_THE_MASK = ("sliding_window", "position_ids", "is_causal", "use_cache", "output_attentions")


# Queries that attend together. A block computes only the keys up to its last query, so that a long pass saves nearly
# half of its scores; small blocks would cost more in calls than they save.
BLOCK = 96


@dataclass(frozen=True)
class Blocks:
    """A causal mask made ready once for all layers of a pass: what is added to the scores of each block of queries."""

    masks: list[Tensor]
    """[., 1, groups * queries of the block, keys up to its last]: 0 where a key may be seen, else minus infinity."""
    shared: SharedPrefix | None = None
    """What stands before these keys and is read by several sequences."""

    @classmethod
    def of(cls, mask: Tensor, groups: int, dtype: torch.dtype, shared: SharedPrefix | None = None) -> Blocks:
        """From [., 1, Q, S] bool, the queries being the last of the keys."""
        seen = mask.shape[3] - mask.shape[2]
        masks = []
        for part in mask.split(BLOCK, dim=2):
            seen += part.shape[2]
            masks.append(added_to_scores(part[..., :seen], groups, dtype))
        return cls(masks, shared)


def added_to_scores(mask: Tensor, groups: int, dtype: torch.dtype) -> Tensor:
    """0 where `mask` is True, else minus infinity, for each query head of a group.  [., 1, Q, S] -> [., 1, G * Q, S]"""
    scores = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)
    return scores.repeat(1, 1, groups, 1)


def grouped_attention(
    module: Any,
    query: Tensor,  # [B, heads, Q, D]
    key: Tensor,  # [B, key_heads, S, D]
    value: Tensor,  # [B, key_heads, S, D]
    attention_mask: Blocks | Tensor | None,  # or [B or 1, 1, Q, S] bool, from a model that is called directly
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,  # [heads] a score that every query also has, for nothing: a sink
    **others: Any,
) -> tuple[Tensor, None]:
    """Masked attention, each key head serving its group of query heads.  -> [B, Q, heads, D]"""
    unknown = [name for name, value in others.items() if name not in SAID_BY_THE_MASK and value is not None]
    if unknown:
        raise TypeError(f"its attention is called with {', '.join(unknown)}")
    b, heads, q, d = query.shape
    key_heads = key.shape[1]
    groups = heads // key_heads
    if not isinstance(attention_mask, Blocks):  # a foreign mask need not be causal, so it is not cut
        everything = torch.ones(1, 1, q, key.shape[2], dtype=torch.bool, device=query.device)
        mask = everything if attention_mask is None else attention_mask
        attention_mask = Blocks([added_to_scores(mask, groups, query.dtype)])
    sizes = [mask.shape[2] // groups for mask in attention_mask.masks]
    shared = attention_mask.shared
    out = []
    for mask, block in zip(
        attention_mask.masks, query.reshape(b, key_heads, groups, q, d).split(sizes, dim=3), strict=True
    ):
        seen = mask.shape[3]
        queries = block.reshape(b, key_heads, -1, d).contiguous()  # torch's fast kernel wants adjacent numbers
        keys, values = key[:, :, :seen], value[:, :, :seen]
        if softcap is not None or s_aux is not None:
            if shared is not None:
                raise TypeError("its attention has a soft cap or sinks, which a shared prefix cannot be read with")
            sinks = None if s_aux is None else s_aux.reshape(1, key_heads, groups, 1)
            attended = _written_out(queries, keys, values, mask, scaling or d**-0.5, softcap, sinks)
        elif shared is None:
            attended = F.scaled_dot_product_attention(
                queries, keys, values, attn_mask=mask, scale=scaling, dropout_p=dropout
            )
        else:
            attended = shared.attention(queries, keys, values, mask, scaling, module.layer_idx)
        out.append(attended.reshape(b, heads, -1, d))
    joined = out[0] if len(out) == 1 else torch.cat(out, dim=2)
    return joined.transpose(1, 2).contiguous(), None


def _written_out(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, softcap: float | None, sinks: Tensor | None
) -> Tensor:
    """Attention whose scores are capped, or whose softmax has a sink: torch has no kernel for them.

    query [B, key_heads, groups * Q, D], sinks [1, key_heads, groups, 1]  ->  [B, key_heads, groups * Q, D]
    """
    scores = query @ key.transpose(2, 3) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores + mask
    if sinks is None:
        return scores.softmax(-1) @ value
    each = sinks.to(scores.dtype).expand(len(query), -1, -1, query.shape[2] // sinks.shape[2])
    weights = torch.cat([scores, each.flatten(2)[..., None]], dim=-1).softmax(-1)
    return weights[..., :-1] @ value


def _explicit_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """transformers' own mask, always written out: a model that burnish has adopted still works when called directly."""
    return sdpa_mask(*args, **(kwargs | {"allow_is_causal_skip": False}))


AttentionInterface.register(NAME, grouped_attention)
AttentionMaskInterface.register(NAME, _explicit_mask)
