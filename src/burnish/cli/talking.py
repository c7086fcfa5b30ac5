"""Commands with which programs and people ask a run's models."""

from __future__ import annotations

from typing import Annotated

import typer

from burnish.cli.app import Trust, app, console

PANEL = "Ship"
SpeakingRun = Annotated[str, typer.Argument(help="folder of a PPO or SFT run", metavar="RUN")]


@app.command(rich_help_panel=PANEL)
def serve(
    run: SpeakingRun,
    host: Annotated[str, typer.Option(help="0.0.0.0 lets other machines in, with the token")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="where to listen; 0: any that is free")] = 8000,
    token_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="environment variable with the token that clients need")
    ] = None,
    max_requests: Annotated[int, typer.Option(min=1, help="answered or waiting; more are told to come back")] = 64,
    max_batch: Annotated[int, typer.Option(min=1, max=1024, help="answers decoded together")] = 16,
    cache_mb: Annotated[int, typer.Option(min=1, help="memory for what these answers have read and said")] = 2048,
    timeout: Annotated[float, typer.Option(min=1, help="seconds for a request, waiting included")] = 600,
    trust: Trust = False,
) -> None:
    """Start and tuned model behind an OpenAI-compatible API: completions, chat, streaming, log-probabilities."""
    from importlib.util import find_spec

    from burnish.errors import InputError
    from burnish.runs.run import Run
    from burnish.show.terminal import starting

    Run.open(run)  # one that does not exist is reported at once
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise InputError("serving needs starlette and uvicorn; get them with: pip install 'burnish[serve]'")
    with starting(console):
        from burnish.serving.engine import Limits
        from burnish.serving.server import Where
        from burnish.serving.server import serve as serve_run

    limits = Limits(max_requests, max_batch, cache_mb, timeout)
    serve_run(console, run, Where(host, port, token_env), limits, trust)


@app.command(rich_help_panel=PANEL)
def chat(
    run: SpeakingRun,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="everything random follows from it")] = 0,
    trust: Trust = False,
) -> None:
    """Talk to start and tuned model, side by side; from a pipe, each line is answered."""
    from burnish.runs.run import Run
    from burnish.show.terminal import starting

    Run.open(run)  # one that does not exist is reported at once
    with starting(console):
        from burnish.serving.chat import chat as chat_with

    chat_with(console, run, seed, trust)
