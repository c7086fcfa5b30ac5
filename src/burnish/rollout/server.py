"""One vLLM server: it is given an adapter, and asked for responses."""

from __future__ import annotations

import math
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.config.rollout_config import ServedRollout
from burnish.errors import InputError, RewardFailedError
from burnish.services.patience import Patience
from burnish.services.service import Service, ServiceError

LOAD_SECONDS, UNLOAD_SECONDS = 120.0, 10.0  # for a server to read an adapter, and to forget it
GREETING_RETRIES = 2  # of a server that was never there: it is more likely misspelt than away
NEEDS = (
    "It needs --enable-lora, a --max-lora-rank of at least lora_r, VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, and must see "
    "the folder (rollout.adapter_dir)"
)


@dataclass(frozen=True)
class Adapter:
    """An adapter in peft's format: the name that the server is to know it by, and its folder."""

    name: str
    folder: Path


@dataclass(frozen=True)
class Request:
    """What one response is to be: drawn from the whole vocabulary, until one of the stop tokens or `max_tokens`."""

    prompt: list[int]
    max_tokens: int
    temperature: float
    stop_ids: list[int]
    seed: int
    vocabulary: int
    """Number of tokens there are."""

    def body(self, model: str) -> dict[str, Any]:
        """For /v1/completions. What a server's own defaults would change (it takes some from the model's
        generation_config.json) is spelt out: its log-probabilities would not show it.
        """
        plain = {"top_k": -1, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
        plain |= {"presence_penalty": 0.0, "frequency_penalty": 0.0}
        own = {"prompt": self.prompt, "max_tokens": self.max_tokens, "temperature": self.temperature, "seed": self.seed}
        stop = {"stop_token_ids": self.stop_ids, "ignore_eos": True}
        return {"model": model, **own, **plain, **stop, "logprobs": 0, "return_token_ids": True}


HELLO = Request([0], 1, 1.0, [], 0, 2**31)  # one token of any base


@dataclass(frozen=True)
class Response:
    """Tokens, each with its log-probability under what it was sampled from, and whether the last is a stop token."""

    tokens: list[int]
    logprobs: list[float]
    finished: bool


class Server:
    """One address. It holds one adapter of ours at a time, and is given it again if it has lost it."""

    def __init__(self, url: str, config: ServedRollout) -> None:
        self.url = url
        self._completions = self._service("completions", config.timeout, config)
        self._load = self._service("load_lora_adapter", LOAD_SECONDS, config)
        self._unload = self._service("unload_lora_adapter", UNLOAD_SECONDS, config)
        self._adapter: Adapter | None = None
        self._lock = threading.Lock()
        self._failed: tuple[float, ServiceError] | None = None  # when an adapter could not be loaded, and why

    def _service(self, path: str, seconds: float, config: ServedRollout) -> Service:
        return Service(f"{self.url}/v1/{path}", seconds, config.token_env, "rollout server")

    def greet(self, model: str, request: Request) -> Response:
        """The base's response to a first request."""
        try:
            return Patience(GREETING_RETRIES).ask(lambda _: self.respond(request, model))
        except ServiceError as error:
            raise InputError(
                f"{error}. Is the server running, and {model!r} the name of its model (rollout.model)?"
            ) from None

    def respond(self, request: Request, model: str, adapter: Adapter | None = None) -> Response:
        """By the adapter, on the base `model`, or by the base alone. Raises ServiceError."""
        if adapter is not None:
            self.hold(adapter)
        try:
            answer = self._completions.ask(request.body(model if adapter is None else adapter.name))
        except ServiceError as error:
            if error.status == 404 and adapter is not None:  # it was restarted, or has dropped the adapter
                self._forget(adapter)
                raise ServiceError(str(error)) from None  # which may pass
            raise
        except RewardFailedError as error:  # no JSON
            raise ServiceError(str(error)) from None
        try:
            return response_in(answer, request)
        except ValueError as error:
            raise ServiceError(f"{self._completions.name} gave no usable response: {error}") from None

    def hold(self, adapter: Adapter) -> None:
        """Loads the adapter, and unloads the one before it. Of many who ask at once one loads; if that fails, it has
        failed for all of them.
        """
        asked = time.monotonic()
        with self._lock:
            if self._adapter == adapter:
                return
            if self._failed is not None and self._failed[0] > asked:
                raise self._failed[1]
            self._drop()
            try:
                self._load.tell({"lora_name": adapter.name, "lora_path": str(adapter.folder)})
            except ServiceError as error:
                if not (error.status == 400 and "already" in str(error)):  # its first answer did not arrive
                    self._failed = time.monotonic(), ServiceError(f"{error}. {NEEDS}", error.status, error.retry_after)
                    raise self._failed[1] from None
            self._adapter = adapter

    def has(self, adapter: Adapter) -> None:
        """Another process has given it the adapter."""
        with self._lock:
            self._adapter = adapter

    def leave(self) -> None:
        """Takes the adapter off the server, if it can still be reached."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._adapter is not None:
            with suppress(ServiceError):  # it may be gone, or the server
                self._unload.tell({"lora_name": self._adapter.name})
        self._adapter = None

    def _forget(self, adapter: Adapter) -> None:
        with self._lock:
            if self._adapter == adapter:
                self._adapter = None


def servers_of(config: ServedRollout) -> list[Server]:
    return [Server(url, config) for url in config.urls]


def response_in(answer: Any, request: Request) -> Response:
    """What a server answered; anything less than a whole response is a ValueError."""
    try:
        choice = answer["choices"][0]
        tokens, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        reason = choice.get("finish_reason")
        paired = bool(tokens) and len(tokens) == len(logprobs)
        known = all(type(token) is int and 0 <= token < request.vocabulary for token in tokens)
        finite = all(math.isfinite(logprob) for logprob in logprobs)
    except (KeyError, IndexError, TypeError, AttributeError):
        raise ValueError("its token ids and log-probabilities are not where they belong") from None
    if not (paired and known and finite):
        raise ValueError(
            f"{len(tokens)} token ids and {len(logprobs)} log-probabilities, which must be as many, finite, and tokens "
            f"of a vocabulary of {request.vocabulary}"
        )
    finished = tokens[-1] in request.stop_ids
    if not finished and len(tokens) != request.max_tokens:
        raise ValueError(
            f"{len(tokens)} tokens without a stop token, where {request.max_tokens} may come (it says: {reason!r})"
        )
    return Response(tokens, [float(p) for p in logprobs], finished)
