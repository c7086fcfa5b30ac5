"""The local engine: decodes on the shared base, all sequences of a batch together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from burnish.decoder.key_values import GrowingCache
from burnish.decoder.model_cache import OwnState
from burnish.decoder.shared_base import SharedBase
from burnish.decoder.shared_context import SharedContext
from burnish.errors import DivergedError
from burnish.models.policy_model import PolicyModel
from burnish.rollout.rollout import Rollout
from burnish.rollout.sampling import Sampled, Sampler
from burnish.sa_pairs.padding import left_padded

# Finished sequences leave the decoding batch when they are this share of it: each departure copies the cache once.
DROP_WHEN_FINISHED = 0.25
# Tokens from one look at who still speaks to the next, where the model is not on the CPU: at a look the host waits for
# the device, which then has nothing to do. What is decoded meanwhile for responses that have ended is not kept.
TOKENS_PER_LOOK = 8


class LocalEngine:
    """Decodes token by token; log-probabilities, kept sets and the shared context are by-products."""

    @torch.no_grad()
    def generate(
        self,
        speaker: PolicyModel,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        sampler: Sampler,
        generator: torch.Generator | None = None,
        stop_ids: Sequence[int] | None = None,
    ) -> Rollout:
        base = speaker.base
        lengths = sorted({len(p) for p in prompts})
        if len(lengths) > 1 and not base.decoder.pads_left:
            groups = [[i for i, p in enumerate(prompts) if len(p) == length] for length in lengths]
            parts = [
                self.generate(
                    speaker, [prompts[i] for i in group], max_new_tokens, sampler.of_rows(group), generator, stop_ids
                )
                for group in groups
            ]
            return Rollout.joined(parts, groups)
        prompt_ids, prompt_mask = (t.to(base.device) for t in left_padded(prompts))
        start = base.suffix_start(prompt_ids.shape[1])
        num_suffix = prompt_ids.shape[1] - start
        cache = base.read_prompts(prompt_ids, prompt_mask, room=num_suffix + max_new_tokens)
        context = base.context_before(prompt_ids, prompt_mask, cache)
        context = context.on_its_own()  # without the layers of the trunk, and without the room for the response
        tape = _Tape(len(prompts), max_new_tokens, num_suffix, base.head, base.trunk_depth > 0, sampler)
        stop = torch.tensor(list(base.stop_ids if stop_ids is None else stop_ids), device=base.device)
        base.take_role(speaker.adapter)
        _decode(base, prompt_ids[:, start:], prompt_mask, cache, tape, sampler, generator, stop)
        return tape.rollout(context)


def _decode(
    base: SharedBase,
    inputs: Tensor,
    key_mask: Tensor,
    cache: GrowingCache | OwnState,
    tape: _Tape,
    sampler: Sampler,
    generator: torch.Generator | None,
    stop_ids: Tensor,
) -> None:
    decoder = base.decoder
    tokens_per_look, looked = 1 if base.device.type == "cpu" else TOKENS_PER_LOOK, 0
    rows = torch.arange(inputs.shape[0], device=base.device)  # the sequences in the batch
    alive = torch.ones_like(rows, dtype=torch.bool)  # and which of them still speak
    for t in range(tape.max_new_tokens):
        trunk = decoder.run_layers(decoder.embed(inputs), key_mask, cache, range(base.trunk_depth))
        hidden = decoder.run_layers(trunk, key_mask, cache, range(base.trunk_depth, base.num_layers))
        cache.advance(inputs.shape[1])
        state = decoder.norm(hidden[:, -1])  # [n, H]
        sampled = sampler(decoder.logits(state).contiguous(), generator, rows)
        tape.write(t, rows, alive, trunk, state, sampled)
        alive = alive & ~torch.isin(sampled.action, stop_ids)
        tape.finished[rows] = ~alive
        inputs, key_mask = sampled.action[:, None], torch.cat([key_mask, torch.ones_like(key_mask[:, :1])], dim=1)
        if t + 1 < min(looked + tokens_per_look, tape.max_new_tokens):
            continue
        speak, sound = torch.stack([alive, tape.logprob[rows, looked : t + 1].isfinite().all(1)]).tolist()
        looked = t + 1
        if not all(sound):
            raise DivergedError(
                f"the policy's logits are not finite (response {int(rows[sound.index(False)])}); its last update "
                "ruined it. Lower the learning rate"
            )
        if not any(speak):
            break
        if speak.count(False) >= DROP_WHEN_FINISHED * len(speak):
            stay = torch.tensor([row for row, speaks in enumerate(speak) if speaks], device=base.device)
            cache.keep_rows(stay)
            rows, alive, inputs, key_mask = (x[stay] for x in (rows, alive, inputs, key_mask))


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
        """Token t of the sequences in `rows`; of those that are not alive, nothing."""

        def of_alive(x: Tensor, nothing: int = 0) -> Tensor:
            return x.masked_fill(~alive.view(-1, *[1] * (x.dim() - 1)), nothing)

        self.mask[rows, t] = alive
        self.states[rows, t] = of_alive(state)
        self.action[rows, t] = of_alive(sampled.action)
        self.logprob[rows, t] = of_alive(sampled.logprob)
        self.entropy[rows, t] = of_alive(sampled.entropy)
        columns = slice(0, self.num_suffix) if t == 0 else slice(self.num_suffix + t - 1, self.num_suffix + t)
        if self.trunk is not None:
            self.trunk[rows, columns] = of_alive(trunk)
        if sampled.kept is not None:
            size = sampled.kept.shape[1]
            self.widest = max(self.widest, size)
            self.kept[rows, t, :size] = of_alive(sampled.kept, -1)

    def rollout(self, context: SharedContext) -> Rollout:
        """`context` is that of the prompts."""
        width = int(self.mask.sum(1).max())  # no column that nobody reached
        kept = self.kept[:, :width, : self.widest] if self.widest else None
        trunk = None if self.trunk is None else self.trunk[:, : self.num_suffix + width - 1]
        action = self.action[:, :width]
        return Rollout(
            prompt_ids=context.prompt_ids,
            prompt_mask=context.prompt_mask,
            action=action,
            mask=self.mask[:, :width],
            finished=self.finished,
            logprob=self.logprob[:, :width],
            entropy=self.entropy[:, :width],
            kept=kept,
            states=self.states[:, :width],
            context=replace(context, response=action, trunk=trunk),
        )
