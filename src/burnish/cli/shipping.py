"""Commands that give what was learned to other tools and other people."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from burnish.cli.app import Trust, app, console, safe, tell_json

PANEL = "Ship"
# Unlike the other commands', it does not make the console quiet: these take long, and tell people on standard error.
Json = Annotated[bool, typer.Option("--json", help="one JSON document on stdout, and nothing else (docs/cli.md)")]


@app.command(rich_help_panel=PANEL)
def export(
    run: Annotated[str, typer.Argument(help="folder of a PPO or SFT run", metavar="RUN")],
    to: Annotated[str, typer.Option(metavar="FORM", help="adapter, merged, gguf, lora or ollama")],
    output: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="a new folder; default: exports/FORM in the run's")
    ] = None,
    lora: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="what `--to lora` made, in place of the run's own adapter")
    ] = None,
    gguf_type: Annotated[str, typer.Option("--type", help="of a whole GGUF model's weights: f32, f16, q8_0")] = "f32",
    merged: Annotated[bool, typer.Option("--merged", help="with gguf: the whole model, not the adapter")] = False,
    with_base: Annotated[bool, typer.Option("--with-base", help="with gguf: the base beside the adapter")] = False,
    prompt: Annotated[
        list[str] | None, typer.Option(help="to compare answers to (again for more); default: held-out ones")
    ] = None,
    updates: Annotated[
        int | None, typer.Option(min=1, help="with lora: at most so many, or fewer if it gets no better; default: 120")
    ] = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """The result for peft, transformers, llama.cpp, ollama or any server, tried before it is called done."""
    from burnish.stages.export import Wish
    from burnish.stages.export import export as make

    wish = Wish(run, to, output, lora, gguf_type, merged, with_base, tuple(prompt or ()), updates, trust)
    made = make(_told_aside(as_json), wish)
    if as_json:
        tell_json(made.as_dict())
        return
    untried = made.facts.get("not_verified")
    if untried:
        console.print(safe(f"Not tried: {untried}"), highlight=False)
    console.print(safe(f"Done: {made.folder} ({'README.md'} says how to load it)"), highlight=False, soft_wrap=True)


@app.command(rich_help_panel=PANEL)
def push(
    run: Annotated[str, typer.Argument(help="folder of a run, or of an export", metavar="RUN")],
    name: Annotated[str, typer.Argument(help="on the hub: you/name", metavar="NAME")],
    form: Annotated[str, typer.Option(help="which of the run's exports: adapter, merged, gguf, ...")] = "adapter",
    public: Annotated[bool, typer.Option("--public", help="for everybody to see; default: private")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only list files and sizes")] = False,
    as_json: Json = False,
) -> None:
    """An export to the model hub, with its card. The token is that of HF_TOKEN or of `hf auth login`."""
    from burnish.stages.export import push_export

    sent = push_export(_told_aside(as_json), run, name, form, public, dry_run)
    if as_json:
        tell_json(sent)


def _told_aside(as_json: bool) -> Console:
    """Where standard output is for a program, people are told on standard error, unless they want quiet."""
    return Console(stderr=True, emoji=False, quiet=console.quiet) if as_json else console
