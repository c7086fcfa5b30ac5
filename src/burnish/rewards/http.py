"""A service on the network as a reward."""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Literal
from urllib.parse import parse_qsl, urlsplit

from pydantic import Field, field_validator

from burnish.errors import InputError, RewardFailedError
from burnish.rewards.part import RewardFunction, RewardPart, Workshop
from burnish.text import secret_variables

CONNECT_SECONDS = 5.0
RETRY_SECONDS = 2.0
MAX_ANSWER_BYTES = 10 * 2**20
# Names under which secrets travel in an address.
SECRETS = {"key", "apikey", "accesskey", "token", "accesstoken", "authtoken", "secret", "clientsecret", "password"}
SECRETS |= {"passwd", "pwd", "auth", "authorization", "sig", "signature", "credential", "credentials", "code"}


class HttpPart(RewardPart):
    """A service that scores: it is sent {"prompts": [...], "responses": [...]} and answers {"rewards": [...]}."""

    kind: Literal["http"] = "http"
    url: str
    """Where to send the texts."""
    timeout: float = Field(30.0, gt=0, le=600)
    """Seconds for one whole request."""
    token_env: str | None = None
    """Name of the environment variable whose value is sent as bearer token; a token itself has no place in a config."""

    @field_validator("url")
    @classmethod
    def _is_an_address_without_secrets(cls, url: str) -> str:
        keys = {re.sub(r"[-_]", "", name.lower()) for name, _ in parse_qsl(url.partition("?")[2])}
        if "@" in url or keys & SECRETS:  # not shown again in the error
            raise ValueError(
                "the address holds a password or key; configs are copied and shown, so keep it in an environment "
                "variable and name that: token_env: MY_TOKEN"
            )
        try:
            address = urlsplit(url)
            host, _ = address.hostname, address.port
        except ValueError as error:
            raise ValueError(f"{url!r} is not an address: {error}") from None
        if address.scheme not in ("http", "https") or not host:
            raise ValueError(f"{url!r} is no address such as https://host/path")
        return url

    def make(self, workshop: Workshop) -> RewardFunction:
        return HttpReward(self.url, self.timeout, self.token_env)

    def deeds(self) -> Iterator[str]:
        token = f", with the token in your environment variable {self.token_env}" if self.token_env else ""
        yield f"send prompts and answers to {self.url}{token}"


class HttpReward:
    """Asks a service. Its address comes from the local config alone; no redirect is followed, nothing waits forever."""

    __name__ = "http"
    retry_seconds = RETRY_SECONDS  # a service that was away may be back

    def __init__(self, url: str, seconds: float = 30.0, token_env: str | None = None) -> None:
        self.url = url
        self.seconds = seconds
        self.address = urlsplit(url)
        self.headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if token_env is not None:
            token = os.environ.get(token_env, "").strip()
            if not token or not token.isprintable() or not token.isascii():
                raise InputError(f"the reward service {url} needs its token in the environment variable {token_env}")
            secret_variables.add(token_env)
            self.headers["Authorization"] = f"Bearer {token}"

    def __call__(self, prompts: list[str], responses: list[str]) -> list[float]:
        body = json.dumps({"prompts": prompts, "responses": responses}).encode()
        try:
            content = self._post(body)
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise RewardFailedError(f"the reward service {self.url} failed: {reason}") from None
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError):
            raise RewardFailedError(f"the reward service {self.url} did not answer in JSON") from None
        rewards = answer.get("rewards") if isinstance(answer, dict) else None
        if not isinstance(rewards, list):
            raise RewardFailedError(
                f'the reward service {self.url} must answer {{"rewards": [...]}}, one for each response'
            )
        return rewards

    def _post(self, body: bytes) -> bytes:
        started = time.monotonic()
        connection = self._connect()
        # A socket's own time limit starts again with every byte; the whole answer's does not.
        deadline = threading.Timer(self.seconds - (time.monotonic() - started), _hang_up, [connection.sock])
        deadline.daemon = True
        deadline.start()
        late = RewardFailedError(f"the reward service {self.url} took more than {self.seconds:g} s")
        try:
            content = self._exchange(connection, body)
        except (OSError, http.client.HTTPException, RewardFailedError):
            if time.monotonic() - started < self.seconds:
                raise
            raise late from None
        finally:
            deadline.cancel()
            connection.close()
        if time.monotonic() - started >= self.seconds:  # perhaps cut off in the middle
            raise late
        return content

    def _exchange(self, connection: http.client.HTTPConnection, body: bytes) -> bytes:
        target = (self.address.path or "/") + (f"?{self.address.query}" if self.address.query else "")
        connection.request("POST", target, body, self.headers)
        answer = connection.getresponse()
        if answer.status != 200:
            moved = " (redirects are not followed)" if 300 <= answer.status < 400 else ""
            raise RewardFailedError(f"the reward service {self.url} answered {answer.status} {answer.reason}{moved}")
        content = answer.read(MAX_ANSWER_BYTES + 1)
        if len(content) > MAX_ANSWER_BYTES:
            raise InputError(f"the reward service {self.url} answered more than {MAX_ANSWER_BYTES >> 20} MB")
        if answer.length:  # what was announced and did not come
            raise RewardFailedError(f"the reward service {self.url} hung up in the middle of its answer")
        return content

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self.address.scheme == "https" else http.client.HTTPConnection
        assert self.address.hostname is not None
        connection = kind(self.address.hostname, self.address.port, timeout=min(CONNECT_SECONDS, self.seconds))
        connection.connect()
        connection.sock.settimeout(self.seconds)
        peer = ipaddress.ip_address(connection.sock.getpeername()[0].partition("%")[0])
        if (getattr(peer, "ipv4_mapped", None) or peer).is_link_local:  # where clouds keep their credentials
            connection.close()
            raise InputError(f"the reward service {self.url} is at the link-local address {peer}, which is refused")
        return connection


def _hang_up(sock: socket.socket) -> None:
    with suppress(OSError):  # it may be closed already
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # the plain one: TLS would first want to say goodbye
