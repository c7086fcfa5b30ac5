"""Start: a form over the config, which writes it as YAML, shows it, and starts the run: a process of its own that goes
on when the page ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic.fields import FieldInfo

from burnish.config import ModelConfig
from burnish.config.documentation import SECTIONS, as_yaml
from burnish.config.files import apply_overrides, read_mapping, start_paths_at
from burnish.errors import InputError
from burnish.page.library import Library
from burnish.page.view import Action, Asked, Data, View, address
from burnish.runs.disk import without_links, write_whole
from burnish.runs.run import Run
from burnish.stages.stage import STAGES
from burnish.system.lives import of_its_own
from burnish.system.modules import OWN_PYTHON

FIRST = ("run_name", "model_name", "prompts", "demonstrations", "preferences", "scores", "reward", "sft", "recipe",
         "steps", "learning_rate")  # fmt: skip
"""What one sets first; the others follow by section."""
OURS = ("run_dir",)  # the page's own folder
COMMAND = (*OWN_PYTHON, "-c", "from burnish.cli import main; main()")
BEYOND = 10**6  # a limit that nobody meets is not told
LOG_BYTES = 8000  # the last ones
starting = threading.Lock()
started: dict[Path, subprocess.Popen[bytes]] = {}  # here, by their config files


def data(asked: Asked) -> Data:
    """Query: `stage`; `begun`, the name of a run that was started here."""
    stage, begun = asked.choice("stage", ("ppo", "sft", "reward")), asked.one("begun")
    config, told = STAGES[stage].config, _begun(asked.library, begun) if begun else None
    first = [key for key in FIRST if key in config.model_fields]
    sections, shown = [{"title": "First", "fields": [_field(config, key) for key in first]}], {*first, *OURS}
    for title, classes in SECTIONS.items():
        brought = [key for own in classes if issubclass(config, own) for key in own.model_fields]  # type: ignore[attr-defined]
        keys = [key for key in dict.fromkeys(brought) if key not in shown]
        if keys:
            sections.append({"title": title.replace("`", ""), "fields": [_field(config, key) for key in keys]})
            shown |= {*keys}
    return {
        "stage": stage,
        "command": config.command,
        "folder": str(asked.library.root),
        "here": str(Path.cwd()),
        "sections": sections,
        "begun": told,
        "given": {} if told is None or told["is_there"] else _given(asked.library, begun),
    }


def _field(config: type[ModelConfig], key: str) -> dict[str, Any]:
    field = config.model_fields[key]
    choices = [str(one) if not isinstance(one, bool) else as_yaml(one) for one in _choices(field.annotation)]
    return {
        "key": key,
        "default": "" if field.is_required() else as_yaml(field.get_default(call_default_factory=True)),
        "is_required": field.is_required(),
        "meaning": " ".join((field.description or "").split()),
        "range": _range(field),
        "choices": choices,
    }


def _choices(annotation: Any) -> list[Any]:
    """Of a key that takes one of a few words, or yes and no."""
    if annotation is bool:
        return [True, False]
    found = [one for own in get_args(annotation) for one in ([own] if isinstance(own, str) else get_args(own))]
    return found if found and all(isinstance(one, str) for one in found) else []


def _range(field: FieldInfo) -> str:
    told = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    limits = [(told[name], own) for rule in field.metadata for name in told
              if (own := getattr(rule, name, None)) is not None and abs(own) < BEYOND]  # fmt: skip
    return ", ".join(f"{words} {own:g}" for words, own in limits)


def _begun(library: Library, name: str) -> dict[str, Any]:
    """How it is with a run that was started here: it may fail before there is a run folder."""
    log = library.root / f"{_safe(name)}-start.log"
    said = ""
    if log.is_file():
        with open(log, "rb", opener=without_links) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
            said = file.read().decode(errors="replace")
    return {"run": name, "is_there": name in library.runs(), "said": said.strip()}


def _given(library: Library, name: str) -> dict[str, str]:
    """What was set for a run that has not begun, to be mended."""
    file = library.root / f"{_safe(name)}-start.yaml"
    return {key: as_yaml(value) for key, value in read_mapping(file).items()} if file.is_file() else {}


def _safe(name: str) -> str:
    """A run's name as a part of a file's."""
    if not name or not all(c.isalnum() or c in "._-" for c in name) or name.startswith("."):
        raise InputError(f"{name!r:.80} cannot be the name of a run")
    return name


def start(asked: Asked) -> Data:
    """Form: `stage`, `do` (check or start), and keys of the config; empty ones keep their defaults."""
    library, stage = asked.library, asked.choice("stage", ("ppo", "sft", "reward"))
    if (library.root / "config.yaml").is_file():
        raise InputError("this page shows one run; serve the folder of all runs to start others: burnish page runs")
    kind = STAGES[stage].config
    sent = {key: own for key, own in asked.query.items() if key in kind.model_fields}
    texts = {key: own[0].strip() if len(own) == 1 else json.dumps(own) for key, own in sent.items()}
    given = [f"{key}={texts[key]}" for key in kind.model_fields if texts.get(key)]
    values: dict[str, Any] = {}
    apply_overrides(kind, values, [own for own in given if own.partition("=")[0] not in OURS])
    start_paths_at(Path.cwd(), kind, values)
    values |= {"run_dir": str(library.root), "run_name": values.get("run_name") or time.strftime("%Y%m%d-%H%M%S")}
    config = kind(**values)
    run = Run.new(library.root, config.run_name)
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    name = run.folder.name
    file = library.root / f"{_safe(name)}-start.yaml"
    told = {"yaml": text, "run": name, "file": str(file), "command": f"burnish {kind.command} {file}"}
    if asked.choice("do", ("check", "start")) == "check":
        return told | {"is_started": False}
    try:
        with starting:  # what an earlier start left is replaced: no run has begun under this name
            if (earlier := started.get(file)) is not None and earlier.poll() is None:
                raise InputError(f"{name} was started a moment ago; wait for it, or choose another run_name")
            write_whole(file, text)
            started[file] = _process([*COMMAND, str(kind.command), str(file)], file.with_suffix(".log"))
    except OSError as error:
        raise InputError(f"cannot start it: {error.strerror or error}") from None
    return told | {"is_started": True}


def _process(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """In a session of its own: neither the page's end nor its terminal's touches it."""
    with open(log, "wb", opener=without_links) as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, **of_its_own()
        )
    threading.Thread(target=process.wait, daemon=True).start()  # so that nothing of it stays when it ends
    return process


VIEW = View("start", "/start", data, "Start")
START = Action("/start", start, lambda asked: address("/start", stage=asked.one("stage"), begun=asked.one("run_name")))
