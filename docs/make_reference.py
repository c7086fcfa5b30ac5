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


EXTENSIONS = (
    Public("Estimator", "ppo.advantage"),
    Public("RewardPart", "rewards.part"),
    Public("Engine", "rollout.rollout"),
)
"""What extensions implement: public as well, though `import burnish` does not offer it."""


def python_page() -> str:
    """The public names, by the room that they live in, with signatures and docstrings."""
    parts = [
        "# Python",
        "What `import burnish` offers (`burnish.__all__`), and at the end the interfaces of extensions, made from the\n"
        "docstrings when this site is built. Names are imported when they are first used. Other names in Python are\n"
        "internal and may change; commands, config keys and files are [promised](../api.md#what-is-promised) too.",
    ]
    rooms: dict[str, list[Public]] = {}
    for name in burnish.__all__:
        module = burnish._ROOM_OF[name]
        rooms.setdefault(module.split(".")[0], []).append(Public(name, module))
    for room, names in rooms.items():
        parts.append(f"## {room}")
        parts += [_described(public) for public in names]
    parts.append("## Interfaces of extensions")
    parts.append("[Where to put things](../design.md#where-to-put-things) says what uses them.")
    parts += [_described(public) for public in EXTENSIONS]
    return "\n\n".join(parts) + "\n"


def _described(public: Public) -> str:
    node = public.node
    lines = [f"### `{public.name}`", f"*burnish.{public.module}*"]
    if isinstance(node, ast.ClassDef):
        lines += [_code(_made_by(node)), _prose(ast.get_docstring(node)), _keys(public), *_members(node)]
    elif isinstance(node, ast.FunctionDef):
        lines += [_code(_signature(public.name, node.args, node.returns)), _prose(ast.get_docstring(node))]
    else:
        lines.append(_code(ast.unparse(node)))
    return "\n\n".join(line for line in lines if line)


def _made_by(node: ast.ClassDef) -> str:
    """How an instance is made: by `__init__`, or of a dataclass's fields."""
    for own in node.body:
        if isinstance(own, ast.FunctionDef) and own.name == "__init__":
            return _signature(node.name, own.args)
    if "dataclass" in _decorators(node):
        return _call(node.name, [ast.unparse(own) for own in node.body if _is_parameter(own)])
    return f"class {node.name}"


def _is_parameter(node: ast.stmt) -> bool:
    if not isinstance(node, ast.AnnAssign):
        return False
    value = ast.unparse(node.value) if node.value else ""
    return "ClassVar" not in ast.unparse(node.annotation) and "init=False" not in value


def _keys(public: Public) -> str:
    """Of a config: which keys it has. What each means is on the page of them all."""
    fields = getattr(getattr(burnish, public.name, None), "model_fields", None)
    if fields is None:
        return ""
    named = ", ".join(f"`{key}`" for key in fields)
    return f"Made of keys: `{public.name}(key=value, ...)`. [Their meanings and defaults](../config.md). {named}"


def _members(node: ast.ClassDef) -> list[str]:
    """Attributes as they are read, methods as they are called."""
    parts = []
    for own in node.body:
        if not isinstance(own, ast.FunctionDef) or own.name.startswith("_") or not ast.get_docstring(own):
            continue
        decorators = _decorators(own)
        if decorators & {"property", "cached_property"}:
            code = f".{own.name}: {ast.unparse(own.returns) if own.returns else 'Any'}"
        else:
            of = node.name if decorators & {"classmethod", "staticmethod"} else ""
            code = _signature(f"{of}.{own.name}", own.args, own.returns)
        parts += [_code(code), _prose(ast.get_docstring(own))]
    return parts


def _decorators(node: ast.ClassDef | ast.FunctionDef) -> set[str]:
    """Their last words: `functools.cached_property` is a `cached_property`."""
    called = [own.func if isinstance(own, ast.Call) else own for own in node.decorator_list]
    return {ast.unparse(own).split(".")[-1] for own in called}


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _signature(name: str, args: ast.arguments, returns: ast.expr | None = None) -> str:
    """As it is called: without self."""
    parts = _split(ast.unparse(args))
    return _call(name, parts[parts[0] in ("self", "cls") :], f" -> {ast.unparse(returns)}" if returns else "")


def _call(name: str, parameters: list[str], returns: str = "") -> str:
    """One parameter a line where one line would be too long."""
    parts = [re.sub(r"^(\w+: [^=]*?) ?= ?", r"\1 = ", part) for part in parameters]
    line = f"{name}({', '.join(parts)}){returns}"
    if len(line) <= 90:
        return line
    body = "".join(f"    {part},\n" for part in parts)
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


PLAIN = re.compile(r"`[^`]*`|\[[^\]\n`]*\]|[\w.]*[*_][\w.*]*(?:\[[^\]\n`]*\])?")
"""In a docstring: code as it is, shapes, and words that Markdown would take for emphasis."""


def _prose(docstring: str | None) -> str:
    """Docstrings are plain text: formulas with stars and underscores stay what they are."""

    def shown(found: re.Match[str]) -> str:
        word = found[0] if found[0][0] in "`[" else found[0].rstrip(".")
        return word if word[0] == "`" else f"`{word}`{found[0][len(word) :]}"

    return PLAIN.sub(shown, docstring or "")
