"""The application: its views and actions as routes, behind the guard."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from burnish.errors import BurnishError, InputError, LockedError
from burnish.page import chat, compare, credit, judge, one_run, overview, reward_model, rollouts, same_prompt, start
from burnish.page.access import Guard
from burnish.page.library import DAMAGE, Library, NoSuchRunError
from burnish.page.view import Action, Asked, Data, Looks, Stream, View
from burnish.web.access import Access

VIEWS: tuple[View, ...] = (
    overview.VIEW,
    one_run.VIEW,
    rollouts.VIEW,
    same_prompt.VIEW,
    credit.VIEW,
    reward_model.VIEW,
    judge.VIEW,
    chat.VIEW,
    compare.VIEW,
    start.VIEW,
)
ACTIONS: tuple[Action, ...] = (one_run.STOP, judge.JUDGE, chat.PREFER, start.START)
STREAMS: tuple[Stream, ...] = (chat.ASK,)

MOST_LISTENERS = 400
LOOK_EVERY = 1.0  # seconds between looks at whether something is new
SIGN_OF_LIFE = 15.0  # seconds after which a listener is told that nothing is
STATIC = Path(__file__).parent / "static"


def application(library: Library, access: Access) -> ASGIApp:
    """The whole page over the runs of a library."""
    views, actions = VIEWS, ACTIONS
    if library.labelled is not None:
        views, actions = (*views, judge.LABEL), (*actions, judge.SAY)
    looks = Looks(views)
    routes: list[Route | Mount] = [Mount("/static", StaticFiles(directory=STATIC))]
    events = _events(library)
    routes += [Route("/api/events", events), Route("/api/events/{run:path}", events)]
    for view in views:
        routes += [
            Route(f"/api{view.address}", _as_json(view, library, looks)),
            Route(view.address, _as_html(view, library, looks, access)),
        ]
    for action in actions:
        routes += [
            Route(f"/api{action.address}", _acting(action, library, looks, as_json=True), methods=["POST"]),
            Route(action.address, _acting(action, library, looks, as_json=False), methods=["POST"]),
        ]
    for stream in STREAMS:
        routes.append(Route(f"/api{stream.address}", _streaming(stream, library, looks), methods=["POST"]))
    handlers: dict[Any, Any] = {BurnishError: _told(looks), HTTPException: _told(looks)}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), access)


def _asked(request: Request, library: Library, form: dict[str, list[str]] | None = None) -> Asked:
    query = {key: request.query_params.getlist(key) for key in request.query_params}
    return Asked(library, dict(request.path_params), query if form is None else form)


@contextmanager
def _in_words(asked: Asked) -> Iterator[None]:
    """Files that are not as burnish writes them, and those that cannot be read or written, end in a sentence."""
    try:
        yield
    except BurnishError:
        raise
    except OSError as error:
        name = asked.path.get("run", "the page")
        raise InputError(f"cannot read or write the files of {name}: {error.strerror or error}") from error
    except DAMAGE as error:
        name = asked.path.get("run", "a run")
        raise InputError(f"the files of {name} are damaged: {type(error).__name__}: {error}") from error


def _as_json(view: View, library: Library, looks: Looks) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:  # a plain function: Starlette gives it a thread of its own
        asked = _asked(request, library)
        with _in_words(asked):
            return Response(looks.json(view.data(asked)), media_type="application/json")

    return endpoint


def _as_html(view: View, library: Library, looks: Looks, access: Access) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:
        asked, run = _asked(request, library), request.path_params.get("run")
        more = {"title": run or library.root.name, "may_write": access.has_token(request.headers)}
        with _in_words(asked):
            version = _version(library, run)  # before the data: what changes meanwhile is then fetched again
            return HTMLResponse(looks.render(f"{view.name}.html", view.data(asked), version=version, **more))

    return endpoint


def _acting(action: Action, library: Library, looks: Looks, as_json: bool) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        asked = _asked(request, library, _form(await request.body(), request.headers.get("content-type", "")))
        with _in_words(asked):
            done = await run_in_threadpool(action.do, asked)
        if as_json:
            return Response(looks.json(done), media_type="application/json")
        return RedirectResponse(action.leads_to(asked), 303)

    return endpoint


def _streaming(stream: Stream, library: Library, looks: Looks) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        asked = _asked(request, library, _form(await request.body(), request.headers.get("content-type", "")))
        gone = threading.Event()
        pieces = await run_in_threadpool(stream.ask, asked, gone)

        async def lines() -> AsyncIterator[bytes]:
            try:
                async for piece in _heard(pieces, gone):
                    yield looks.json(piece) + b"\n"
            finally:  # at the end, or when whoever listened went away
                library.computing.stop(gone)

        return StreamingResponse(lines(), media_type="application/x-ndjson", headers={"X-Accel-Buffering": "no"})

    return endpoint


async def _heard(pieces: Generator[Data, None, None], gone: threading.Event) -> AsyncIterator[Data]:
    """The pieces, waited for in a thread of their own: the wait for one can be given up at any time."""
    loop, heard = asyncio.get_running_loop(), asyncio.Queue[Data | None]()

    def told(piece: Data | None) -> None:
        with suppress(RuntimeError):  # the page has ended
            loop.call_soon_threadsafe(heard.put_nowait, piece)

    def listen() -> None:
        try:
            for piece in pieces:
                if gone.is_set():
                    break
                told(piece)
        finally:
            pieces.close()
            told(None)

    threading.Thread(target=listen, daemon=True).start()
    while (piece := await heard.get()) is not None:
        yield piece


def _form(body: bytes, kind: str) -> dict[str, list[str]]:
    """What was sent, by key: a form, or an object of JSON. Lists of texts are several values; whatever else is no text
    is written as JSON, which is YAML too.
    """
    try:
        if kind.split(";")[0].strip() == "application/json":
            values = json.loads(body or b"{}").items()
            return {key: _texts(own) for key, own in values}
        return parse_qs(body.decode(), keep_blank_values=True, max_num_fields=1000)
    except (ValueError, AttributeError):
        raise HTTPException(400, "this is neither a form nor an object of JSON") from None


def _texts(value: Any) -> list[str]:
    if isinstance(value, list) and all(isinstance(own, str) for own in value):
        return value
    return [value if isinstance(value, str) else json.dumps(value)]


def _told(looks: Looks) -> Callable[[Request, Exception], Response]:
    """An error as a sentence, in the form that was asked for."""

    def handler(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            status, why = error.status_code, str(error.detail)
        else:
            status = 404 if isinstance(error, NoSuchRunError) else 409 if isinstance(error, LockedError) else 422
            why = str(error)
        data: Data = {"error": why}
        if request.url.path.startswith("/api/"):
            return Response(looks.json(data), status, media_type="application/json")
        return HTMLResponse(looks.render("error.html", data, title="burnish", version="", may_write=False), status)

    return handler


def _events(library: Library) -> Callable[[Request], Any]:
    """Tells a listener, as server-sent events, whenever there is something new to see of a run, or of any of them."""
    listeners = 0

    async def endpoint(request: Request) -> Response:
        nonlocal listeners
        name: str | None = request.path_params.get("run")
        if name is not None:
            await run_in_threadpool(library.run, name)
        if listeners >= MOST_LISTENERS:
            return JSONResponse({"error": "too many listeners; close some pages"}, 503)

        async def stream() -> AsyncIterator[str]:
            nonlocal listeners
            listeners += 1
            try:
                yield "retry: 2000\n\n"
                told, quiet = "", 0.0
                while True:
                    version = await run_in_threadpool(_version, library, name)
                    if version != told:
                        told, quiet = version, 0.0
                        yield f"event: version\ndata: {json.dumps({'version': version})}\n\n"
                    elif quiet >= SIGN_OF_LIFE:
                        quiet = 0.0
                        yield ": still here\n\n"
                    await asyncio.sleep(LOOK_EVERY)
                    quiet += LOOK_EVERY
            finally:
                listeners -= 1

        return StreamingResponse(stream(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    return endpoint


def _version(library: Library, name: str | None) -> str:
    try:
        return library.version(name)
    except NoSuchRunError:
        return "gone"
