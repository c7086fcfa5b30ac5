"""The page, served in a thread of the test's process, and a client that sends just what it is told to."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.page.app import application
from burnish.page.library import Library
from burnish.page.server import server_of
from burnish.web.access import Access


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Served:
    access: Access
    port: int
    library: Library

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.access.token}"}

    def ask(self, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Answer:
        """Sends the path as it is; a header `host` replaces the right one."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        sent = {"Host": f"127.0.0.1:{self.port}"} | {name.replace("_", "-").title(): v for name, v in headers.items()}
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        if body is not None:
            sent.setdefault("Content-Length", str(len(body)))
        for name, value in sent.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        found = Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        connection.close()
        return found

    def post(self, path: str, values: dict[str, Any] | None = None, **headers: str) -> Answer:
        """As a program does that has the token."""
        return self.ask(
            path, "POST", json.dumps(values or {}).encode(), content_type="application/json", **self.bearer, **headers
        )


@contextmanager
def served(root: Path, host: str = "127.0.0.1", labelled: Path | None = None) -> Iterator[Served]:
    """`host` is where the page believes to listen; it listens on this machine only."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    access, library = Access(host, port), Library(root, labelled)
    server = server_of(application(library, access))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield Served(access, port, library)
    library.computing.end()
    server.should_exit = True
    thread.join(10)
