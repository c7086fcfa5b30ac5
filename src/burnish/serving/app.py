"""The server's addresses, as OpenAI's API has them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from burnish.serving import asking, shapes
from burnish.serving.answer import Piece
from burnish.serving.asking import Asked, RefusedError
from burnish.serving.engine import BusyError, Engine, Job
from burnish.serving.guard import Guard
from burnish.serving.served import Served
from burnish.serving.shapes import Choice, Json, Shapes
from burnish.text import without_secrets
from burnish.web.access import Access

RETRY_AFTER = {"Retry-After": "1"}  # seconds


def application(served: Served, engine: Engine, access: Access, needs_token: bool) -> ASGIApp:
    server = _Server(served, engine)
    app = Starlette(
        routes=[
            Route("/health", server.health),
            Route("/v1/models", server.models),
            Route("/v1/models/{model:path}", server.model),
            Route("/v1/completions", server.answering("text"), methods=["POST"]),
            Route("/v1/chat/completions", server.answering("chat"), methods=["POST"]),
        ],
        exception_handlers={HTTPException: _http_error, RefusedError: _refused, Exception: _internal},
    )
    return Guard(app, access, needs_token)


class _Server:
    def __init__(self, served: Served, engine: Engine) -> None:
        self.served = served
        self.engine = engine

    async def health(self, request: Request) -> Response:
        is_open = self.engine.is_open
        return JSONResponse({"status": "ok" if is_open else "ending"}, 200 if is_open else 503)

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self.served.described(own) for own in self.served.models]})

    async def model(self, request: Request) -> Response:
        try:
            return JSONResponse(self.served.described(request.path_params["model"]))
        except asking.UnknownModelError as error:
            raise RefusedError(str(error), "model", 404, "model_not_found") from None

    def answering(self, kind: str) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                values = json.loads(await request.body())
                json.dumps(values, ensure_ascii=False).encode()  # half characters are no text
            except (ValueError, RecursionError):  # what is not UTF-8 is among them, and brackets without end
                raise RefusedError("the body is not JSON in UTF-8") from None
            except ClientDisconnect:
                return Response(status_code=499)
            limits = self.engine.limits
            asked = await run_in_threadpool(
                asking.read, self.served, kind, values, limits.max_batch, self.engine.max_tokens
            )
            made = Shapes(asked, self.engine.base.tokenizer)
            listener = _Listener(self.engine, asked, request)
            if asked.is_streamed:
                return StreamingResponse(_events(listener, made), media_type="text/event-stream")
            return await _whole(listener, made)

        return answer


class _Listener:
    """Hears the answers to one request, and ends them when its client has gone away."""

    def __init__(self, engine: Engine, asked: Asked, request: Request) -> None:
        self._request = request
        self._pieces: asyncio.Queue[Piece | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def tell(piece: Piece) -> None:
            with suppress(RuntimeError):  # the server has ended before its answers
                loop.call_soon_threadsafe(self._pieces.put_nowait, piece)

        try:
            self.job: Job = engine.ask(asked.questions, tell)
        except BusyError as error:
            raise HTTPException(error.trouble.status, error.trouble.message, RETRY_AFTER) from None

    @property
    def num_tokens(self) -> int:
        return sum(answer.num_tokens for answer in self.job.answers)

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """All of them; they end early if nobody listens any more."""
        left = len(self.job.answers)
        watching = asyncio.create_task(self._watch())
        try:
            while left:
                piece = await self._pieces.get()
                if piece is None:
                    return
                left -= piece.finish is not None
                yield piece
        finally:
            self.job.leave()  # whatever of it is not done yet
            watching.cancel()

    async def _watch(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        self._pieces.put_nowait(None)


async def _whole(listener: _Listener, made: Shapes) -> Response:
    choices = [Choice() for _ in listener.job.answers]
    async with aclosing(listener.pieces()) as pieces:
        async for piece in pieces:
            if piece.trouble is not None:
                message = shapes.error(without_secrets(piece.trouble.message), piece.trouble.status)
                return JSONResponse(message, piece.trouble.status)
            choices[piece.number].hear(piece)
    return JSONResponse(made.whole(choices, listener.num_tokens))


async def _events(listener: _Listener, made: Shapes) -> AsyncIterator[str]:
    """Server-sent events. A trouble is one of them, since the head of the answer is sent already."""
    async with aclosing(listener.pieces()) as pieces:
        async for piece in pieces:
            if piece.trouble is not None:
                yield _event(shapes.error(without_secrets(piece.trouble.message), piece.trouble.status))
                return
            yield _event(made.piece(piece))
    if made.asked.tells_usage:
        yield _event(made.last(listener.num_tokens))
    yield "data: [DONE]\n\n"


def _event(message: Json) -> str:
    return f"data: {json.dumps(message)}\n\n"


async def _http_error(request: Request, error: Any) -> Response:
    return JSONResponse(shapes.error(str(error.detail), error.status_code), error.status_code, error.headers)


async def _refused(request: Request, error: Any) -> Response:
    return JSONResponse(shapes.refusal(error), error.status)


async def _internal(request: Request, error: Exception) -> Response:
    told = without_secrets(f"{type(error).__name__}: {error}")
    return JSONResponse(shapes.error(f"this should not have happened: {told}", 500), 500)
