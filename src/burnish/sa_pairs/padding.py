"""Token ids of different lengths as one batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def left_padded(sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Token ids of different lengths as one left-padded batch.  -> ids [B, P], mask [B, P]"""
    width = max(len(s) for s in sequences)
    ids = torch.tensor([[0] * (width - len(s)) + list(s) for s in sequences], dtype=torch.long)
    lengths = torch.tensor([len(s) for s in sequences])
    return ids, torch.arange(width) >= width - lengths[:, None]


def right_padded(sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """The same, padded on the right.  -> ids [B, T], mask [B, T]"""
    ids, mask = left_padded([s[::-1] for s in sequences])
    return ids.flip(1), mask.flip(1)
