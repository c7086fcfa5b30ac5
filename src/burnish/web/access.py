"""Who may ask: names that are answered to, where a request comes from, the token, sizes and rates.

What listens on this machine can be reached by every page that its browser has open. So a request must name an address
that is ours: a name that somebody else's DNS points here is refused.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive


class Rate:
    """So many a minute, in bursts of no more."""

    def __init__(self, per_minute: int) -> None:
        self._per_second, self._most = per_minute / 60, float(per_minute)
        self._left, self._then = self._most, time.monotonic()

    def allows(self) -> bool:
        now = time.monotonic()
        self._left = min(self._most, self._left + (now - self._then) * self._per_second)
        self._then = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


@dataclass(frozen=True)
class Access:
    """Where it listens, and the token that opens it."""

    host: str = "127.0.0.1"
    port: int = 0
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return _is_loopback(self.host)

    @property
    def cookie(self) -> str:
        """Its name: ports of one machine share their cookies."""
        return f"burnish-{self.port}"

    def answers_to(self, host: str) -> bool:
        """Whether a Host header names this machine. Its port may be another one: that of an SSH tunnel."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
            urlsplit(f"//{host}").port  # noqa: B018  # raises where it is none
        except ValueError:
            return False
        if _is_loopback(name):
            return True
        return not self.is_local and (_is_address(name) or name in (self.host.lower(), socket.gethostname().lower()))

    def comes_from_here(self, headers: Headers) -> bool:
        """Whether one of our own pages sent it, or no browser at all."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is not None and not _is_page_of(origin, headers.get("host")):
            return False
        return site in (None, "same-origin", "none")

    def has_token(self, headers: Headers) -> bool:
        given = []
        if headers.get("authorization", "").startswith("Bearer "):
            given.append(headers["authorization"].removeprefix("Bearer "))
        for cookie in headers.get("cookie", "").split(";"):  # other servers of this machine set theirs, of any form
            name, _, value = cookie.strip().partition("=")
            if name == self.cookie:
                given.append(value)
        return any(self.is_token(text) for text in given)

    def is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self.token.encode())


def declared_length(headers: Headers, most: int) -> int:
    """Of a body; one that is no number counts as too long."""
    text = headers.get("content-length", "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else most + 1


def limited(receive: Receive, most: int) -> Receive:
    """A body without a length is counted as it comes; more than `most` bytes are refused."""
    size = 0

    async def counted() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > most:
            raise HTTPException(413, f"more than {most} bytes")
        return message

    return counted


def _is_page_of(origin: str, host: str | None) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:  # no address at all
        return False
    return parts.scheme in ("http", "https") and parts.netloc == host


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return name == "localhost"


def _is_address(name: str) -> bool:
    """A number: no DNS can point it elsewhere."""
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
