"""Who may ask: programs of this machine, and others with the token; no page of somebody else's in a browser here."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from burnish.serving import shapes
from burnish.web.access import Access, Rate, declared_length, limited

LARGEST_BODY = 2_000_000  # bytes
WRONG_TOKENS_PER_MINUTE = 60
OPEN = ("/health",)


class Guard:
    """Stands before the application."""

    def __init__(self, app: ASGIApp, access: Access, needs_token: bool) -> None:
        self.app = app
        self.access = access
        self.needs_token = needs_token
        self._wrong = Rate(WRONG_TOKENS_PER_MINUTE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # there are no web sockets
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send)
        else:
            await self.app(scope, limited(receive, LARGEST_BODY), send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers, access = Headers(scope=scope), self.access
        if not access.answers_to(headers.get("host", "")):
            return _refused(403, "this server does not answer to that name; use the address that it printed")
        if not access.comes_from_here(headers):
            return _refused(403, "this was sent by a page of another address; programs send no Origin")
        if declared_length(headers, LARGEST_BODY) > LARGEST_BODY:
            return _refused(413, f"the body has more than {LARGEST_BODY} bytes")
        if self.needs_token and scope["path"] not in OPEN and not access.has_token(headers):
            if not self._wrong.allows():
                return _refused(429, "too many requests without the token; wait a minute")
            return _refused(401, "this needs the token, as `Authorization: Bearer TOKEN`", "invalid_api_key")
        return None


def _refused(status: int, why: str, code: str | None = None) -> Response:
    return JSONResponse(shapes.error(why, status, code=code), status)
