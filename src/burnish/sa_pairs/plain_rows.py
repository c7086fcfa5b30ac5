"""Columns of a table out of plain rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from burnish.errors import InputError
from burnish.sa_pairs.columns import COLUMN_OF_ROW_KEY, ROW_KEYS
from burnish.sa_pairs.padding import left_padded


def column_keys(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The column keys of the rows, which all must carry."""
    own = {key: None for row in rows for key in row if key in COLUMN_OF_ROW_KEY or key not in ROW_KEYS}
    for key in own:
        for number, row in enumerate(rows):
            if key not in row:
                raise InputError(f"SA pair {number}: every pair needs the same keys, {key!r} is not in all of them")
    return list(own)


def fill(mask: Tensor, key: str, grouped: list[list[Mapping[str, Any]]]) -> Tensor:
    dtype = torch.long if key == "action" else torch.float32
    column = torch.zeros(mask.shape, dtype=dtype)
    values = [row[key] for response in grouped for row in response]
    for number, value in enumerate(values):
        if not isinstance(value, int | float):
            raise InputError(f"SA pair {number}: {key!r} is {value!r:.40}, not a number")
    column[mask] = torch.tensor(values, dtype=dtype)
    return column


def prompts_of(states: list[Any]) -> tuple[Tensor | None, Tensor | None]:
    """A response's first state is its prompt."""
    return (None, None) if any(s is None for s in states) else left_padded(states)


def kept_of(mask: Tensor, grouped: list[list[Mapping[str, Any]]]) -> Tensor | None:
    if not all("kept" in row for response in grouped for row in response):
        return None
    sets = [row["kept"] for response in grouped for row in response]
    width = max(len(s) for s in sets)
    kept = torch.full((*mask.shape, width), -1, dtype=torch.int32)
    kept[mask] = torch.tensor([list(s) + [-1] * (width - len(s)) for s in sets], dtype=torch.int32)
    return kept
