"""The blocks of code in README and docs: which there are, and a terminal to run those of bash in."""

from __future__ import annotations

import json
import os
import re
import shlex
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import Any

from failures import ForkServer

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"^(?:<!-- ((?:not run|tested): [^\n]*?) -->\n)?```(python|bash|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """Code on a page; `why_not` says why it is not run with its page: nothing could, or a test of its own does."""

    page: str
    line: int
    language: str
    code: str
    why_not: str | None

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    name = str(page.relative_to(ROOT))
    return [Block(name, text[: m.start()].count("\n") + 1, m[2], m[3], m[1]) for m in BLOCK.finditer(text)]


ALL = [block for page in PAGES for block in blocks_of(page)]


def burnish_calls(code: str) -> Iterator[list[str]]:
    """The arguments of every burnish command in a block of bash."""
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True) if "<<" not in line else []
        if "burnish" in words:
            after = words[words.index("burnish") + 1 :]
            yield list(dropwhile(lambda word: word.startswith("-"), after))  # --quiet and --verbose come first


CLIENT = """#!{python} -SE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as line:
    line.connect({socket!r})
    line.sendall(json.dumps([os.getcwd(), sys.argv[1:]]).encode() + b"\\n")
    answer = json.loads(b"".join(iter(lambda: line.recv(65536), b"")))
sys.stdout.write(answer["stdout"])
sys.stderr.write(answer["stderr"])
sys.exit(answer["code"])
"""


class Terminal:
    """bash, in which `burnish` is a fork of a process that has everything imported, with settings for a tiny model."""

    def __init__(self, scratch: Path, fork_server: ForkServer, environment: dict[str, str]) -> None:
        self.fork_server, self.environment = fork_server, environment
        self.bin = scratch / "bin"
        self.bin.mkdir()
        address = str(scratch / "line")
        client = self.bin / "burnish"
        client.write_text(CLIENT.format(python=sys.executable, socket=address))
        client.chmod(0o755)
        self.server = socketserver.UnixStreamServer(address, self._handler())
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def _handler(self) -> type[socketserver.StreamRequestHandler]:
        terminal = self

        class Call(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                folder, arguments = json.loads(self.rfile.readline())
                ended = terminal.burnish(Path(folder), arguments)
                self.wfile.write(json.dumps(ended).encode())

        return Call

    def burnish(self, folder: Path, arguments: list[str]) -> dict[str, Any]:
        ended = self.fork_server.run(folder, *arguments, *small(arguments), environment=self.environment)
        return {"code": ended.code, "stdout": ended.out, "stderr": ended.err}

    def run(self, code: str, folder: Path) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(self.bin), str(Path(sys.executable).parent), os.environ["PATH"]])
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", code],
            cwd=folder,
            env={**os.environ, **self.environment, "PATH": path},
            capture_output=True,
            text=True,
            timeout=600,
            stdin=subprocess.DEVNULL,
        )

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


SMALL = {
    "train": ["steps=1", "epochs=1", "max_new_tokens=4", "best_of=1", "max_kl=null"],
    "pipeline": """ppo.steps=1 ppo.epochs=1 model.max_new_tokens=8 ppo.best_of=1 ppo.max_kl=null
        reward_model.epochs=1 reward_model.num_centring_prompts=2""".split(),
    "reward": ["num_centring_prompts=2"],
    "credit": ["--prompts", "2", "--positions", "1", "--continuations", "2"],
}


def small(arguments: list[str]) -> list[str]:
    """What makes a command quick on a tiny model, and changes nothing of what it is."""
    return SMALL.get(arguments[0], []) if arguments else []
