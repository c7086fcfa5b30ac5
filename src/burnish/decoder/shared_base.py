"""One frozen base model, and the adapters grafted on it.

Four roles in the memory of one model: the policy, the value model and the reward model are LoRA adapters, the
reference is the base itself. This file owns two things that the roles share: which adapter is active, and the work that
the frozen part does once. decoder.py knows how the model itself is walked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import compress, takewhile
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from burnish.decoder import fast_linear
from burnish.decoder.base_identity import BaseIdentity, adapter_of
from burnish.decoder.decoder import CannotWalkError, Decoder
from burnish.decoder.key_values import FixedPrefix, GrowingCache, PromptCache, Reading, Recorder, side_by_side
from burnish.decoder.model_cache import OwnState
from burnish.decoder.quantized import is_plain, is_sharded
from burnish.decoder.shared_context import SharedContext
from burnish.decoder.shared_prefix import SharedPrefix
from burnish.decoder.whole_model import WholeModel
from burnish.errors import InputError
from burnish.sa_pairs.table import SAPairs

PREFILL_TOKENS = 4096  # prompt tokens that go through the base in one pass, padding included
PROBE_TOKENS = 64  # of the text that shows how much a training pass keeps; some layers work on 64 tokens at a time
MIN_SHARED_BEGINNING = 16  # tokens; a shorter common beginning is not worth a pass of its own


class SharedBase:
    """A frozen causal language model with its tokenizer. Adapters are added by name and chosen with `take_role`."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        scope: str = "response",
        prompt_cache_bytes: int = 0,
        identity: BaseIdentity | None = None,
    ) -> None:
        self.decoder = decoder_of(model)
        if scope == "response" and not self.decoder.shares_prompts:
            raise InputError(
                f"{type(model).__name__} cannot go on from what burnish keeps of a prompt ({self.decoder.reason}), so "
                "adapters cannot begin to act there; set adapter_scope: sequence"
            )
        self.model = model
        self.output = self.decoder.output
        self.head = self.decoder.head  # [V, H]
        self.tokenizer = tokenizer
        self.scope = scope
        self.invocation: list[int] = []
        self.invocation_is_loaded = False
        self.identity = identity or BaseIdentity(model, tokenizer)
        self.prompt_cache = PromptCache(prompt_cache_bytes)
        self.num_prompt_tokens_read = 0
        self.beginning: tuple[int, ...] = ()
        self._beginning_read: Reading | None = None
        self.num_layers = self.decoder.num_layers
        self.trunk_depth = self.num_layers  # layers below the lowest adapter; none is grafted yet
        self.peft_model: PeftModel | None = None
        self._tuner_layers: list[BaseTunerLayer] = []
        self._activation_bytes: int | None = None
        self._role: str | None = None
        self._role_is_known = True

    # ---------------------------------------------------------------------------------------------- properties

    @property
    def device(self) -> torch.device:
        return self.head.device

    @property
    def hidden_size(self) -> int:
        return self.decoder.hidden_size

    @property
    def is_sharded(self) -> bool:
        """Whether its layers are spread over several processes."""
        return any(is_sharded(weight) for weight in self.decoder.layers.parameters())

    @property
    def in_half_precision(self) -> bool:
        return self.decoder.number_bytes < 4

    @property
    def shares_prefixes(self) -> bool:
        """Whether sequences can read one copy of a prefix: torch's attention on CPUs gives what that needs."""
        return self.device.type == "cpu" and self.decoder.reads_prefixes_together

    @property
    def prompt_cache(self) -> PromptCache:
        """What the base has read. One that another stage filled may be put in its place, if its base is this one."""
        return self._prompt_cache

    @prompt_cache.setter
    def prompt_cache(self, cache: PromptCache) -> None:
        cache.belong_to(self.identity)
        self._prompt_cache = cache

    @property
    def key_bytes(self) -> int:
        """Memory of one token's keys and values in all layers."""
        return self.decoder.key_bytes * self.decoder.num_key_layers

    @property
    def adapted_key_bytes(self) -> int:
        """And in those above the trunk."""
        return self.decoder.key_bytes * (self.decoder.num_key_layers - self.trunk_depth)

    @property
    def num_adapted_layers(self) -> int:
        """Layers above the trunk."""
        return self.num_layers - self.trunk_depth

    @property
    def num_adapted_prompt_tokens(self) -> int:
        """How many tokens at a prompt's end the adapters act on in response scope: the invocation, at least one."""
        return max(1, len(self.invocation))

    @property
    def stop_ids(self) -> list[int]:
        """The tokens that end a response: the tokenizer's and those of the model's generation settings."""
        configured = self.model.generation_config.eos_token_id
        configured = configured if isinstance(configured, list) else [configured]
        return sorted({i for i in (*configured, self.tokenizer.eos_token_id) if i is not None})

    @property
    def stop_id(self) -> int:
        """The one that ends the answers a model learns from: the tokenizer's own, where there are several."""
        own = self.tokenizer.eos_token_id
        return self.stop_ids[0] if own is None else own

    def act_from(self, invocation: Sequence[int], loaded: bool = False) -> None:
        """The tokens at a prompt's end from which response-scope adapters act. Those that an adapter was loaded with
        stay, even if there are none.
        """
        self.invocation = list(invocation)
        self.invocation_is_loaded |= loaded

    # ------------------------------------------------------------------------------------------------ adapters

    def add_adapter(self, name: str, lora: LoraConfig) -> None:
        """Grafts a new adapter; it changes nothing until it is trained (LoRA's B starts at zero)."""
        if self.peft_model is None:
            self.peft_model = get_peft_model(self.model, lora, adapter_name=name)
        else:
            self.peft_model.add_adapter(name, lora)
        self.peft_model.eval()
        self._tuner_layers = [m for m in self.model.modules() if isinstance(m, BaseTunerLayer)]
        for layer in self._tuner_layers:
            fast_linear.adopt(layer)
        for weight in self.adapter_parameters(name):
            weight.data = weight.data.to(self.device)  # peft puts it where the layer's weights rest
        self._role_is_known = False  # grafting activates adapters behind our back
        self._activation_bytes = None
        layers = lora.layers_to_transform
        lowest = 0 if layers is None else min(layers) if isinstance(layers, list) else int(layers)
        self.trunk_depth = min(self.trunk_depth, lowest) if self.decoder.shares_trunk else 0

    def adapter_parameters(self, name: str) -> list[nn.Parameter]:
        return [p for n, p in self.model.named_parameters() if adapter_of(n) == name]

    def take_role(self, adapter: str | None) -> None:
        """The one place that switches adapters; None is the bare base. Every pass through the layers begins with it."""
        if self._role_is_known and adapter == self._role:
            return
        for layer in self._tuner_layers:
            layer.enable_adapters(adapter is not None)
            if adapter is not None:
                layer.set_adapter(adapter)  # peft also makes this adapter trainable, and the others not
        self._role, self._role_is_known = adapter, True

    @contextmanager
    def dropout(self) -> Iterator[None]:
        """The adapters' dropout at work: for learning from people's texts. PPO leaves it off."""
        for layer in self._tuner_layers:
            layer.train()
        try:
            yield
        finally:
            for layer in self._tuner_layers:
                layer.eval()

    # ---------------------------------------------------------------------------------------- what a role reads

    def state_hidden(self, adapter: str | None, context: SharedContext) -> Tensor:
        """The adapter's hidden state before each response token, ready for a head.  -> [B, T, H]"""
        decoder = self.decoder
        hidden = decoder.embed(context.suffix_ids) if context.trunk is None else context.trunk
        cache = context.cache(self.trunk_depth)
        self.take_role(adapter)
        hidden = decoder.run_layers(hidden, context.key_mask, cache, range(self.trunk_depth, self.num_layers))
        return decoder.norm(hidden[:, -context.response.shape[1] :])

    def context_of(self, sa_pairs: SAPairs) -> SharedContext:
        """What the base already computed for these sequences; computed now for those that come from elsewhere."""
        if sa_pairs.context is not None:
            return sa_pairs.context
        if sa_pairs.prompt_ids is None or sa_pairs.prompt_mask is None:
            raise InputError("these SA pairs carry no 'state', so no model can read them; build them with their states")
        return self.build_context(sa_pairs.prompt_ids, sa_pairs.prompt_mask, sa_pairs["action"])

    # -------------------------------------------------------------------------------------- work done once

    def suffix_start(self, prompt_width: int) -> int:
        """First prompt column that the adapters act on."""
        return 0 if self.scope == "sequence" else max(prompt_width - self.num_adapted_prompt_tokens, 0)

    @torch.no_grad()
    def read_prompts(self, prompt_ids: Tensor, prompt_mask: Tensor, room: int) -> GrowingCache | OwnState:
        """What the base keeps of the prefixes, with room for `room` more tokens of each sequence. Keys and values of
        prefixes that several sequences begin with are there once.
        """
        if not self.decoder.shares_prompts:
            return OwnState(len(prompt_ids))
        start = self.suffix_start(prompt_ids.shape[1])
        ids, real = prompt_ids[:, :start].tolist(), prompt_mask[:, :start].tolist()
        prefixes = [tuple(compress(i, r)) for i, r in zip(ids, real, strict=True)]
        entries = self.prompt_cache.lookup(prefixes, self._prefill, self.beginning) if start else []
        rows = {prefix: row for row, prefix in enumerate(dict.fromkeys(prefixes))}
        if start == 0 or len(rows) == len(prefixes) or not self.shares_prefixes:
            cache = self._room(len(prefixes), start + room)
            return GrowingCache(cache, filled=start, states=side_by_side(entries, cache, start))
        shared = self._room(len(rows), start)
        side_by_side(list(dict(zip(prefixes, entries, strict=True)).values()), shared, start)
        lengths = torch.tensor([len(prefix) for prefix in rows])
        key_mask = torch.arange(start) >= start - lengths[:, None]  # [prompts, start]
        prefix = SharedPrefix(shared, torch.tensor([rows[p] for p in prefixes]), key_mask)
        return GrowingCache(self._room(len(prefixes), room), filled=0, shared=prefix)

    def _room(self, batch: int, width: int) -> Tensor:
        """[layers, 2, B, key_heads, width, D]"""
        return self.head.new_zeros(self.decoder.num_key_layers, 2, batch, *self.decoder.key_shape(width))

    def context_before(self, prompt_ids: Tensor, prompt_mask: Tensor, cache: GrowingCache | OwnState) -> SharedContext:
        """What a cache holds of the prompts above the trunk, with no response yet."""
        start, nothing = self.suffix_start(prompt_ids.shape[1]), prompt_ids[:, :0]
        context = SharedContext(prompt_ids, prompt_mask, nothing, start, self._room(len(prompt_ids), 0), trunk=None)
        if isinstance(cache, OwnState):
            return context
        if cache.shared is not None:
            return replace(context, prefix=cache.shared.entries[self.trunk_depth :], prefix_rows=cache.shared.rows)
        return replace(context, prefix=cache.room[self.trunk_depth :, ..., :start, :], states=cache.states)

    @torch.no_grad()
    def build_context(self, prompt_ids: Tensor, prompt_mask: Tensor, response: Tensor) -> SharedContext:
        """The shared context of sequences that were not generated just now."""
        room = prompt_ids.shape[1] - self.suffix_start(prompt_ids.shape[1]) + response.shape[1]
        cache = self.read_prompts(prompt_ids, prompt_mask, room)
        context = replace(self.context_before(prompt_ids, prompt_mask, cache), response=response)
        if self.trunk_depth == 0:
            return context
        self.take_role(None)
        hidden = self.decoder.embed(context.suffix_ids)
        trunk = self.decoder.run_layers(hidden, context.key_mask, cache, range(self.trunk_depth))
        return replace(context.on_its_own(), trunk=trunk)  # without the layers of the trunk

    @property
    def activation_bytes(self) -> int:
        """What a training pass keeps of each token it computes, until its gradient is computed."""
        if self.decoder.activation_bytes is not None:
            return self.decoder.activation_bytes * self.num_adapted_layers
        if self._activation_bytes is None:
            self._activation_bytes = self._kept_by_a_pass()
        return self._activation_bytes

    @torch.enable_grad()
    def _kept_by_a_pass(self) -> int:
        """Of each token, found out by a pass over a short text: what torch saves for the gradients of an adapter."""
        weights = {w.untyped_storage().data_ptr() for w in self.model.parameters() if is_plain(w)}
        kept: dict[int, int] = {}
        is_sharded = self.is_sharded

        def keep(saved: Tensor) -> Tensor:
            storage = saved.untyped_storage()
            if is_sharded and storage.data_ptr() not in kept:  # which layer is whole changes all the time
                weights.update(w.untyped_storage().data_ptr() for w in self.model.parameters() if is_plain(w))
            if storage.data_ptr() not in weights:
                kept[storage.data_ptr()] = storage.nbytes()
            return saved

        ids = torch.linspace(0, len(self.head) - 1, PROBE_TOKENS, device=self.device).long()[None]
        nothing = FixedPrefix(self._room(1, 0)[self.trunk_depth :], self.trunk_depth)
        self.take_role(next(iter(self.peft_model.peft_config)) if self.peft_model else None)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
            hidden = self.decoder.embed(ids)
            layers = range(self.trunk_depth, self.num_layers)
            states = self.decoder.run_layers(hidden, torch.ones_like(ids).bool(), nothing, layers)
        del states  # until here nothing that was saved could be freed, and its place taken by another
        return max(1, sum(kept.values()) // ids.numel())

    @property
    def prefix_activation_bytes(self) -> int:
        """What a training pass holds of each token of the prefix, which it reads but does not compute: keys and values,
        as cut for the micro-batch and as the layers read them."""
        return 2 * self.adapted_key_bytes

    @property
    def state_activation_bytes(self) -> int:
        """And of each prefix, whatever its length: states, as cut for the micro-batch and as the layers read them."""
        return 2 * self.decoder.state_bytes if self.scope == "response" else 0

    @property
    def prefix_cost(self) -> float:
        """Of a token of the prefix in a training pass, in computed tokens."""
        return self.prefix_activation_bytes / self.activation_bytes

    @property
    def state_cost(self) -> float:
        """And of the prefix's states."""
        return self.state_activation_bytes / self.activation_bytes

    def pass_sizes(self, prompt_tokens: int, answer_tokens: int) -> tuple[float, float, float]:
        """A sequence in a training pass, in computed tokens: the prefix (by what reading it costs), the adapted end of
        the prompt, the answer.
        """
        prefix = self.suffix_start(prompt_tokens)
        return prefix * self.prefix_cost + self.state_cost, prompt_tokens - prefix, answer_tokens

    def agree_on_beginning(self, prompts: Sequence[Sequence[int]]) -> None:
        """What all these prompts begin with (a system prompt) will be read once for all of them."""
        ends = self.num_adapted_prompt_tokens  # not the base's to read
        shared = shared_beginning([p[: len(p) - ends] for p in prompts]) if len(prompts) > 1 else []
        self.beginning = tuple(shared) if len(shared) >= MIN_SHARED_BEGINNING else ()
        self._beginning_read = None

    def _prefill(self, prompts: list[tuple[int, ...]]) -> list[Reading]:
        """Prompts, sorted by length, as read; of those with the agreed beginning, only the rest is read."""
        size = len(self.beginning)
        begun = [p for p in prompts if size and p[:size] == self.beginning]
        others = [p for p in prompts if not size or p[:size] != self.beginning]
        if begun and self._beginning_read is None:
            (self._beginning_read,) = self._read_after(None, [self.beginning])
        read = dict(zip(begun, self._read_after(self._beginning_read, [p[size:] for p in begun]), strict=True))
        read |= dict(zip(others, self._read_after(None, others), strict=True))
        return [read[p] for p in prompts]

    def _read_after(self, beginning: Reading | None, texts: list[tuple[int, ...]]) -> list[Reading]:
        """A beginning and each text behind it, read in chunks. Padding is on the right; where it would pass through
        states, only texts of one length are read together.

        What is kept for later steps is read one by one: its last bits must not depend on what was read beside it, or a
        resumed run, which begins with nothing kept, would go another way.
        """
        longest_chunk = 1 if self.prompt_cache.max_bytes else PREFILL_TOKENS
        readings: list[Reading] = []
        while len(readings) < len(texts):
            rest = texts[len(readings) :]
            longest = len(rest[0]) if self.decoder.keeps_states else max(map(len, rest))  # they come sorted
            fits = [n for n, t in enumerate(rest, 1) if len(t) <= longest and n * max(len(t), 1) <= longest_chunk]
            chunk = rest[: max(1, len(fits))]
            width = max(len(t) for t in chunk)
            if not width:
                readings += [self.decoder.nothing_read() if beginning is None else beginning] * len(chunk)
                continue
            ids = torch.tensor([list(t) + [0] * (width - len(t)) for t in chunk], dtype=torch.long, device=self.device)
            recorder = Recorder(beginning, len(chunk))
            self.take_role(None)
            key_mask = ids.new_ones(len(chunk), recorder.seen + width).bool()
            self.decoder.run_layers(self.decoder.embed(ids), key_mask, recorder, range(self.num_layers))
            readings += [recorder.row(row, len(t)) for row, t in enumerate(chunk)]
            self.num_prompt_tokens_read += sum(map(len, chunk))
        return readings


def decoder_of(model: Any) -> Decoder | WholeModel:
    """The model's layers called one by one where that gives what the model gives, else the model as a whole."""
    try:
        return Decoder(model)
    except CannotWalkError as error:
        return WholeModel(model, str(error))


def shared_beginning(sequences: Sequence[Sequence[int]]) -> list[int]:
    """The tokens that all sequences begin with; empty where they share none."""
    return [column[0] for column in takewhile(lambda c: len(set(c)) == 1, zip(*sequences, strict=False))]


def shared_ending(prompts: Sequence[Sequence[int]], longest: int = 8) -> list[int]:
    """The tokens that all prompts end in, at most `longest`; empty where they share none."""
    return shared_beginning([p[::-1][:longest] for p in prompts])[::-1]
