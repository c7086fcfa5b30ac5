"""`burnish serve`: answers until it is stopped."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

import uvicorn
from rich.console import Console

from burnish.errors import InputError
from burnish.runs.run import Run
from burnish.serving.app import application
from burnish.serving.engine import Engine, Limits
from burnish.serving.served import Served
from burnish.stages.generate import speakers_of
from burnish.text import plain, secret_variables
from burnish.web.access import Access
from burnish.web.listening import listen, settings_of, shown_host

SHORTEST_TOKEN = 16
GRACE = 10  # seconds that answers under way get when the server is stopped


@dataclass(frozen=True)
class Where:
    """It listens, and who may ask it."""

    host: str = "127.0.0.1"
    port: int = 8000
    token_env: str | None = None
    """The environment variable that holds the token."""


def serve(console: Console, folder: str, where: Where, limits: Limits, trust: bool) -> None:
    """Loads the run's models, prints the address and answers there."""
    run = Run.open(folder)
    token = token_from(where.token_env)
    listening = listen(where.host, (where.port,))
    port = listening.getsockname()[1]
    access = Access(where.host, port) if token is None else Access(where.host, port, token)
    speakers = speakers_of(console, folder, trust=trust)
    served = Served(run, speakers)
    engine = Engine(speakers.setup.base, limits)
    needs_token = token is not None or not access.is_local
    _print_start(console, served, access, listening, needs_token and token is None)
    server = Server(application(served, engine, access, needs_token), engine)
    try:
        server.run(sockets=[listening])
    finally:  # Ctrl-C comes out of it as an interrupt
        engine.close()
        engine.join(GRACE)


class Server(uvicorn.Server):
    """When it is stopped, answers under way get some seconds to end; then they are cut off, and their clients told."""

    def __init__(self, app: object, engine: Engine, grace: int = GRACE) -> None:
        super().__init__(settings_of(app, grace + 2))
        self.engine = engine
        self.grace = grace

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.engine.close(0 if self.force_exit else self.grace)
        await super().shutdown(sockets)


def token_from(variable: str | None) -> str | None:
    """What an environment variable holds, if one is named."""
    if variable is None:
        return None
    token = os.environ.get(variable, "").strip()
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        found = "is not set" if not token else "holds no token that is hard to guess"
        raise InputError(
            f"--token-env: {variable} {found}; it needs {SHORTEST_TOKEN} letters and digits or more: "
            f"export {variable}=$(python -c 'import secrets; print(secrets.token_urlsafe())')"
        )
    secret_variables.add(variable)
    return token


def _print_start(
    console: Console, served: Served, access: Access, listening: socket.socket, token_is_new: bool
) -> None:
    def say(text: str) -> None:
        console.print(plain(text), highlight=False, soft_wrap=True)

    tuned, start = served.models
    say(
        f"{tuned} (tuned) and {start} ({served.models[start]}) answer at http://{shown_host(listening)}:{access.port}/v1"
    )
    if token_is_new:
        heard = Console(stderr=True) if console.quiet else console  # nobody could use the server without it
        heard.print(f"The token, until it ends: {access.token}", highlight=False, soft_wrap=True)
    if not access.is_local:
        say("Other machines can reach it. The token opens it, and nothing is encrypted: use it in a network you trust.")
    ends = served.described(tuned)["burnish"]["prompts_end_in"]
    if ends and not served.speakers.setup.encoder.chat_template:
        say(f"Prompts for {tuned} must end in {ends!r}, as in training.")
    say("Ctrl-C ends it.")
