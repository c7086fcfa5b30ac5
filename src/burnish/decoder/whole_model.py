"""Any other causal language model: its own forward pass over all its layers, whatever they are.

Where its layers are attention, what the base has read of a prompt is still shared: the model keeps its keys and values
in our caches. Where they hold a state of another kind (a convolution's, a recurrence's), nothing is shared, and every
pass reads the whole text.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from burnish.decoder import fast_linear
from burnish.decoder.decoder import (
    TOLERANCE,
    feed_forward_size,
    output_of,
    probe,
    small_windows,
)
from burnish.decoder.fast_linear import times_weight
from burnish.decoder.key_values import FixedPrefix, GrowingCache, Recorder
from burnish.decoder.shared_context import positions_of
from burnish.errors import InputError, is_out_of_memory


class WholeModel:
    """What Decoder offers, without walking layers: `embed` gives token ids, and `run_layers` runs all of them."""

    shares_trunk = False
    reads_prefixes_together = False

    def __init__(self, model: Any, reason: str) -> None:
        """`reason` is why its layers cannot be called one by one."""
        model.eval()
        self.model = model.requires_grad_(False)
        self.config = model.config.get_text_config()
        self.stack = model.get_decoder()
        self.layers = layers_of(self.stack)
        self.num_layers = len(self.layers)
        self.output, self._state_scale = output_of(model)
        self.head = self.output.weight  # [V, H]
        self.reason = reason
        self._accepted = inspect.signature(self.stack.forward).parameters
        self.shares_prompts, self.pads_left = True, True
        self._keys = 1, 0  # heads and numbers of the keys that we store: none as long as nothing is shared
        self._look_at()
        self.sharing = "shared: prompt" if self.shares_prompts else "nothing shared: slower"

    # -------------------------------------------------------------------------------------------------- the pass

    def embed(self, ids: Tensor) -> Tensor:
        return ids  # [B, S]: some models want more of a token than its embedding

    def run_layers(self, ids: Tensor, key_mask: Tensor, cache: Any, layers: range) -> Tensor:
        """States of the last tokens of `key_mask`, normed.  [B, Q] -> [B, Q, H]; with no layers, the ids as they are"""
        if not layers:
            return ids
        if isinstance(cache, OwnState):
            return self._states(ids, key_mask, cache)
        if self.shares_prompts:
            return self._states(ids, key_mask, _InOurCache(cache))
        return self._states_of_whole_texts(ids, key_mask)

    def norm(self, hidden: Tensor) -> Tensor:
        """The model has normed its states itself."""
        return hidden if self._state_scale == 1.0 else hidden * self._state_scale

    def logits(self, states: Tensor) -> Tensor:
        """Of normed states.  [N, H] -> [N, V]"""
        return self.output.formed(times_weight(states, self.head))

    def _states(self, ids: Tensor, key_mask: Tensor, cache: Any = None) -> Tensor:
        given: dict[str, Any] = {
            "attention_mask": key_mask.long(),
            "position_ids": positions_of(key_mask)[:, -ids.shape[1] :],
            "use_cache": cache is not None,
        }
        state = "past_key_values" if "past_key_values" in self._accepted else "cache_params"
        past = cache.state if isinstance(cache, OwnState) else cache
        if past is not None:
            given[state] = past
            if state == "cache_params":  # a recurrence knows its past: a mask would be taken for that of the new tokens
                del given["attention_mask"]
        any_name = any(p.kind is p.VAR_KEYWORD for p in self._accepted.values())
        known = {name: value for name, value in given.items() if any_name or name in self._accepted}
        out = self.stack(input_ids=ids, **known)
        if isinstance(cache, OwnState):
            cache.state = getattr(out, state)
        return out.last_hidden_state

    def _states_of_whole_texts(self, ids: Tensor, key_mask: Tensor) -> Tensor:
        """Without a cache, with all padding on the right: it cannot reach the state of a recurrence there."""
        order = (~key_mask).long().argsort(dim=1, stable=True)  # real tokens first
        states = self._states(ids.gather(1, order), key_mask.gather(1, order))
        back = order.argsort(dim=1)[..., None].expand(-1, -1, states.shape[2])
        return states.gather(1, back)

    # ------------------------------------------------------------------------------------------------- its sizes

    @property
    def hidden_size(self) -> int:
        return self.head.shape[1]

    @property
    def number_bytes(self) -> int:
        return self.head.element_size()

    def key_shape(self, width: int) -> tuple[int, int, int]:
        """Of the keys of one layer: heads, tokens, numbers."""
        return self._keys[0], width, self._keys[1]

    @property
    def key_bytes(self) -> int:
        """Memory of one token's keys and values in one layer."""
        key_heads, _, head_dim = self.key_shape(0)
        return 2 * key_heads * head_dim * self.number_bytes

    @property
    def activation_bytes(self) -> int:
        """What one layer of a training pass keeps of each token until its gradient is computed: about twice what
        Decoder's own passes keep."""
        return 2 * (8 * self.config.hidden_size + 4 * feed_forward_size(self.config)) * self.number_bytes

    @property
    def work_bytes(self) -> int:
        """What one layer holds of each token while it works, without gradients."""
        return (3 * feed_forward_size(self.config) + 6 * self.config.hidden_size) * self.number_bytes

    # --------------------------------------------------------------------------------------------- the self-check

    @torch.no_grad()
    def _look_at(self) -> None:
        """Whether we form its logits as it does, and what of its work can be shared."""
        ids, key_mask = probe(self.head)
        with small_windows(self.config):
            alone = (row[mask][None] for row, mask in zip(ids, key_mask, strict=True))
            theirs = torch.cat(
                [self.model(input_ids=text, use_cache=False).logits[0].float() for text in alone]
            )  # [N, V]
            for module in self.stack.modules():
                if fast_linear.is_stored(module):  # left alone, it would hold a dense weight for its gradient
                    fast_linear.adopt(module)

            def agree(states: Tensor, real: Tensor, expected: Tensor) -> bool:
                logits = self.logits(self.norm(states)[real]).float()
                limit = TOLERANCE.get(self.head.dtype, 5e-2)
                return bool((logits - expected).abs().max() <= limit * expected.abs().max())

            if not agree(self._states_of_whole_texts(ids, key_mask), key_mask, theirs):
                raise InputError(
                    f"{type(self.model).__name__} forms its logits in a way that burnish does not know (they are not "
                    "its last states times its head); use another model"
                )
            self.shares_prompts = self._tries(lambda: self._continues(ids, key_mask, theirs, agree))
            self._keys = self._keys if self.shares_prompts else (1, 0)
            self.pads_left = self.shares_prompts or self._tries(lambda: self._decodes(ids, key_mask, theirs, agree))

    def _continues(self, ids: Tensor, key_mask: Tensor, theirs: Tensor, agree: Any) -> bool:
        """From keys and values in our caches, several tokens at once and one by one."""
        half = ids.shape[1] // 2
        recorder = Recorder()
        self._states(ids[:, :half], key_mask[:, :half], _InOurCache(recorder))
        prefix = torch.stack(recorder.layers)  # [layers, 2, B, key_heads, half, D]
        if len(prefix) != self.num_layers:
            return False
        self._keys = prefix.shape[3], prefix.shape[5]
        late = torch.zeros_like(key_mask)
        late[:, half:] = True
        states = self._states(ids[:, half:], key_mask, _InOurCache(FixedPrefix(prefix, 0)))
        if not agree(states, key_mask[:, half:], theirs[late[key_mask]]):
            return False
        room = self.head.new_zeros(self.num_layers, 2, len(ids), *self.key_shape(ids.shape[1]))
        room[..., :half, :] = prefix
        cache = GrowingCache(room, filled=half)
        return self._agrees_at_the_end(ids, key_mask, theirs, agree, half, cache, _InOurCache(cache))

    def _decodes(self, ids: Tensor, key_mask: Tensor, theirs: Tensor, agree: Any) -> bool:
        """From the model's own state, texts of different lengths beside each other."""
        half, cache = ids.shape[1] // 2, OwnState(len(ids))
        self._states(ids[:, :half], key_mask[:, :half], cache)
        return self._agrees_at_the_end(ids, key_mask, theirs, agree, half, cache, cache)

    def _agrees_at_the_end(
        self, ids: Tensor, key_mask: Tensor, theirs: Tensor, agree: Any, half: int, cache: Any, given: Any
    ) -> bool:
        states = self.head.new_zeros(0)
        for t in range(half, ids.shape[1]):
            states = self._states(ids[:, t : t + 1], key_mask[:, : t + 1], given)
            cache.advance(1)
        last = torch.zeros_like(key_mask)
        last[:, -1] = True
        return bool(agree(states, key_mask[:, -1:], theirs[last[key_mask]]))

    @staticmethod
    def _tries(look: Any) -> bool:
        try:
            return bool(look())
        except (TypeError, ValueError, RuntimeError, AttributeError, KeyError, IndexError, AssertionError) as error:
            if is_out_of_memory(error):
                raise
            return False


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


class _InOurCache:
    """One of our caches, as transformers' models ask theirs."""

    is_compileable = False

    def __init__(self, cache: Any) -> None:
        self.cache = cache

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return self.cache.update(keys, values, layer_idx)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.cache.seen

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.cache.seen

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.cache.seen + query_length, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1


def layers_of(stack: nn.Module) -> nn.ModuleList:
    """The longest list of modules is that of its layers."""
    lists = [module for module in stack.modules() if isinstance(module, nn.ModuleList) and len(module)]
    if not lists:
        raise InputError(f"{type(stack).__name__} has no list of layers that adapters could be put on")
    return max(lists, key=len)
