"""The export stage: a run's result in the form that another tool loads, tried by that tool."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from burnish.base_setup.lora_files import CONFIG, SCOPE_FILE, WEIGHTS, read_json
from burnish.data import Prompt
from burnish.data.bundled import bundled_sentiment
from burnish.errors import InputError
from burnish.export.exported import FACTS, GGUF_TYPES, Exported, check_form, check_output, read_facts
from burnish.runs.disk import inside, megabytes, refuse_links
from burnish.runs.run import Run
from burnish.show import terminal
from burnish.text import plain

NUM_PROMPTS = 8  # answers that are compared, unless more are given
TEACHER = "teacher"  # among the facts of an ordinary LoRA: the digest of the adapter that it was made from


@dataclass(frozen=True)
class Wish:
    """What is asked for on the command line."""

    run: str
    form: str
    output: str | None = None
    lora: str | None = None
    """A folder that `--to lora` made, to be exported in place of the run's own adapter."""
    gguf_type: str = "f32"
    merged: bool = False
    with_base: bool = False
    """Keep the base beside a GGUF adapter, as the file that it was tried on."""
    prompts: Sequence[str] = ()
    updates: int | None = None
    trust: bool = False


def export(console: Console, wish: Wish) -> Exported:
    """Whatever can be refused without torch is refused before it is imported."""
    check_form(wish.form)
    _check_options(wish)
    run = Run.open(wish.run)
    if run.stage == "reward":
        raise InputError(f"{run.folder} holds a reward model, which gives no answers; export the PPO run that used it")
    adapter = _adapter_folder(run, wish.lora)
    scope = read_json(adapter / SCOPE_FILE)
    _refuse_form(wish, run, scope.get("adapter_scope"), scope.get("invocation") or [])
    name = f"{wish.form}-merged" if wish.merged else wish.form
    output = Path(wish.output) if wish.output else inside(run.folder, f"exports/{name}")
    check_output(output)
    with terminal.starting(console):
        from burnish.stages.exporting import export_to

    return export_to(console, wish, run, adapter, output)


def push_export(console: Console, run: str, name: str, form: str, public: bool, dry_run: bool) -> dict[str, Any]:
    """Sends what `export` left in a run folder, or an export that lies elsewhere."""
    from burnish.export.push import parcel_of, send

    place = Path(run)
    way = _way_to(form)
    folder = place if (place / FACTS).is_file() else inside(Run.open(run).folder, f"exports/{form}")
    if not folder.is_dir():
        raise InputError(f"{run} has no export {form!r} yet; make it first: burnish export {run} {way}")
    parcel = parcel_of(folder, name, public)
    told = parcel.as_dict()
    who = "everybody" if public else "you alone"
    console.print(plain(f"{folder} to {name}, for {who} to see:"), highlight=False)
    for file, size in told["files"].items():
        console.print(plain(f"  {file}  {megabytes(size)}"), highlight=False)
    if dry_run:
        console.print("Nothing was sent.", highlight=False)
        return told | {"sent": False}
    with terminal.busy(console, "sending"):
        address = send(parcel)
    console.print(plain(f"Done: {address}"), highlight=False, soft_wrap=True)
    return told | {"sent": True, "commit": address}


def _way_to(form: str) -> str:
    """The options that make what lies in `exports/FORM`."""
    if form == "gguf-merged":
        return "--to gguf --merged"
    check_form(form)
    return f"--to {form}"


def _check_options(wish: Wish) -> None:
    if wish.form in ("gguf", "ollama") and find_spec("gguf") is None:
        raise InputError("writing a GGUF file needs the package gguf; get it with: pip install 'burnish[gguf]'")
    if wish.gguf_type not in GGUF_TYPES:
        raise InputError(f"there is no --type {wish.gguf_type}; there are {', '.join(GGUF_TYPES)}")
    if wish.merged and wish.form != "gguf":
        raise InputError("--merged goes with --to gguf; a merged model for transformers is --to merged")
    if wish.with_base and (wish.form != "gguf" or wish.merged):
        raise InputError(
            "--with-base goes with --to gguf, whose adapter needs its base beside it; a merged model has it in it, "
            "--to ollama always writes it, and peft loads the base that the run was trained on"
        )
    writes_model = wish.merged or wish.with_base or wish.form == "ollama"
    if wish.gguf_type != "f32" and not writes_model:
        raise InputError(
            f"--type {wish.gguf_type} is of a whole model, and this export has none; use it with --to gguf --merged, "
            "--to gguf --with-base or --to ollama"
        )
    if wish.updates is not None and wish.form != "lora":
        raise InputError("--updates goes with --to lora, the only form that is trained")
    if wish.lora is not None and wish.form == "lora":
        raise InputError("--lora names an ordinary LoRA, which --to lora would make; leave one of them out")


