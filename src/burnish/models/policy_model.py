"""The policy: the model that PPO trains. It generates token by token and scores its own tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.models.base_model import LanguageModel
from burnish.models.fast_linear import times_weight
from burnish.models.key_values import GrowingCache
from burnish.models.sampling import Sampled, Sampler
from burnish.models.shared_context import SharedContext
from burnish.sa_pairs import left_padded

# Finished sequences leave the decoding batch when they are this share of it: each departure copies the cache once.
DROP_WHEN_FINISHED = 0.25


@dataclass(frozen=True, eq=False)
class Rollout:
    """What one generation produced: B responses of up to T tokens."""

    mask: Tensor  # [B, T] bool
    action: Tensor  # [B, T]
    logprob: Tensor  # [B, T]
    entropy: Tensor  # [B, T]
    kept: Tensor | None  # [B, T, k]
    finished: Tensor  # [B] bool: ended in a stop token
    states: Tensor  # [B, T, H]: what each token was sampled from, ready for the head
    context: SharedContext


class PolicyModel(LanguageModel):
    """The trained role. In the first step it equals the reference, as its adapter starts at zero."""

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        sampler: Sampler,
        generator: torch.Generator | None = None,
    ) -> Rollout:
        """Continues every prompt until a stop token or `max_new_tokens`."""
        base = self.base
        prompt_ids, prompt_mask = (t.to(base.device) for t in left_padded(prompts))
        start = base.suffix_start(prompt_ids.shape[1])
        num_suffix = prompt_ids.shape[1] - start
        cache = base.read_prompts(prompt_ids, prompt_mask, room=num_suffix + max_new_tokens)
        prefix = cache.room[base.trunk_depth :, ..., :start, :].clone()
        tape = _Tape(len(prompts), max_new_tokens, num_suffix, base.head, base.trunk_depth > 0, sampler)
        base.take_role(self.adapter)
        self._decode(prompt_ids[:, start:], prompt_mask, cache, tape, sampler, generator)
        return tape.rollout(prompt_ids, prompt_mask, start, prefix)

    def _decode(
        self,
        inputs: Tensor,
        key_mask: Tensor,
        cache: GrowingCache,
        tape: _Tape,
        sampler: Sampler,
        generator: torch.Generator | None,
    ) -> None:
        base = self.base
        stop_ids = torch.tensor(base.stop_ids, device=base.device)
        rows = torch.arange(inputs.shape[0], device=base.device)  # the sequences in the batch
        alive = torch.ones_like(rows, dtype=torch.bool)  # and which of them still speak
        for t in range(tape.max_new_tokens):
            trunk = base.run_layers(base.embed(inputs), key_mask, cache, range(base.trunk_depth))
            hidden = base.run_layers(trunk, key_mask, cache, range(base.trunk_depth, base.num_layers))
            cache.advance(inputs.shape[1])
            state = base.norm(hidden[:, -1])  # [n, H]
            sampled = sampler(times_weight(state, base.head).contiguous(), generator, rows)
            tape.write(t, rows[alive], alive, trunk, state, sampled)
            stopped = torch.isin(sampled.action, stop_ids)
            tape.finished[rows[alive & stopped]] = True
            alive = alive & ~stopped
            if not alive.any():
                break
            inputs, key_mask = sampled.action[:, None], torch.cat([key_mask, torch.ones_like(key_mask[:, :1])], dim=1)
            if (~alive).sum() >= DROP_WHEN_FINISHED * len(rows):
                cache.keep_rows(alive)
                rows, inputs, key_mask = rows[alive], inputs[alive], key_mask[alive]
                alive = alive[alive]


class _Tape:
    """Writes down what decoding produces, at the sequences' own rows.

    All its room is taken before the first token. Taken between two tokens, it would settle in the room that the logits
    of one leave, and the next would have to take new memory.
    """

    def __init__(
        self, batch: int, max_new_tokens: int, num_suffix: int, like: Tensor, keep_trunk: bool, sampler: Sampler
    ) -> None:
        self.max_new_tokens = max_new_tokens
        self.num_suffix = num_suffix
        self.mask = torch.zeros(batch, max_new_tokens, dtype=torch.bool, device=like.device)
        self.action = torch.zeros(batch, max_new_tokens, dtype=torch.long, device=like.device)
        self.logprob = torch.zeros(batch, max_new_tokens, device=like.device)
        self.entropy = torch.zeros(batch, max_new_tokens, device=like.device)
        self.finished = torch.zeros(batch, dtype=torch.bool, device=like.device)
        hidden_size = like.shape[1]
        self.states = like.new_zeros(batch, max_new_tokens, hidden_size)
        self.trunk = like.new_zeros(batch, num_suffix + max_new_tokens - 1, hidden_size) if keep_trunk else None
        most = min(sampler.top_k or like.shape[0], like.shape[0]) if sampler.truncates else 0
        self.kept = torch.full((batch, max_new_tokens, most), -1, dtype=torch.int32, device=like.device)
        self.widest = 0  # of the sets kept so far; 0: nothing is cut off

    def write(self, t: int, rows: Tensor, alive: Tensor, trunk: Tensor, state: Tensor, sampled: Sampled) -> None:
        self.mask[rows, t] = True
        self.states[rows, t] = state[alive]
        self.action[rows, t] = sampled.action[alive]
        self.logprob[rows, t] = sampled.logprob[alive]
        self.entropy[rows, t] = sampled.entropy[alive]
        columns = slice(0, self.num_suffix) if t == 0 else slice(self.num_suffix + t - 1, self.num_suffix + t)
        if self.trunk is not None:
            self.trunk[rows, columns] = trunk[alive]
        if sampled.kept is not None:
            size = sampled.kept.shape[1]
            self.widest = max(self.widest, size)
            self.kept[rows, t, :size] = sampled.kept[alive]

    def rollout(self, prompt_ids: Tensor, prompt_mask: Tensor, start: int, prefix: Tensor) -> Rollout:
        width = int(self.mask.sum(1).max())  # no column that nobody reached
        kept = self.kept[:, :width, : self.widest] if self.widest else None
        trunk = None if self.trunk is None else self.trunk[:, : self.num_suffix + width - 1]
        action = self.action[:, :width]
        return Rollout(
            mask=self.mask[:, :width],
            action=action,
            logprob=self.logprob[:, :width],
            entropy=self.entropy[:, :width],
            kept=kept,
            finished=self.finished,
            states=self.states[:, :width],
            context=SharedContext(prompt_ids, prompt_mask, action, start, prefix, trunk),
        )
