"""`burnish page`: serves the application until it is stopped."""

from __future__ import annotations

import socket
import webbrowser
from pathlib import Path

import uvicorn
from rich.console import Console

from burnish.errors import InputError
from burnish.page.access import Access
from burnish.page.app import application
from burnish.page.candidates import of_file
from burnish.page.library import Library
from burnish.text import plain

USUAL_PORT = 8765
MOST_CONNECTIONS = 1000


def serve(
    console: Console, folder: str, host: str, port: int | None, open_browser: bool, labelled: str | None = None
) -> None:
    """Prints the address, with its token, and serves the page there. `labelled` is a file of answers to judge, which
    may be there before any run.
    """
    if labelled is not None:
        of_file(Path(labelled))  # now, not in the browser, it is told what is wrong with it
        Path(folder).mkdir(parents=True, exist_ok=True)
    library = Library(Path(folder), None if labelled is None else Path(labelled).resolve())
    listening = _listen(host, port)
    access = Access(host, listening.getsockname()[1])
    address = f"http://{_shown_host(listening)}:{access.port}/?token={access.token}"
    console.print(plain(f"The runs of {folder} are at {address}"), highlight=False, soft_wrap=True)
    if not access.is_local:
        warning = (
            "Other machines can reach it. The token opens it, and nothing is encrypted: use it in a network you trust."
        )
        console.print(warning, highlight=False)
    console.print("Ctrl-C ends the page; runs go on.", highlight=False)
    if open_browser:
        webbrowser.open(address)
    try:
        server_of(application(library, access)).run(sockets=[listening])
    finally:  # Ctrl-C comes out of it as an interrupt
        library.computing.end()


def server_of(app: object) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(
            app,  # type: ignore[arg-type]
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,  # who asks is told by the connection, not by what it says of itself
            ws="none",
            lifespan="off",
            limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=1,
        )
    )


def _listen(host: str, port: int | None) -> socket.socket:
    """A socket on the port asked for; unasked, the usual one, or any that is free."""
    try:
        family, *_, where = socket.getaddrinfo(host, port or 0, type=socket.SOCK_STREAM)[0]
    except OSError:
        raise InputError(f"host {host!r} is not an address; leave --host out for this machine") from None
    for number in (USUAL_PORT, 0) if port is None else (port,):
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((where[0], number))
        except OSError as error:
            listening.close()
            if port is None and number:
                continue
            told = error.strerror or error
            raise InputError(f"cannot listen on {host} port {number}: {told}; choose another with --port") from None
        listening.listen(MOST_CONNECTIONS)  # who asks as soon as the address is printed waits, and is not refused
        return listening
    raise AssertionError("a free port is always found or refused")


def _shown_host(listening: socket.socket) -> str:
    """As a browser can open it."""
    host = listening.getsockname()[0]
    if host in ("0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host
