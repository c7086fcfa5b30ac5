"""Attention over grouped keys without copying them.

Models with fewer key heads than query heads usually repeat every key once per query head before attending. Here the
query heads of a group are laid out as extra query positions of their one key head instead: the same numbers, and the
cached prefix is read where it lies.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

NAME = "burnish_grouped"


def grouped_mask(mask: Tensor, groups: int, dtype: torch.dtype) -> Tensor:
    """What is added to the scores: 0 where `mask` is True, else minus infinity, for every query head of a group.

    [., 1, Q, S] bool -> [., 1, groups * Q, S]. Made once for all layers of a pass.
    """
    scores = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)
    return scores.repeat(1, 1, groups, 1)


def grouped_attention(
    module: nn.Module,
    query: Tensor,  # [B, heads, Q, D]
    key: Tensor,  # [B, key_heads, S, D]
    value: Tensor,  # [B, key_heads, S, D]
    attention_mask: Tensor | None,  # [B or 1, 1, Q, S] bool, or what grouped_mask makes of it
    dropout: float = 0.0,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Masked attention, each key head serving its group of query heads.  -> [B, Q, heads, D]"""
    b, heads, q, d = query.shape
    key_heads = key.shape[1]
    groups = heads // key_heads
    query = query.reshape(b, key_heads, groups * q, d).contiguous()  # torch's fast kernel wants adjacent numbers
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        attention_mask = grouped_mask(attention_mask, groups, query.dtype)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, scale=scaling, dropout_p=dropout)
    return out.reshape(b, heads, q, d).transpose(1, 2).contiguous(), None


def _explicit_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """transformers' own mask, always written out: a model that burnish has adopted still works when called directly."""
    return sdpa_mask(*args, **(kwargs | {"allow_is_causal_skip": False}))


AttentionInterface.register(NAME, grouped_attention)
AttentionMaskInterface.register(NAME, _explicit_mask)
