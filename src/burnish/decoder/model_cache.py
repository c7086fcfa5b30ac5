"""What a model that is called as a whole keeps of a text, as transformers' models ask for it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.decoder.key_values import Place


class InOurCache:
    """One of our caches, as transformers' models ask theirs."""

    is_compileable = False

    def __init__(self, cache: Any, places: dict[int, int]) -> None:
        """`places` of the keys and values of a model's layers; a layer that comes for the first time gets the next."""
        self.cache = cache
        self.places = places

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return self.cache.update(keys, values, self.places.setdefault(layer_idx, len(self.places)))

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self._state(("conv", layer_idx, state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self._state(("recurrent", layer_idx, state_idx))

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        return bool(self.cache.states)

    def is_recording_past(self, layer_idx: int) -> bool:
        """A layer that hears yes hands us the inputs of its convolution, where it would write into their state."""
        return True

    def update_conv_state(
        self, inputs: Tensor, layer_idx: int, state_idx: int = 0, conv_kernel_size: int | None = None, **_: Any
    ) -> Tensor:
        """The inputs that a convolution needs: those kept of the text before, and the new ones.  [B, C, S]"""
        before = self.get_conv_state(layer_idx, state_idx)
        width = conv_kernel_size or (inputs if before is None else before).shape[-1]
        inputs = inputs if before is None else torch.cat([before, inputs], dim=-1)
        kept = F.pad(inputs, (max(width - inputs.shape[-1], 0), 0))[..., -width:].contiguous()
        self._keep(("conv", layer_idx, state_idx), kept)
        return inputs

    def update_recurrent_state(self, state: Tensor, layer_idx: int, state_idx: int = 0, **_: Any) -> Tensor:
        self._keep(("recurrent", layer_idx, state_idx), state)
        return state

    def _state(self, place: Place) -> Tensor | None:
        state = self.cache.states.get(place)
        return state if state is None or self.cache.keeps_states else state.clone()  # some layers write into it

    def _keep(self, place: Place, state: Tensor) -> None:
        if self.cache.keeps_states:
            self.cache.states[place] = state

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.cache.seen

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.cache.seen

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.cache.seen + query_length, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1


class OwnState:
    """What a model keeps of the texts it is continuing, in a form of its own: decoding."""

    shared = None

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.state: Any = None

    def advance(self, num_tokens: int) -> None:
        """The model counts for itself."""

    def keep_rows(self, rows: Tensor) -> None:
        """Forgets all sequences but these.  rows [n]"""
        self.state.reorder_cache(rows)
