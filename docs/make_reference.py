"""The pages that are made from the code when the site is built: all commands, and the public names of the package."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import burnish

PACKAGE = Path(burnish.__file__).parent

# ------------------------------------------------------------------------------------------------------------- commands


def commands_page() -> str:
    """Every command with its arguments and options, as the command line itself knows them."""
    from typer.main import get_command

    from burnish.cli.commands import app

    whole: Any = get_command(app)
    parts = [
        "# Commands",
        "Made from the command line itself when this site is built: `burnish COMMAND --help` says the same. Whatever\n"
        "is written `key=value` changes a [key of the config](../config.md) for this one run.",
    ]
    panel = ""
    for name, command in whole.commands.items():
        if command.hidden:
            continue
        if command.rich_help_panel != panel:
            panel = command.rich_help_panel
            parts.append(f"## {panel}")
        parts.append(_command(name, command))
    parts += ["## Exit codes", _sentence_of(whole.epilog)]
    return "\n\n".join(parts) + "\n"


def _command(name: str, command: Any) -> str:
    params = [p for p in command.params if p.name != "help" and not p.hidden]
    arguments = [p for p in params if p.param_type_name == "argument"]
    options = [p for p in params if p.param_type_name == "option"]
    usage = " ".join(["burnish", name, *(["[OPTIONS]"] if options else []), *map(_word, arguments)])
    lines = [f"### `burnish {name}`", _sentence_of(command.help), f"```text\n{usage}\n```"]
    rows = [[f"`{_word(p)}`", _default(p), p.help or ""] for p in arguments]
    rows += [[_flags(p), _default(p), p.help or ""] for p in options]
    if rows:
        lines.append("\n".join(["| | default | |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]))
    return "\n\n".join(lines)


def _word(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return name if argument.required else f"[{name}]"


def _flags(option: Any) -> str:
    value = "" if option.is_flag else f" {option.metavar or 'VALUE'}"
    return ", ".join(f"`{flag}{value}`" for flag in (*option.opts, *option.secondary_opts))


def _default(param: Any) -> str:
    if param.required:
        return "required"
    return "" if param.default in (None, False) else f"`{param.default}`"


def _sentence_of(text: str) -> str:
    return " ".join(text.split())


# --------------------------------------------------------------------------------------------------------------- Python


@dataclass(frozen=True)
class Public:
    """A name that the package offers, and where it is written."""

    name: str
    module: str

    @property
    def node(self) -> ast.stmt:
        file = PACKAGE / (self.module.replace(".", "/") + ".py")
        file = file if file.exists() else PACKAGE / self.module.replace(".", "/") / "__init__.py"
        found = _definition(file, self.name)
        assert found is not None, f"{self.name} is not defined in {file}"
        return found


def _definition(file: Path, name: str) -> ast.stmt | None:
    """Where a module defines a name, or where the module that it takes it from does."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
        if isinstance(node, ast.Assign) and name in [t.id for t in node.targets if isinstance(t, ast.Name)]:
            return node
        if isinstance(node, ast.ImportFrom) and name in [alias.asname or alias.name for alias in node.names]:
            return _definition(PACKAGE.parent / (str(node.module).replace(".", "/") + ".py"), name)
    return None


def python_page() -> str:
    """The public names, by the room that they live in, with signatures and docstrings."""
    parts = [
        "# Python",
        "What `import burnish` offers (`burnish.__all__`), made from the docstrings when this site is built. Names\n"
        "are imported when they are first used. Everything else is internal and may change.",
    ]
    rooms: dict[str, list[Public]] = {}
    for name in burnish.__all__:
        module = burnish._ROOM_OF[name]
        rooms.setdefault(module.split(".")[0], []).append(Public(name, module))
    for room, names in rooms.items():
        parts.append(f"## {room}")
        parts += [_described(public) for public in names]
    return "\n\n".join(parts) + "\n"


def _described(public: Public) -> str:
    node = public.node
    lines = [f"### `{public.name}`", f"*burnish.{public.module}*"]
    if isinstance(node, ast.ClassDef):
        methods = [m for m in node.body if isinstance(m, ast.FunctionDef)]
        first = next((m for m in methods if m.name == "__init__"), None)
        lines.append(f"```python\n{_signature(public.name, first) if first else 'class ' + public.name}\n```")
        lines.append(_prose(ast.get_docstring(node)))
        for method in methods:
            if not method.name.startswith("_") and ast.get_docstring(method):
                lines.append(
                    f"```python\n.{_signature(method.name, method)}\n```\n\n{_prose(ast.get_docstring(method))}"
                )
    elif isinstance(node, ast.FunctionDef):
        lines += [f"```python\n{_signature(public.name, node)}\n```", _prose(ast.get_docstring(node))]
    else:
        lines.append(f"```python\n{ast.unparse(node)}\n```")
    return "\n\n".join(line for line in lines if line)


def _signature(name: str, node: ast.FunctionDef) -> str:
    """As it is called: without self; one parameter a line where one line would be too long."""
    arguments = ast.unparse(node.args).removeprefix("self").removeprefix("cls").lstrip(", ")
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    line = f"{name}({arguments}){returns}"
    if len(line) <= 90:
        return line
    body = "".join(f"    {part},\n" for part in _split(arguments))
    return f"{name}(\n{body}){returns}"


def _split(arguments: str) -> list[str]:
    """At commas outside brackets."""
    parts, depth = [""], 0
    for letter in arguments:
        depth += (letter in "[({") - (letter in "])}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _prose(docstring: str | None) -> str:
    """Docstrings are plain text: formulas with stars and underscores stay what they are."""
    return re.sub(r"(?<![`\w])([\w.]*[*_\[][^\s`]*)", r"`\1`", docstring or "") if docstring else ""
