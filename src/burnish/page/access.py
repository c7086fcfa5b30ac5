"""Who may ask the page for what: names it answers to, where a request comes from, the token, sizes and rates.

A page on this machine can be reached by every other page that the browser has open. So a request must name an address
that is ours (a name that somebody else's DNS points here is refused), and what changes or computes something must come
from our own pages and bring the token. Beyond this machine, everything needs the token.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from burnish.web.access import Access, Rate, declared_length, limited

LARGEST_BODY = 1_000_000  # bytes
LONGEST_ADDRESS = 4_000  # bytes of path and query
WRITES_PER_MINUTE = 240
WRONG_TOKENS_PER_MINUTE = 30
SAFE_METHODS = ("GET", "HEAD")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # `no-referrer` would make the browser hide the Origin of our own forms
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


class Guard:
    """Stands before the application."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app = app
        self.access = access
        self._writes, self._wrong = Rate(WRITES_PER_MINUTE), Rate(WRONG_TOKENS_PER_MINUTE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":  # there are no web sockets
            refusal = self._refusal(scope)
            app = refusal or self.app
            await app(scope, receive if refusal else limited(receive, LARGEST_BODY), _with_headers(send, scope["path"]))

    def _refusal(self, scope: Scope) -> Response | None:
        """What is answered instead, if anything is."""
        headers, method, access = Headers(scope=scope), scope["method"], self.access
        query = scope["query_string"].decode("latin-1")
        if len(scope.get("raw_path") or b"") + len(query) > LONGEST_ADDRESS:
            return _refused(scope, 414, "the address is too long")
        if not access.answers_to(headers.get("host", "")):
            return _refused(scope, 403, "this page does not answer to that name; open the address that it printed")
        if declared_length(headers, LARGEST_BODY) > LARGEST_BODY:
            return _refused(scope, 413, f"more than {LARGEST_BODY} bytes")
        writes = method not in SAFE_METHODS
        if writes and not access.comes_from_here(headers):
            return _refused(scope, 403, "this was sent by another page than burnish's")
        tokens = [value for key, value in parse_qsl(query) if key == "token"]
        if tokens and not writes:
            return self._signed_in(scope, query, tokens[-1])
        if (writes or not access.is_local) and not access.has_token(headers):
            return self._wrong_token(scope)
        if writes and not self._writes.allows():
            return _refused(scope, 429, "too many requests; wait a minute")
        return None

    def _signed_in(self, scope: Scope, query: str, token: str) -> Response:
        """The token moves from the address, which stays in histories, into a cookie."""
        if not self.access.is_token(token):
            return self._wrong_token(scope)
        rest = urlencode([(key, value) for key, value in parse_qsl(query) if key != "token"])
        where = "/" + quote(scope["path"].lstrip("/\\"))  # two slashes would lead to another machine
        response = RedirectResponse(f"{where}?{rest}" if rest else where, 303)
        response.set_cookie(self.access.cookie, self.access.token, httponly=True, samesite="lax", path="/")
        return response

    def _wrong_token(self, scope: Scope) -> Response:
        if not self._wrong.allows():
            return _refused(scope, 429, "too many requests without the token; wait a minute")
        return _refused(scope, 401, "this needs the token: open the whole address that `burnish page` printed")


def _refused(scope: Scope, status: int, why: str) -> Response:
    if scope["path"].startswith("/api/"):
        return JSONResponse({"error": why}, status)
    return PlainTextResponse(why + "\n", status)


def _with_headers(send: Send, path: str) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers["Cache-Control"] = "no-cache" if path.startswith("/static/") else "no-store"
        await send(message)

    return sending
