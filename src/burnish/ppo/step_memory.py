"""What a PPO step holds in memory, as a formula of sizes: of a base that is loaded, or of one only described."""

from __future__ import annotations

from dataclasses import dataclass, replace

from burnish.config import PPOConfig
from burnish.decoder.head import CHUNK_BYTES
from burnish.decoder.shared_base import PREFILL_TOKENS, SharedBase
from burnish.processes import world

MEGABYTE = 2**20
HOLES = 1.2  # the next tensor does not always fit where the last one was: a fifth more than is in use, as measured
GROWTH = 3  # times its weights that training adds to a role: gradients, and Adam's two moments


@dataclass(frozen=True)
class BaseSizes:
    """Of a base with its adapters; bytes of one token unless said otherwise."""

    num_adapted_prompt_tokens: int
    """At a prompt's end; 0: the adapters act on all of it."""
    shares_prefixes: bool
    has_trunk: bool
    hidden_size: int
    vocabulary: int
    number_bytes: int
    key_bytes: float
    """Keys and values in all layers."""
    adapted_key_bytes: float
    activation_bytes: float
    """What a training pass keeps."""
    prefix_activation_bytes: float
    state_bytes: float
    """Of one text: what layers that are not attention keep."""
    state_activation_bytes: float
    work_bytes: float

    def suffix_start(self, prompt_width: int) -> int:
        """First prompt column that the adapters act on."""
        own = self.num_adapted_prompt_tokens
        return max(prompt_width - own, 0) if own else 0

    def with_layers(self, times: float) -> BaseSizes:
        """The same with so many times the layers."""
        return self._grown(times, *IN_ALL_LAYERS)

    def in_numbers(self, vocabulary: int, number_bytes: int) -> BaseSizes:
        """The same with another vocabulary, and numbers of another size."""
        grown = self._grown(number_bytes / self.number_bytes, *IN_ALL_LAYERS, "work_bytes")
        return replace(grown, vocabulary=vocabulary, number_bytes=number_bytes)

    def _grown(self, times: float, *names: str) -> BaseSizes:
        return replace(self, **{name: times * getattr(self, name) for name in names})


IN_ALL_LAYERS = (
    "key_bytes",
    "adapted_key_bytes",
    "activation_bytes",
    "prefix_activation_bytes",
    "state_bytes",
    "state_activation_bytes",
)


def sizes_of(base: SharedBase) -> BaseSizes:
    return BaseSizes(
        num_adapted_prompt_tokens=0 if base.scope == "sequence" else base.num_adapted_prompt_tokens,
        shares_prefixes=base.shares_prefixes,
        has_trunk=base.trunk_depth > 0,
        hidden_size=base.hidden_size,
        vocabulary=base.head.shape[0],
        number_bytes=base.decoder.number_bytes,
        key_bytes=base.key_bytes,
        adapted_key_bytes=base.adapted_key_bytes,
        activation_bytes=base.activation_bytes,
        prefix_activation_bytes=base.prefix_activation_bytes,
        state_bytes=base.decoder.state_bytes,
        state_activation_bytes=base.state_activation_bytes,
        work_bytes=base.decoder.work_bytes,
    )


@dataclass(frozen=True)
class Work:
    """Bytes that steps hold beside the models."""

    prompts: float
    """The base's reading of prompts, kept."""
    room: float
    """Keys and values of one batch while it is decoded."""
    context: float
    """What stays of them for scoring and training, with the trunk."""
    reading: float
    """Reading prompts, before a batch has its room: what all layers record, and one layer at work."""
    sampling: float
    """Logits of one token for every sequence, as they come and as the sampler works on them."""
    scoring: float
    """The reference's logits and the policy's, for a chunk of the states of a batch."""
    training: float
    """One pass of a micro-batch, and the head's work on a chunk of its states."""

    @property
    def largest_phase(self) -> float:
        """Phases take turns."""
        decoding = self.room + self.context + self.sampling
        return max(self.reading, decoding, self.context + max(self.scoring, self.training))


def work_of(base: BaseSizes, config: PPOConfig, prompt_lengths: list[int]) -> Work:
    """What steps on prompts of these lengths hold."""
    number = base.number_bytes
    batch = -(-config.prompts_per_step // world.size()) * config.responses_per_prompt  # the largest share
    longest, new = max(prompt_lengths), config.max_new_tokens
    prefix = base.suffix_start(longest)
    suffix = longest - prefix + new - 1
    prompt_tokens = sum(prompt_lengths) if prefix else 0
    readers = config.responses_per_prompt if base.shares_prefixes else 1  # sequences that share a prefix

    read_at_once = prefix if config.prompt_cache_mb else min(PREFILL_TOKENS, batch // readers * prefix)
    trunk = suffix * base.hidden_size * number if base.has_trunk else 0
    per_sequence = suffix * base.activation_bytes + prefix * base.prefix_activation_bytes / readers
    per_sequence += base.state_activation_bytes
    most = min(config.micro_batch_size or batch, config.mini_batch_size or batch)
    sequences = max(1, min(most, int(config.activation_mb * MEGABYTE // max(per_sequence, 1))))
    whole = min(CHUNK_BYTES, batch * new * base.vocabulary * 4)  # one tensor of a chunk's logits
    kept = min(CHUNK_BYTES, sequences * new * config.top_k * base.hidden_size * 4)  # or of the rows of kept tokens
    in_training = 5 * whole if config.kl_in != "reward" else 2 * kept if config.top_k else 3 * whole
    state = base.state_bytes  # of one text
    kept_prefix = prefix * base.adapted_key_bytes / readers + (state if prefix else 0)
    states = batch * new * base.hidden_size * number
    kept_states = len(prompt_lengths) * state if prefix else 0
    return Work(
        prompts=min(config.prompt_cache_mb * MEGABYTE, prompt_tokens * base.key_bytes + kept_states),
        room=batch * ((prefix / readers + longest - prefix + new) * base.key_bytes + state),
        context=batch * (kept_prefix + trunk + new * config.top_k * 4) + states,
        reading=read_at_once * (base.key_bytes + base.work_bytes) + state,
        sampling=5 * batch * base.vocabulary * 4,
        scoring=5 * whole + 2 * states,
        training=sequences * per_sequence + in_training,
    )
