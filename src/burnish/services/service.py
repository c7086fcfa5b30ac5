"""A service on the network, asked safely: by rewards of kind http and judge, and for rollouts.

Its address comes from the local config alone and holds no secret; no redirect is followed, nothing waits forever.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import re
import socket
import threading
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlsplit

from pydantic import AfterValidator

from burnish.errors import InputError, RewardFailedError
from burnish.text import secret_variables, visible, without_secrets

CONNECT_SECONDS = 5.0
MAX_ANSWER_BYTES = 10 * 2**20
MAX_COMPLAINT_BYTES = 2000
AGAIN = (408, 409, 425, 429)  # and 5xx: ask again later
# Names under which secrets travel in an address.
SECRETS = {"key", "apikey", "accesskey", "token", "accesstoken", "authtoken", "secret", "clientsecret", "password"}
SECRETS |= {"passwd", "pwd", "auth", "authorization", "sig", "signature", "credential", "credentials", "code"}


class ServiceError(RewardFailedError):
    """A service that did not answer as it should: with which status, and when it wants to be asked again, if it said
    so."""

    def __init__(self, message: str, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after

    @property
    def may_pass(self) -> bool:
        """Too busy, broken, or not there: asking again may help."""
        return self.status is None or self.status >= 500 or self.status in AGAIN


def _without_secrets(url: str) -> str:
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


Address = Annotated[str, AfterValidator(_without_secrets)]
"""Of a service, in a config."""


class Service:
    """One address. `seconds` are for a whole question and its answer, `token_env` names what holds its key, `name` is
    what errors call it."""

    def __init__(
        self, url: str, seconds: float = 30.0, token_env: str | None = None, name: str = "reward service"
    ) -> None:
        self.url = url
        self.name = f"the {name} {url}"
        self.seconds = seconds
        self.address = urlsplit(url)
        self.headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if token_env is not None:
            token = os.environ.get(token_env, "").strip()
            if not token or not token.isprintable() or not token.isascii():
                raise InputError(f"{self.name} needs its token in the environment variable {token_env}")
            secret_variables.add(token_env)
            self.headers["Authorization"] = f"Bearer {token}"

    def ask(self, question: Any) -> Any:
        """Sends JSON, gives the JSON that comes back."""
        content = self.tell(question)
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise RewardFailedError(f"{self.name} did not answer in JSON") from None

    def tell(self, what: Any) -> bytes:
        """Sends JSON, gives whatever comes back."""
        try:
            return self._post(json.dumps(what).encode())
        except (OSError, http.client.HTTPException) as error:
            raise ServiceError(f"{self.name} failed: {str(error) or type(error).__name__}") from None

    def _post(self, body: bytes) -> bytes:
        started = time.monotonic()
        connection = self._connect()
        # A socket's own time limit starts again with every byte; the whole answer's does not.
        deadline = threading.Timer(self.seconds - (time.monotonic() - started), _hang_up, [connection.sock])
        deadline.daemon = True
        deadline.start()
        late = ServiceError(f"{self.name} took more than {self.seconds:g} s")
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
            raise self._refusal(answer)
        content = answer.read(MAX_ANSWER_BYTES + 1)
        if len(content) > MAX_ANSWER_BYTES:
            raise InputError(f"{self.name} answered more than {MAX_ANSWER_BYTES >> 20} MB")
        if answer.length:  # what was announced and did not come
            raise ServiceError(f"{self.name} hung up in the middle of its answer")
        return content

    def _refusal(self, answer: http.client.HTTPResponse) -> ServiceError:
        moved = " (redirects are not followed)" if 300 <= answer.status < 400 else ""
        said = visible(without_secrets(answer.read(MAX_COMPLAINT_BYTES).decode(errors="replace"))).strip()
        more = f": {' '.join(said.split())[:300]}" if said else ""
        message = f"{self.name} answered {answer.status} {answer.reason}{moved}{more}"
        return ServiceError(message, answer.status, _seconds_until(answer.headers.get("Retry-After")))

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self.address.scheme == "https" else http.client.HTTPConnection
        assert self.address.hostname is not None
        connection = kind(self.address.hostname, self.address.port, timeout=min(CONNECT_SECONDS, self.seconds))
        connection.connect()
        connection.sock.settimeout(self.seconds)
        peer = ipaddress.ip_address(connection.sock.getpeername()[0].partition("%")[0])
        if (getattr(peer, "ipv4_mapped", None) or peer).is_link_local:  # where clouds keep their credentials
            connection.close()
            raise InputError(f"{self.name} is at the link-local address {peer}, which is refused")
        return connection


def _hang_up(sock: socket.socket) -> None:
    with suppress(OSError):  # it may be closed already
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # the plain one: TLS would first want to say goodbye


def _seconds_until(retry_after: str | None) -> float | None:
    """What the header means: seconds, or a date."""
    if retry_after is None:
        return None
    try:
        return max(float(retry_after), 0.0)
    except ValueError:
        pass
    try:
        return max(parsedate_to_datetime(retry_after).timestamp() - time.time(), 0.0)
    except (ValueError, TypeError):
        return None
