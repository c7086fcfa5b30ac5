"""Where it listens, and the server that does."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import uvicorn

from burnish.errors import InputError

MOST_CONNECTIONS = 1000


def settings_of(app: object, seconds_to_end: int = 1) -> uvicorn.Config:
    """Of a server; `seconds_to_end` are those that what is under way gets when it is stopped."""
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # who asks is told by the connection, not by what it says of itself
        ws="none",
        lifespan="off",
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=seconds_to_end,
    )


def listen(host: str, ports: Sequence[int]) -> socket.socket:
    """A socket on the first of the ports that is free; 0 is any that is."""
    try:
        family, *_, where = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise InputError(f"host {host!r} is not an address; leave --host out for this machine") from None
    for number in ports:
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((where[0], number))
        except OSError as error:
            listening.close()
            if number != ports[-1]:
                continue
            told = error.strerror or error
            raise InputError(f"cannot listen on {host} port {number}: {told}; choose another with --port") from None
        listening.listen(MOST_CONNECTIONS)  # who asks as soon as the address is printed waits, and is not refused
        return listening
    raise AssertionError("a port is found or refused")


def shown_host(listening: socket.socket) -> str:
    """As others can open it."""
    host = listening.getsockname()[0]
    if host in ("0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host