def prompts_for(run: Run, given: Sequence[str]) -> list[str]:
    """To compare answers to: those given, or held-out ones of the run, or openings that come with burnish."""
    if given:
        return list(given)
    if run.has("verdict.json"):
        rows = run.read("verdict.json").get("answers") or []
        known: list[str] = [Prompt(row["prompt"], messages=row.get("messages")) for row in rows]
    elif run.has("start.json"):
        known = run.read("start.json").get("evaluation", {}).get("prompts") or []
    else:
        known = [row["prompt"] for row in run.read_lines("probes.jsonl") if row.get("step") == 0]
    return known[:NUM_PROMPTS] or [str(prompt) for prompt in bundled_sentiment().held_out[:NUM_PROMPTS]]


def _adapter_folder(run: Run, lora: str | None) -> Path:
    """The adapter that is exported: the run's own, or an ordinary LoRA that was made from it."""
    own = inside(run.folder, f"adapters/{'sft' if run.stage == 'sft' else 'policy'}")
    _check_saved(own, "has its run finished?")
    if lora is None:
        return own
    folder = Path(lora)
    if folder.is_dir():
        refuse_links(folder)
    _check_saved(folder, "make one first: burnish export RUN --to lora")
    _check_taught(folder, own, run)
    return folder


def _check_saved(folder: Path, way: str) -> None:
    missing = [name for name in (WEIGHTS, SCOPE_FILE) if not (folder / name).is_file()]
    if missing:
        raise InputError(f"{folder} holds no adapter saved by burnish (no {missing[0]}); {way}")


def _check_taught(folder: Path, teacher: Path, run: Run) -> None:
    """It is exported with what was measured of its teacher, so that has to be this run's adapter."""
    facts = read_facts(folder) if (folder / FACTS).is_file() else {}
    if facts.get("form") != "lora" or not (folder / CONFIG).is_file():
        raise InputError(
            f"{folder} was not made by `--to lora`, and --lora takes nothing else; make it first: "
            f"burnish export {run.folder} --to lora"
        )
    taught = facts.get("distilled")
    if not isinstance(taught, dict) or taught.get(TEACHER) != weights_digest(teacher):
        raise InputError(
            f"the LoRA in {folder} was not made from the adapter of {run.folder} as it is now; name the run that it "
            f"was made from, or make a new one: burnish export {run.folder} --to lora --output NEW_FOLDER"
        )


def weights_digest(adapter: Path) -> str:
    """Which adapter it is: of every byte of its weights."""
    with (adapter / WEIGHTS).open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _refuse_form(wish: Wish, run: Run, scope: str | None, invocation: list[int]) -> None:
    """What no consumer could use, with the way out."""
    if wish.form == "lora" and run.stage != "ppo":
        raise InputError(
            f"{run.folder} is an SFT run, and --to lora is taught on a PPO run's prompts and measured by its reward; "
            "train with adapter_scope: sequence, which gives an ordinary LoRA at once, or use --to adapter"
        )
    if scope == "sequence":
        if wish.form == "lora":
            raise InputError(
                f"{run.folder} was trained with adapter_scope: sequence, so its adapter is an ordinary LoRA already; "
                "use --to adapter"
            )
        return
    folder = run.folder
    way = (
        f"Make an ordinary LoRA of it first (burnish export {folder} --to lora), then give that: burnish export "
        f"{folder} --to {wish.form}{' --merged' if wish.merged else ''} --lora {folder}/exports/lora"
    )
    if wish.form in ("merged", "ollama") or wish.merged:
        why = (
            "nothing tells ollama to begin there"
            if wish.form == "ollama"
            else "folded into the weights it would read the prompt too, and say something else"
        )
        also = (
            ""
            if wish.form == "ollama" or not invocation
            else f"; or use --to {_alone(wish.form)}, which keeps it apart"
        )
        raise InputError(f"the adapter of {folder} acts on the response alone, and {why}. {way}{also}")
    if wish.form != "lora" and not invocation:
        raise InputError(
            f"the prompts of {folder} share no ending, so nothing can tell another tool where its adapter begins to "
            f"act. {way}"
        )


def _alone(form: str) -> str:
    return "gguf (without --merged)" if form == "gguf" else "gguf or --to adapter"
