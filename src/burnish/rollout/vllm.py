"""Rollouts from vLLM servers: the policy's adapter of the moment goes there, tokens and log-probabilities come back."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import threading
import warnings
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from burnish.config.rollout_config import ServedRollout
from burnish.decoder.base_identity import fingerprint_of_weights
from burnish.errors import InputError, ResourceError
from burnish.maths import masked_mean
from burnish.models.adapter_files import save_adapter
from burnish.models.policy_model import PolicyModel
from burnish.models.role import LanguageModel, scattered
from burnish.processes import world
from burnish.rollout.rollout import Rollout
from burnish.rollout.sampling import Sampler
from burnish.rollout.server import GREETING_RETRIES, Adapter, Request, Response, Server, servers_of
from burnish.sa_pairs.table import SAPairs
from burnish.services.patience import Patience
from burnish.services.service import ServiceError

PROBE_TEXT = "The harbour was quiet that morning, and the first boat came back before anyone had asked where it was."
PROBE_TOKENS = 48


class VllmEngine:
    """Generates on servers that hold the same base. `max_gap` is how far its log-probabilities may be from theirs.

    The adapter is loaded under a new name, from a new folder, whenever its weights have changed: a server may keep what
    it has read with an adapter by the adapter's name. Servers are asked nothing before the first rollout, or `check`.
    """

    def __init__(self, config: ServedRollout, model_name: str, max_gap: float) -> None:
        self.config = config
        self.model = config.model or model_name
        self.max_gap = max_gap
        self._session = secrets.token_hex(3)  # another run may use the same servers
        self._adapter: Adapter | None = None
        self._is_checked = False

    @cached_property
    def servers(self) -> list[Server]:
        return servers_of(self.config)

    @cached_property
    def folder(self) -> Path:
        """Where adapters are put. It goes when the engine does, and so do the adapters on the servers."""
        if self.config.adapter_dir is not None:
            Path(self.config.adapter_dir).mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="burnish-", dir=self.config.adapter_dir))
        weakref.finalize(self, _leave, self.servers, folder)
        return folder

    def generate(
        self,
        speaker: PolicyModel,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        sampler: Sampler,
        generator: torch.Generator | None = None,
        stop_ids: Sequence[int] | None = None,
    ) -> Rollout:
        own = range(len(prompts))
        rollout = self.generate_own(speaker, prompts, own, max_new_tokens, sampler, generator, stop_ids)
        assert rollout is not None
        return rollout

    def generate_own(
        self,
        speaker: PolicyModel,
        prompts: Sequence[Sequence[int]],
        own: range,
        max_new_tokens: int,
        sampler: Sampler,
        generator: torch.Generator | None = None,
        stop_ids: Sequence[int] | None = None,
    ) -> Rollout | None:
        """The share `own` of prompts that several processes ask for; None, if it is empty.

        Which seed a response gets follows from `generator` and its place among all of them, whoever asks for it. A
        request that is repeated asks for the same response, so that none is left out for being long.
        """
        if type(sampler) is not Sampler or sampler.truncates or sampler.greedy:
            raise InputError(
                "a rollout server samples from the whole vocabulary; decode anything else with LocalEngine"
            )
        adapter = self._given(speaker)
        device = None if generator is None else generator.device
        seeds = torch.randint(2**31 - 1, (len(prompts),), generator=generator, device=device).tolist()
        stop = list(speaker.base.stop_ids if stop_ids is None else stop_ids)
        size = speaker.base.head.shape[0]
        requests = [
            Request(list(prompt), max_new_tokens, sampler.temperature, stop, seed, size)
            for prompt, seed in zip(prompts[own.start : own.stop], seeds[own.start : own.stop], strict=True)
        ]
        return _rollout(requests, self._ask(requests, adapter)) if requests else None

    def check(self, speaker: PolicyModel) -> None:
        """Refuses servers with another base, or whose log-probabilities are not those of what they sampled from: once,
        by a text that each of them continues. Then gives them the speaker's adapter.
        """
        if not self._is_checked:
            self._given(speaker)

    def _given(self, speaker: PolicyModel) -> Adapter | None:
        """The speaker's adapter, on the way to the servers. Of several processes the first one gives it to them, and
        the others know its name.
        """
        several = world.size() > 1

        def give() -> list[str] | None:
            if not self._is_checked:
                for server in self.servers:
                    self._check_base(server, speaker)
                    self._check_adapter(server, speaker)
            adapter = self._adapter_of(speaker)
            if adapter is None:
                return None
            for server in self.servers if several else ():
                with suppress(ServiceError):  # who asks it for a response gives it the adapter, then
                    server.hold(adapter)
            return [adapter.name, str(adapter.folder)]

        known = world.by_first(give)
        self._is_checked = True
        if known is None:
            return None
        adapter = Adapter(known[0], Path(known[1]))
        for server in self.servers if not world.is_first() else ():
            server.has(adapter)
        return adapter

    def _check_base(self, server: Server, speaker: PolicyModel) -> None:
        base = speaker.base
        probe = list(base.tokenizer(PROBE_TEXT)["input_ids"])
        request = Request(probe, PROBE_TOKENS, speaker.temperature, [], 0, base.head.shape[0])
        response = server.greet(self.model, request)
        rollout = _rollout([request], [response])
        assert rollout.logprob is not None
        own, raw = (_logprobs(LanguageModel(base, None, t), rollout) for t in (speaker.temperature, 1.0))
        gap, raw_gap = (float(masked_mean((p - rollout.logprob).abs(), rollout.mask)) for p in (own, raw))
        if gap <= self.max_gap:
            return
        found = (
            f"log-probabilities of {len(response.tokens)} tokens that continue a probe text differ by {gap:.2g} nats a "
            f"token on average, and may by {self.max_gap:g} (rollout.max_gap)"
        )
        if raw_gap <= self.max_gap:
            raise InputError(
                f"the rollout server {server.url} gives log-probabilities from before the temperature, not of what it "
                f"samples from: {found}, {raw_gap:.2g} at temperature 1. Start it with --logprobs-mode "
                "processed_logprobs, or set temperature: 1"
            )
        raise InputError(
            f"the rollout server {server.url} serves another base than {base.identity.name}, or in another number "
            f"format: {found}. Serve the same weights in the same format, or raise rollout.max_gap if that is meant"
        )

    def _check_adapter(self, server: Server, speaker: PolicyModel) -> None:
        adapter = self._adapter_of(speaker)
        if adapter is None:
            return
        try:
            Patience(GREETING_RETRIES).ask(lambda _: server.hold(adapter))
        except ServiceError as error:
            raise InputError(str(error)) from None

    def _adapter_of(self, speaker: PolicyModel) -> Adapter | None:
        """The speaker's weights as they are now, on the disk; None for the base alone."""
        if speaker.adapter is None:
            return None
        weights = fingerprint_of_weights((str(n), p) for n, p in enumerate(speaker.parameters()))
        name = f"{speaker.adapter}-v{speaker.num_updates}-{self._session}{weights[:6]}"
        if self._adapter is None or self._adapter.name != name:
            before, self._adapter = self._adapter, Adapter(name, self.folder / name)
            save_adapter(speaker, self._adapter.folder)
            if before is not None:
                shutil.rmtree(before.folder)
        return self._adapter

    def _ask(self, requests: Sequence[Request], adapter: Adapter | None) -> list[Response]:
        """All at once; each first of its own server, and after a failure of the next. One failure is told of."""
        patience, servers, told = Patience(self.config.retries), self.servers, threading.Event()

        def response(number: int) -> Response:
            def ask(attempt: int) -> Response:
                try:
                    return servers[(number + attempt) % len(servers)].respond(requests[number], self.model, adapter)
                except ServiceError as error:
                    if error.may_pass and not told.is_set():
                        told.set()
                        warnings.warn(f"{error}; it is asked again", stacklevel=2)
                    raise

            try:
                return patience.ask(ask)
            except ServiceError as error:
                patience.give_up(failure := _ended(error, self.config.retries))
                raise failure from None

        at_once = max(1, self.config.at_once // world.size())  # each process asks for its own share
        with ThreadPoolExecutor(min(at_once, len(requests))) as pool:
            try:
                return list(pool.map(response, range(len(requests))))
            except BaseException as error:  # whoever waits for a server waits no longer
                patience.give_up(error)
                raise


def _ended(error: ServiceError, retries: int) -> Exception:
    if not error.may_pass:
        return InputError(str(error))
    return ResourceError(
        f"{error}, and so it went when asked {retries} times more. The last checkpoint is intact: resume when the "
        "server is back"
    )


def _rollout(requests: Sequence[Request], responses: Sequence[Response]) -> Rollout:
    rollout = Rollout.of_tokens(
        [request.prompt for request in requests],
        [response.tokens for response in responses],
        [response.finished for response in responses],
    )
    logprobs = torch.tensor([p for response in responses for p in response.logprobs])
    return replace(rollout, logprob=scattered(logprobs, rollout.mask))


@torch.no_grad()
def _logprobs(model: LanguageModel, rollout: Rollout) -> Tensor:
    """As a training pass has them.  -> [B, T]"""
    pairs = SAPairs(rollout.mask, {"action": rollout.action}, rollout.prompt_ids, rollout.prompt_mask)
    return model.logprobs(model.adopt(pairs)).cpu()


def _leave(servers: Sequence[Server], folder: Path) -> None:
    for server in servers:
        with suppress(Exception):  # also at the interpreter's end, when no thread can be started any more
            server.leave()
    shutil.rmtree(folder, ignore_errors=True)
