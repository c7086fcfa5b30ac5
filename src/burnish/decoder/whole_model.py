"""Any other causal language model: its own forward pass over all its layers, whatever they are.

What the base has read of a prompt is still shared: the model keeps its keys and values, and the states of convolutions
and recurrences, in our caches. Where it does not go on from there as it should, nothing is shared, and every pass reads
the whole text.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
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
from burnish.decoder.key_values import (
    FixedPrefix,
    GrowingCache,
    Reading,
    Recorder,
    nbytes_of,
    side_by_side,
)
from burnish.decoder.model_cache import InOurCache, OwnState
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
        self.head = self.output.like  # [V, H]
        self.reason = reason
        self._accepted = inspect.signature(self.stack.forward).parameters
        self.pads_left = True
        self._places: dict[int, int] = {}  # of the keys and values of its layers among those that we store
        self._nothing_read: Reading | None = None
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
            return self._states(ids, key_mask, InOurCache(cache, self._places))
        return self._states_of_whole_texts(ids, key_mask)

    def norm(self, hidden: Tensor) -> Tensor:
        """The model has normed its states itself."""
        return hidden if self._state_scale == 1.0 else hidden * self._state_scale

    def logits(self, states: Tensor) -> Tensor:
        """Of normed states.  [N, H] -> [N, V]"""
        return self.output.formed(times_weight(states, self.output.weight))

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

    @property
    def shares_prompts(self) -> bool:
        return self._nothing_read is not None

    @property
    def keeps_states(self) -> bool:
        """Whether padding may not stand behind a text that is read."""
        return self.state_bytes > 0

    @property
    def num_key_layers(self) -> int:
        """Those with keys and values that we store."""
        return len(self._places)

    def nothing_read(self) -> Reading:
        """What we store of a text without tokens."""
        return self._nothing_read or Reading(self.head.new_zeros(0, 2, 1, 0, 0), {})

    def key_shape(self, width: int) -> tuple[int, int, int]:
        """Of the keys of one layer: heads, tokens, numbers."""
        _, _, key_heads, _, head_dim = self.nothing_read().keys.shape
        return key_heads, width, head_dim

    @property
    def key_bytes(self) -> int:
        """Memory of one token's keys and values in one layer."""
        key_heads, _, head_dim = self.key_shape(0)
        return 2 * key_heads * head_dim * self.number_bytes

    @property
    def state_bytes(self) -> int:
        """Memory of what layers that are not attention keep of one text."""
        return nbytes_of(self.nothing_read().states)

    activation_bytes: int | None = None
    """What one layer of a training pass keeps of each token until its gradient is computed is not known beforehand."""

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
            if not self._agree(self._states_of_whole_texts(ids, key_mask), key_mask, theirs):
                raise InputError(
                    f"{type(self.model).__name__} forms its logits in a way that burnish does not know (they are not "
                    "its last states times its head); use another model"
                )
            problem = self._problem_of(lambda: self._continues(ids, key_mask, theirs))
            if problem:
                self._nothing_read, self._places = None, {}
                self.reason += f", and {problem}"
                self.pads_left = not self._problem_of(lambda: self._decodes(ids, key_mask, theirs))

    def _agree(self, states: Tensor, real: Tensor, expected: Tensor) -> bool:
        """With the logits [N, V] of the real tokens."""
        logits = self.logits(self.norm(states)[real]).float()
        limit = TOLERANCE.get(self.head.dtype, 5e-2)
        return bool((logits - expected).abs().max() <= limit * expected.abs().max())

    def _continues(self, ids: Tensor, key_mask: Tensor, theirs: Tensor) -> str | None:
        """Whether it goes on from what our caches hold; else how it does not."""
        half = ids.shape[1] // 2
        readings = []
        for row, mask in zip(ids[:, :half], key_mask[:, :half], strict=True):  # as the prompts of a run are read
            recorder = Recorder()
            text = row[mask][None]
            self._states(text, torch.ones_like(text).bool(), InOurCache(recorder, self._places))
            if not recorder.layers:
                return "it keeps no keys and values"
            readings.append(recorder.row(0, text.shape[1]))
        before = {place: torch.zeros_like(state) for place, state in readings[0].states.items()}
        self._nothing_read = Reading(readings[0].keys[..., :0, :].clone(), before)

        room = self.head.new_zeros(self.num_key_layers, 2, len(ids), *self.key_shape(ids.shape[1]))
        none_read = side_by_side([self._nothing_read] * len(ids), room, 0)
        empty = FixedPrefix(room[..., :0, :], 0, none_read)
        if not self._agree(self._states(ids, key_mask, InOurCache(empty, self._places)), key_mask, theirs):
            return "padding before a text changes what it says"

        late = torch.zeros_like(key_mask)
        late[:, half:] = True
        read = side_by_side(readings, room, half)
        fixed = InOurCache(FixedPrefix(room[..., :half, :].clone(), 0, read), self._places)
        for _ in range(2):  # the first pass may not have changed what the second begins with
            states = self._states(ids[:, half:], key_mask, fixed)
            if not self._agree(states, key_mask[:, half:], theirs[late[key_mask]]):
                return "it does not continue a text from what it kept of the beginning"
        if not self._has_their_gradients(ids, key_mask, half, fixed):
            return "its gradients come out differently when it continues a text"

        cache = GrowingCache(room, half, states={place: state.clone() for place, state in read.items()})
        if not self._agrees_at_the_end(ids, key_mask, theirs, half, cache, InOurCache(cache, self._places)):
            return "it does not decode token by token from what it kept of the beginning"
        return None

    @torch.enable_grad()
    def _has_their_gradients(self, ids: Tensor, key_mask: Tensor, half: int, fixed: InOurCache) -> bool:
        """Of the second half's embeddings: as in a pass over the whole text, which has all of it in one graph."""
        gradients = []
        for seen, cache in ((slice(None), None), (slice(half, None), fixed)):
            with self._embedded() as embedded:
                states = self._states(ids[:, seen], key_mask, cache)[:, half - ids.shape[1] :]
            spread = self.logits(self.norm(states)[key_mask[:, half:]]).float().std(-1).sum()
            gradients.append(torch.autograd.grad(spread, embedded)[0][:, half - ids.shape[1] :])
        theirs, ours = gradients
        limit = 10 * TOLERANCE.get(self.head.dtype, 5e-2)
        return bool((ours - theirs).abs().max() <= limit * theirs.abs().max())

    @contextmanager
    def _embedded(self) -> Iterator[list[Tensor]]:
        """The embeddings [B, S, H] of the passes meanwhile, as the beginning of their graphs."""
        embedded: list[Tensor] = []
        embeddings = self.model.get_input_embeddings()
        hook = embeddings.register_forward_hook(lambda _, __, out: embedded.append(out.requires_grad_()))
        try:
            yield embedded
        finally:
            hook.remove()

    def _decodes(self, ids: Tensor, key_mask: Tensor, theirs: Tensor) -> str | None:
        """Whether it does from its own state, texts of different lengths beside each other."""
        half, cache = ids.shape[1] // 2, OwnState(len(ids))
        self._states(ids[:, :half], key_mask[:, :half], cache)
        return None if self._agrees_at_the_end(ids, key_mask, theirs, half, cache, cache) else "it does not"

    def _agrees_at_the_end(
        self, ids: Tensor, key_mask: Tensor, theirs: Tensor, half: int, cache: Any, given: Any
    ) -> bool:
        states = self.head.new_zeros(0)
        for t in range(half, ids.shape[1]):
            states = self._states(ids[:, t : t + 1], key_mask[:, : t + 1], given)
            cache.advance(1)
        last = torch.zeros_like(key_mask)
        last[:, -1] = True
        return self._agree(states, key_mask[:, -1:], theirs[last[key_mask]])

    @staticmethod
    def _problem_of(look: Any) -> str | None:
        try:
            return look()
        except (TypeError, ValueError, RuntimeError, AttributeError, KeyError, IndexError, AssertionError) as error:
            if is_out_of_memory(error):
                raise
            return (str(error).strip() or type(error).__name__).splitlines()[0]


def layers_of(stack: nn.Module) -> nn.ModuleList:
    """The longest list of modules is that of its layers."""
    lists = [module for module in stack.modules() if isinstance(module, nn.ModuleList) and len(module)]
    if not lists:
        raise InputError(f"{type(stack).__name__} has no list of layers that adapters could be put on")
    return max(lists, key=len)
