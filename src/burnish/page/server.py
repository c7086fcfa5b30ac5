"""`burnish page`: serves the application until it is stopped."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import uvicorn
from rich.console import Console

from burnish.page.app import application
from burnish.page.candidates import of_file
from burnish.page.library import Library
from burnish.text import plain
from burnish.web.access import Access
from burnish.web.listening import listen, settings_of, shown_host

USUAL_PORT = 8765


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
    listening = listen(host, (USUAL_PORT, 0) if port is None else (port,))
    access = Access(host, listening.getsockname()[1])
    address = f"http://{shown_host(listening)}:{access.port}/?token={access.token}"
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
    return uvicorn.Server(settings_of(app))
