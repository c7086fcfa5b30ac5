"""A user's own Python function as a reward. It runs in a process of its own (isolated.py, worker.py)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from burnish.rewards.isolated import IsolatedFunction
from burnish.rewards.part import RewardFunction, RewardPart, Workshop


class PythonPart(RewardPart):
    """Your own function f(prompts, responses) -> list of numbers."""

    path_keys = ("function",)
    kind: Literal["python"] = "python"
    function: str = Field(pattern=r"\.py:\w+$")
    """`file.py:name`."""

    @property
    def title(self) -> str:
        return self._address[1]

    @property
    def _address(self) -> tuple[Path, str]:
        file, _, name = self.function.rpartition(":")
        return Path(file), name

    def make(self, workshop: Workshop) -> RewardFunction:
        return isolated(self.function, workshop.seconds).start()

    def files(self) -> list[Path]:
        return imported_files(self._address[0])

    def deeds(self) -> Iterator[str]:
        file, name = self._address
        yield f"run the Python file {file.resolve()} and its function {name}"


@cache
def isolated(address: str, seconds: float) -> IsolatedFunction:
    """One process for a function and time limit, however often it is asked for."""
    return IsolatedFunction(address, seconds)


def imported_files(file: Path) -> list[Path]:
    """A reward's file and all that it imports from its own folder, directly or not; none of it is run.

    Names that are put together at run time are not seen, nor is what is elsewhere.
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
    """Of a.b.c: the packages a and a.b, and the module or package a.b.c, as far as they are in this folder."""
    parts = module.split(".")
    places = [root.joinpath(*parts[: n + 1]) for n in range(len(parts))]
    candidates = [p for place in places for p in (place / "__init__.py", place.with_name(f"{place.name}.py"))]
    return [p for p in candidates if p.is_file()]
