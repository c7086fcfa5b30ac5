"""The local engine: decodes on the shared base, all sequences of a batch together."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from burnish.decoder.key_values import GrowingCache
from burnish.decoder.model_cache import OwnState
from burnish.decoder.shared_base import SharedBase
from burnish.decoder.shared_context import SharedContext
from burnish.errors import DivergedError, LostProcessError
from burnish.models.policy_model import PolicyModel
from burnish.processes import world
from burnish.rollout.rollout import Rollout
from burnish.rollout.sampling import Among, Draws, Sampled, Sampler
from burnish.rollout.step import step
from burnish.sa_pairs.padding import left_padded

# Finished sequences leave the decoding batch when they are this share of it: each departure copies the cache once.
DROP_WHEN_FINISHED = 0.25
# Tokens from one look at who still speaks to the next, where the model is not on the CPU: at a look the host waits for
# the device, which then has nothing to do. What is decoded meanwhile for responses that have ended is not kept.
TOKENS_PER_LOOK = 8
GONE = -2  # instead of a response: the process that says so cannot go on


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
        rollout = self.generate_own(speaker, prompts, None, max_new_tokens, sampler, generator, stop_ids)
        assert rollout is not None
        return rollout

    @torch.no_grad()
    def generate_own(
        self,
        speaker: PolicyModel,
        prompts: Sequence[Sequence[int]],
        own: range | None,
        max_new_tokens: int,
        sampler: Sampler,
        generator: torch.Generator | None = None,
        stop_ids: Sequence[int] | None = None,
    ) -> Rollout | None:
        """The share `own` of prompts that several processes decode in step; they get the tokens that one process would
        give them. All prompts, if there is no such share; None, if it is empty.
        """
        base = speaker.base
        lengths = sorted({len(p) for p in prompts})
        if len(lengths) > 1 and not base.decoder.pads_left:
            groups = [[i for i, p in enumerate(prompts) if len(p) == length] for length in lengths]
            parts = [
                self.generate_own(
                    speaker,
                    [prompts[i] for i in group],
                    None if own is None else range(bisect_left(group, own.start), bisect_left(group, own.stop)),
                    max_new_tokens,
                    sampler.of_rows(group),
                    generator,
                    stop_ids,
                )
                for group in groups
            ]
            found = [(part, group) for part, group in zip(parts, groups, strict=True) if part is not None]
            places = [[i for i in group if own is None or i in own] for _, group in found]
            return Rollout.joined([part for part, _ in found], places) if found else None
        with _Crowd(own, len(prompts), generator) as crowd:
            if own is not None:
                prompts, sampler = prompts[own.start : own.stop], sampler.of_rows(own)
                if not prompts:
                    _listen(crowd, range(max_new_tokens), sampler, base.device)
                    return None
            prompt_ids, prompt_mask = (t.to(base.device) for t in left_padded(prompts))
            start = base.suffix_start(prompt_ids.shape[1])
            num_suffix = prompt_ids.shape[1] - start
            cache = base.read_prompts(prompt_ids, prompt_mask, room=num_suffix + max_new_tokens)
            context = base.context_before(prompt_ids, prompt_mask, cache)
            context = context.on_its_own()  # without the layers of the trunk, and without the room for the response
            tape = _Tape(len(prompts), max_new_tokens, num_suffix, base.head, base.trunk_depth > 0, sampler)
            stop = torch.tensor(list(base.stop_ids if stop_ids is None else stop_ids), device=base.device)
            base.take_role(speaker.adapter)
            _decode(base, prompt_ids[:, start:], prompt_mask, cache, tape, sampler, stop, crowd)
        return tape.rollout(context)


def _decode(
    base: SharedBase,
    inputs: Tensor,
    key_mask: Tensor,
    cache: GrowingCache | OwnState,
    tape: _Tape,
    sampler: Sampler,
    stop_ids: Tensor,
    crowd: _Crowd,
) -> None:
    looks, looked = _looks(tape.max_new_tokens, base.device), 0
    rows = torch.arange(inputs.shape[0], device=base.device)  # the sequences in the batch
    alive = torch.ones_like(rows, dtype=torch.bool)  # and which of them still speak
    for t in range(tape.max_new_tokens):
        trunk, state = step(base, inputs, key_mask, cache)
        sampled = sampler(base.decoder.logits(state).contiguous(), crowd.draws, rows)
        tape.write(t, rows, alive, trunk, state, sampled)
        alive = alive & ~torch.isin(sampled.action, stop_ids)
        tape.finished[rows] = ~alive
        inputs, key_mask = sampled.action[:, None], torch.cat([key_mask, torch.ones_like(key_mask[:, :1])], dim=1)
        if t not in looks:
            continue
        speak, sound = torch.stack([alive, tape.logprob[rows, looked : t + 1].isfinite().all(1)]).tolist()
        looked = t + 1
        crowd.look(len(speak), speak.count(True), None if all(sound) else int(rows[sound.index(False)]))
        if not crowd.speaks or looked == tape.max_new_tokens:
            break
        if crowd.leaves and not all(speak):
            if not any(speak):  # here; others still do
                _listen(crowd, range(t + 1, tape.max_new_tokens), sampler, base.device)
                break
            stay = torch.tensor([row for row, speaks in enumerate(speak) if speaks], device=base.device)
            cache.keep_rows(stay)
            rows, alive, inputs, key_mask = (x[stay] for x in (rows, alive, inputs, key_mask))


def _listen(crowd: _Crowd, tokens: range, sampler: Sampler, device: torch.device) -> None:
    """For a process that has no sequence, or none any more, while others decode: it draws what they draw."""
    looks = _looks(tokens.stop, device)
    for t in tokens:
        if isinstance(crowd.draws, Among) and not sampler.greedy:
            crowd.draws.uniform(device)
        if t in looks:
            crowd.look(0, 0)
            if not crowd.speaks:
                break


def _looks(max_new_tokens: int, device: torch.device) -> set[int]:
    """The tokens after which it is seen who still speaks."""
    step = 1 if device.type == "cpu" else TOKENS_PER_LOOK
    return {*range(step - 1, max_new_tokens, step), max_new_tokens - 1}


class _Crowd:
    """The sequences of a batch that are still decoded, in all processes that decode it in step."""

    def __init__(self, own: range | None, total: int, generator: torch.Generator | None) -> None:
        self.draws: Draws = generator if own is None else Among(own.start, total, generator)
        self.speaks = True  # at least one of them
        self.leaves = False  # those that have ended leave the batch now
        self._first = 0 if own is None else own.start
        self._fails = False  # somewhere

    def __enter__(self) -> _Crowd:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """The others are told at their next look if this process cannot go on."""
        fails_here = isinstance(error, Exception) and not isinstance(error, LostProcessError) and not self._fails
        if fails_here and isinstance(self.draws, Among):
            world.gather_numbers([0, 0, GONE])

    def look(self, present: int, speaking: int, unsound: int | None = None) -> None:
        """How many are here, and how many of them speak; `unsound` is one whose logits are not finite."""
        here = [present, speaking, -1 if unsound is None else self._first + unsound]
        everywhere = world.gather_numbers(here) if isinstance(self.draws, Among) else [here]
        self._fails = any(number != -1 for _, _, number in everywhere)
        for _, _, number in everywhere:
            if number == GONE:
                raise world.AbandonedError
            if number >= 0:
                raise DivergedError(
                    f"the policy's logits are not finite (response {number}); its last update ruined it. Lower the "
                    "learning rate"
                )
        total, silent = sum(n for n, _, _ in everywhere), sum(n - m for n, m, _ in everywhere)
        self.speaks = silent < total
        self.leaves = silent >= DROP_WHEN_FINISHED * total
        if isinstance(self.draws, Among) and self.leaves:
            before = sum(speaking for _, speaking, _ in everywhere[: world.rank()])
            self.draws = Among(before, total - silent, self.draws.generator)


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
