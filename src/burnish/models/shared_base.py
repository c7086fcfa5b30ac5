"""One frozen base model, and the adapters grafted on it.

Four roles in the memory of one model: the policy, the value model and the reward model are LoRA adapters, the
reference is the base itself. This file owns three things that the roles share: which adapter is active, the walk
through the decoder's layers, and the work that the frozen part does once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from burnish.errors import InputError
from burnish.guards import is_out_of_memory
from burnish.memory import keep_freed_memory
from burnish.models import attention, fast_linear, fast_norm
from burnish.models.base_identity import BaseIdentity, adapter_of
from burnish.models.key_values import FixedPrefix, GrowingCache, PromptCache, Recorder
from burnish.models.shared_context import SharedContext, causal_mask, positions_of

PREFILL_TOKENS = 4096  # prompt tokens that go through the base in one pass, padding included
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
        model.eval()  # for good: dropout would move the ratios before anything is learned
        self.model = model.requires_grad_(False)
        self.tokenizer = tokenizer
        self.scope = scope
        self.invocation: list[int] = []
        self.invocation_is_loaded = False  # an adapter came with it, so it stays, even if it is empty
        self.identity = identity or BaseIdentity(model, tokenizer)
        self.prompt_cache = PromptCache(prompt_cache_bytes)
        self.num_prompt_tokens_read = 0
        self.beginning: tuple[int, ...] = ()
        self._beginning_entry: Tensor | None = None
        self.decoder = model.get_decoder()
        for part in ("embed_tokens", "layers", "norm", "rotary_emb"):
            if not hasattr(self.decoder, part):
                raise InputError(
                    f"{type(model).__name__} is not built like a Llama, Qwen or Mistral decoder (it has no {part!r}); "
                    "use a model of one of those families"
                )
        self.num_layers = len(self.decoder.layers)
        self.trunk_depth = self.num_layers  # layers below the lowest adapter; none is grafted yet
        self.head: Tensor = model.get_output_embeddings().weight  # [V, H]
        self.peft_model: PeftModel | None = None
        self._tuner_layers: list[BaseTunerLayer] = []
        self._role: str | None = None
        self._adopt_layers()
        if self.device.type == "cpu":
            keep_freed_memory()

    # ---------------------------------------------------------------------------------------------- properties

    @property
    def device(self) -> torch.device:
        return self.head.device

    @property
    def hidden_size(self) -> int:
        return self.head.shape[1]

    @property
    def in_half_precision(self) -> bool:
        return self.head.element_size() < 4

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
        key_heads, _, head_dim = self._key_shape(0)
        return 2 * self.num_layers * key_heads * head_dim * self.head.element_size()

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
        self._role = "a role nobody has"  # grafting activates adapters behind our back
        layers = lora.layers_to_transform
        lowest = 0 if layers is None else min(layers) if isinstance(layers, list) else int(layers)
        self.trunk_depth = min(self.trunk_depth, lowest)

    def adapter_parameters(self, name: str) -> list[nn.Parameter]:
        return [p for n, p in self.model.named_parameters() if adapter_of(n) == name]

    def take_role(self, adapter: str | None) -> None:
        """The one place that switches adapters; None is the bare base. Every pass through the layers begins with it."""
        if adapter == self._role:
            return
        for layer in self._tuner_layers:
            layer.enable_adapters(adapter is not None)
            if adapter is not None:
                layer.set_adapter(adapter)  # peft also makes this adapter trainable, and the others not
        self._role = adapter

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

    # -------------------------------------------------------------------------------------------- the layer walk

    def embed(self, ids: Tensor) -> Tensor:
        return self.decoder.embed_tokens(ids)  # [B, S, H]

    def run_layers(self, hidden: Tensor, key_mask: Tensor, cache: Any, layers: range) -> Tensor:
        """Hidden states at the last positions of `key_mask` through some layers.  [B, Q, H] -> [B, Q, H]"""
        num_queries = hidden.shape[1]
        positions = positions_of(key_mask)[:, -num_queries:]
        mask = attention.Blocks.of(causal_mask(key_mask, num_queries), self._heads_per_key, hidden.dtype)
        rotary = self.decoder.rotary_emb(hidden, positions)
        for i in layers:
            hidden = self.decoder.layers[i](
                hidden,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                position_embeddings=rotary,
            )
        return hidden

    def norm(self, hidden: Tensor) -> Tensor:
        return self.decoder.norm(hidden)

    def state_hidden(self, adapter: str | None, context: SharedContext) -> Tensor:
        """The adapter's hidden state before each response token, ready for a head.  -> [B, T, H]"""
        hidden = self.embed(context.suffix_ids) if context.trunk is None else context.trunk
        cache = FixedPrefix(context.prefix, self.trunk_depth)
        self.take_role(adapter)
        hidden = self.run_layers(hidden, context.key_mask, cache, range(self.trunk_depth, self.num_layers))
        return self.norm(hidden[:, -context.response.shape[1] :])

    # -------------------------------------------------------------------------------------- work done once

    def suffix_start(self, prompt_width: int) -> int:
        """First prompt column that the adapters act on."""
        return 0 if self.scope == "sequence" else max(prompt_width - self.num_adapted_prompt_tokens, 0)

    @torch.no_grad()
    def read_prompts(self, prompt_ids: Tensor, prompt_mask: Tensor, room: int) -> GrowingCache:
        """The base's keys and values of the shared prefix, with room for `room` more tokens behind it."""
        start = self.suffix_start(prompt_ids.shape[1])
        prefixes = [tuple(i[m].tolist()) for i, m in zip(prompt_ids[:, :start], prompt_mask[:, :start], strict=True)]
        entries = self.prompt_cache.lookup(prefixes, self._prefill, self.beginning) if start else []
        batch = prompt_ids.shape[0]
        cache = self.head.new_zeros(self.num_layers, 2, batch, *self._key_shape(start + room))
        for row, entry in enumerate(entries):
            cache[:, :, row, :, start - entry.shape[3] : start] = entry
        return GrowingCache(cache, filled=start)

    @torch.no_grad()
    def build_context(self, prompt_ids: Tensor, prompt_mask: Tensor, response: Tensor) -> SharedContext:
        """The shared context of sequences that were not generated just now."""
        start = self.suffix_start(prompt_ids.shape[1])
        cache = self.read_prompts(prompt_ids, prompt_mask, room=prompt_ids.shape[1] - start + response.shape[1])
        context = SharedContext(
            prompt_ids, prompt_mask, response, start, prefix=cache.room[self.trunk_depth :, ..., :start, :], trunk=None
        )
        if self.trunk_depth == 0:
            return context
        self.take_role(None)
        trunk = self.run_layers(self.embed(context.suffix_ids), context.key_mask, cache, range(self.trunk_depth))
        return SharedContext(prompt_ids, prompt_mask, response, start, context.prefix.clone(), trunk)

    @property
    def activation_bytes(self) -> int:
        """What a training pass keeps of each token until its gradient is computed.

        Per adapted layer: two residual streams and two normed ones, the queries and the attention's result (each as
        computed and as laid out for the next product), keys and values, and four tensors of the feed-forward part.
        """
        config = self.model.config
        key_heads, _, head_dim = self._key_shape(0)
        per_layer = (
            4 * config.hidden_size
            + 4 * config.num_attention_heads * head_dim
            + 2 * key_heads * head_dim
            + 4 * config.intermediate_size
        )
        return per_layer * (self.num_layers - self.trunk_depth) * self.head.element_size()

    @property
    def prefix_activation_bytes(self) -> int:
        """And of each token of the prefix: keys and values, as cut for the micro-batch and as the layers read them."""
        return 2 * self.key_bytes * (self.num_layers - self.trunk_depth) // self.num_layers

    def pass_size(self, prompt_tokens: int, answer_tokens: int) -> float:
        """A sequence in a training pass, in tokens: those computed, and those of the prefix by what one costs."""
        prompt_end = prompt_tokens - self.suffix_start(prompt_tokens)
        prefix_cost = self.prefix_activation_bytes / self.activation_bytes
        return prompt_end + answer_tokens + (prompt_tokens - prompt_end) * prefix_cost

    @property
    def _heads_per_key(self) -> int:
        return self.model.config.num_attention_heads // self.model.config.num_key_value_heads

    def _key_shape(self, width: int) -> tuple[int, int, int]:
        config = self.model.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return config.num_key_value_heads, width, head_dim

    def agree_on_beginning(self, prompts: Sequence[Sequence[int]]) -> None:
        """What all these prompts begin with (a system prompt) will be read once for all of them."""
        ends = self.num_adapted_prompt_tokens  # not the base's to read
        shared = shared_beginning([p[: len(p) - ends] for p in prompts]) if len(prompts) > 1 else []
        self.beginning = tuple(shared) if len(shared) >= MIN_SHARED_BEGINNING else ()
        self._beginning_entry = None

    def _prefill(self, prompts: list[tuple[int, ...]]) -> list[Tensor]:
        """Keys and values of prompts, sorted by length; of those with the agreed beginning, only the rest is read."""
        size = len(self.beginning)
        begun = [p for p in prompts if size and p[:size] == self.beginning]
        others = [p for p in prompts if not size or p[:size] != self.beginning]
        if begun and self._beginning_entry is None:
            (self._beginning_entry,) = self._read_after(None, [self.beginning])
        read = dict(zip(begun, self._read_after(self._beginning_entry, [p[size:] for p in begun]), strict=True))
        read |= dict(zip(others, self._read_after(None, others), strict=True))
        return [read[p] for p in prompts]

    def _read_after(self, beginning: Tensor | None, texts: list[tuple[int, ...]]) -> list[Tensor]:
        """Keys and values of a beginning and each text behind it, read in chunks. Padding lies to the right.

        What is kept for later steps is read one by one: its last bits must not depend on what was read beside it, or a
        resumed run, which begins with nothing kept, would go another way.
        """
        longest_chunk = 1 if self.prompt_cache.max_bytes else PREFILL_TOKENS
        entries: list[Tensor] = []
        while len(entries) < len(texts):
            rest = texts[len(entries) :]
            take = max(1, sum(1 for n, t in enumerate(rest, 1) if n * max(len(t), 1) <= longest_chunk))
            chunk = rest[:take]
            width = max(len(t) for t in chunk)
            if not width:
                nothing = self.head.new_zeros(self.num_layers, 2, *self._key_shape(0))
                entries += [nothing if beginning is None else beginning] * len(chunk)
                continue
            ids = torch.tensor([list(t) + [0] * (width - len(t)) for t in chunk], dtype=torch.long, device=self.device)
            seen = width if beginning is None else beginning.shape[3] + width
            recorder = Recorder(beginning)
            self.take_role(None)
            self.run_layers(self.embed(ids), ids.new_ones(len(chunk), seen).bool(), recorder, range(self.num_layers))
            entries += [recorder.row(row, len(t)) for row, t in enumerate(chunk)]
            self.num_prompt_tokens_read += sum(map(len, chunk))
        return entries

    @torch.no_grad()
    def _adopt_layers(self) -> None:
        """Walking the layers ourselves must give the logits that the model's own forward pass gave, or we refuse it."""
        # Ordinary tokens from all over the vocabulary. The first ids are often control tokens, which a model hardly saw
        # in training: their rounding errors are fifty times larger.
        ids = torch.linspace(0, self.head.shape[0] - 1, 18, device=self.device).long()[None, 1:-1]  # [1, 16]
        theirs = self.model(input_ids=ids, use_cache=False).logits.float()
        self.model.set_attn_implementation(attention.NAME)
        for module in self.decoder.modules():
            fast_linear.adopt(module)
            fast_norm.adopt(module)
        try:
            hidden = self.run_layers(self.embed(ids), torch.ones_like(ids).bool(), Recorder(), range(self.num_layers))
            ours = (self.norm(hidden) @ self.head.T).float()
            difference = float((ours - theirs).abs().max() / theirs.abs().max())
        except (TypeError, ValueError, RuntimeError, AttributeError) as error:
            if is_out_of_memory(error):
                raise
            difference = torch.inf
        if not difference <= (1e-4 if self.head.dtype == torch.float32 else 5e-2):
            raise InputError(
                f"{type(self.model).__name__} does something in or between its layers that burnish does not know "
                "(its logits come out differently); use a model of the Llama, Qwen2, Qwen3 or Mistral family"
            )


def context_length(model_config: Any) -> int:
    """Tokens that fit. A sliding window is the limit where there is one: every token must see all before it."""
    text_config = model_config.get_text_config()
    positions = getattr(text_config, "max_position_embeddings", None)
    if positions is None:
        raise InputError(
            f"{text_config.model_type} is not a model of the Llama, Qwen2, Qwen3 or Mistral family; use one"
        )
    return int(min(positions, getattr(text_config, "sliding_window", None) or positions))


def shared_beginning(sequences: Sequence[Sequence[int]]) -> list[int]:
    """The tokens that all sequences begin with; empty where they share none."""
    return [column[0] for column in takewhile(lambda c: len(set(c)) == 1, zip(*sequences, strict=False))]


def shared_ending(prompts: Sequence[Sequence[int]], longest: int = 8) -> list[int]:
    """The tokens that all prompts end in, at most `longest`; empty where they share none."""
    return shared_beginning([p[::-1][:longest] for p in prompts])[::-1]
