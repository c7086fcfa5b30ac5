"""Rewards from elsewhere: a user's Python function, a service on the network, people."""

from __future__ import annotations

import ast
import http.client
import importlib.util
import ipaddress
import json
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from burnish.data.records import load_scores
from burnish.errors import InputError, RewardFailedError, nearest
from burnish.safe_text import secret_variables

CONNECT_SECONDS = 5.0
MAX_ANSWER_BYTES = 10 * 2**20


@cache
def python_function(address: str) -> Callable[..., Sequence[Any]]:
    """`file.py:name`: runs the file as a module of its own, which may import its neighbours, and takes the function."""
    file_name, _, name = address.rpartition(":")
    file = Path(file_name)
    if not file.is_file():
        raise InputError(f"reward file {file} does not exist")
    module_name = f"burnish_reward_{file.stem}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    sys.path.insert(0, str(file.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a script may end itself when it is run
        raise InputError(f"reward file {file} cannot be run: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    functions = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
    if name not in functions:
        raise InputError(f"{file} has no function {name!r}{nearest(name, functions)}")
    return getattr(module, name)


def imported_files(file: Path) -> list[Path]:
    """A reward's file and all that it imports from its own folder, directly or not; none of it is run.

    Names that are put together at run time are not seen, nor is what lies elsewhere.
    """
    root = file.parent
    found: dict[Path, None] = {file: None}
    to_read = [file]
    while to_read:
        here = to_read.pop()
        for module in _imported_modules(here, root):
            for path in _files_of_module(root, module):
                if path not in found:
                    found[path] = None
                    to_read.append(path)
    return [file, *sorted(found.keys() - {file})]


def _imported_modules(file: Path, root: Path) -> set[str]:
    """The full names of what a file imports; of `from a import b` both a and a.b, as b may be a module too."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):  # told when it is run
        return set()
    package = file.relative_to(root).parts[:-1]
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            names |= {module, *(f"{module}.{alias.name}".lstrip(".") for alias in node.names)}
    return names - {""}


def _files_of_module(root: Path, module: str) -> list[Path]:
    """Of a.b.c: the packages a and a.b, and the module or package a.b.c, as far as they lie in this folder."""
    parts = module.split(".")
    places = [root.joinpath(*parts[: n + 1]) for n in range(len(parts))]
    candidates = [p for place in places for p in (place / "__init__.py", place.with_name(f"{place.name}.py"))]
    return [p for p in candidates if p.is_file()]


class HttpReward:
    """Asks a service. Its address comes from the local config alone; no redirect is followed, nothing waits forever."""

    __name__ = "http"

    def __init__(self, url: str, seconds: float = 30.0, token_env: str | None = None) -> None:
        self.url = url
        self.seconds = seconds
        self.address = urlsplit(url)
        self.headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if token_env is not None:
            token = os.environ.get(token_env, "").strip()
            if not token or not token.isprintable() or not token.isascii():
                raise InputError(f"the reward service {url} needs its token in the environment variable {token_env}")
            secret_variables.add(token_env)
            self.headers["Authorization"] = f"Bearer {token}"

    def __call__(self, prompts: list[str], responses: list[str]) -> list[float]:
        body = json.dumps({"prompts": prompts, "responses": responses}).encode()
        try:
            content = self._post(body)
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise RewardFailedError(f"the reward service {self.url} failed: {reason}") from None
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError):
            raise RewardFailedError(f"the reward service {self.url} did not answer in JSON") from None
        rewards = answer.get("rewards") if isinstance(answer, dict) else None
        if not isinstance(rewards, list):
            raise RewardFailedError(
                f'the reward service {self.url} must answer {{"rewards": [...]}}, one for each response'
            )
        return rewards

    def _post(self, body: bytes) -> bytes:
        started = time.monotonic()
        connection = self._connect()
        # A socket's own time limit begins anew with every byte; the whole answer's does not.
        deadline = threading.Timer(self.seconds - (time.monotonic() - started), _hang_up, [connection.sock])
        deadline.daemon = True
        deadline.start()
        late = RewardFailedError(f"the reward service {self.url} took more than {self.seconds:g} s")
        try:
            content = self._exchange(connection, body)
        except (OSError, http.client.HTTPException, RewardFailedError):
            if time.monotonic() - started < self.seconds:
                raise
            raise late from None
        finally:
            deadline.cancel()
            connection.close()
        if time.monotonic() - started >= self.seconds:  # perhaps cut off in the middle
            raise late
        return content

    def _exchange(self, connection: http.client.HTTPConnection, body: bytes) -> bytes:
        target = (self.address.path or "/") + (f"?{self.address.query}" if self.address.query else "")
        connection.request("POST", target, body, self.headers)
        answer = connection.getresponse()
        if answer.status != 200:
            moved = " (redirects are not followed)" if 300 <= answer.status < 400 else ""
            raise RewardFailedError(f"the reward service {self.url} answered {answer.status} {answer.reason}{moved}")
        content = answer.read(MAX_ANSWER_BYTES + 1)
        if len(content) > MAX_ANSWER_BYTES:
            raise InputError(f"the reward service {self.url} answered more than {MAX_ANSWER_BYTES >> 20} MB")
        if answer.length:  # what was announced and did not come
            raise RewardFailedError(f"the reward service {self.url} hung up in the middle of its answer")
        return content

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self.address.scheme == "https" else http.client.HTTPConnection
        assert self.address.hostname is not None
        connection = kind(self.address.hostname, self.address.port, timeout=min(CONNECT_SECONDS, self.seconds))
        connection.connect()
        connection.sock.settimeout(self.seconds)
        peer = ipaddress.ip_address(connection.sock.getpeername()[0].partition("%")[0])
        if (getattr(peer, "ipv4_mapped", None) or peer).is_link_local:  # where clouds keep their credentials
            connection.close()
            raise InputError(f"the reward service {self.url} lies at the link-local address {peer}, which is refused")
        return connection


def _hang_up(sock: socket.socket) -> None:
    with suppress(OSError):  # it may be closed already
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # the plain one: TLS would first want to say goodbye


Ask = Callable[[str, str], str]


class HumanReward:
    """Scores that people gave. A response nobody has scored yet is asked for in the terminal, and the answer kept."""

    __name__ = "human"

    def __init__(self, path: str | Path, ask: Ask | None = None) -> None:
        self.path = Path(path)
        self.ask = ask or (_ask_in_terminal if sys.stdin.isatty() else None)
        known = load_scores(self.path).records if self.path.is_file() and self.path.stat().st_size else []
        self.scores = {(str(k.prompt), k.response): k.score for k in known}

    def __call__(self, prompts: list[str], responses: list[str]) -> list[float]:
        keys = list(zip(map(str, prompts), responses, strict=True))
        missing = [key for key in dict.fromkeys(keys) if key not in self.scores]
        if missing and self.ask is None:
            raise InputError(
                f"{len(missing)} responses have no score in {self.path}, the first begins {missing[0][1][:60]!r}; "
                "run in a terminal to be asked for them, or add them to the file"
            )
        for prompt, response in missing:
            self._keep(prompt, response)
        return [self.scores[key] for key in keys]

    def _keep(self, prompt: str, response: str) -> None:
        assert self.ask is not None
        score = math.nan
        while not math.isfinite(score):
            try:
                score = float(self.ask(prompt, response))
            except ValueError:
                continue  # not a number: ask again
        self.scores[prompt, response] = score
        with self.path.open("a+b") as out:
            out.seek(0, os.SEEK_END)
            if out.tell():  # a file that a person wrote may end without a line's end
                out.seek(-1, os.SEEK_END)
                out.write(b"" if out.read(1) == b"\n" else b"\n")
            out.write(json.dumps({"prompt": prompt, "response": response, "score": score}).encode() + b"\n")


def _ask_in_terminal(prompt: str, response: str) -> str:
    from rich.console import Console

    from burnish.terminal import paused, plain

    console = Console(stderr=True, emoji=False)
    with paused():  # a progress line would wipe the question away
        console.print(f"\n[dim]{plain(prompt)}[/dim]\n{plain(response)}", highlight=False)
        return console.input("score: ")
