"""Commands that tell what can be set, which models are taken, and what this machine is."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from rich.padding import Padding

from burnish.cli.app import TAKES_OVERRIDES, AsJson, Overrides, app, console, safe, tell_json

PANEL = "Know"


@app.command(rich_help_panel=PANEL)
def config(
    key: Annotated[str | None, typer.Argument(help="a key, or a part of its name; without it, all")] = None,
    recipe: Annotated[str | None, typer.Option(help="what `recipe: NAME` sets, as lines for a config")] = None,
    as_json: AsJson = False,
) -> None:
    """Every key of a config file: its default, meaning, usual range and effect."""
    from burnish.config.documentation import field_lines, recipe_lines
    from burnish.errors import InputError, nearest

    if recipe is not None:
        console.print(safe(recipe_lines(recipe)), highlight=False, soft_wrap=True)
        if as_json:
            from burnish.config.recipes import RECIPES

            tell_json({"recipe": recipe, "meaning": RECIPES[recipe].meaning, "keys": RECIPES[recipe].keys})
        return
    sections = field_lines()
    known = [name for lines in sections.values() for name, _, _ in lines]
    wanted = [name for name in known if key in (None, name)] or [name for name in known if str(key).lower() in name]
    if not wanted:
        raise InputError(f"there is no key {key!r}{nearest(str(key), known)}; `burnish config` lists all")
    if as_json:
        keys = ("key", "default", "meaning")
        tell_json(
            [
                {"section": title.replace("`", "")} | dict(zip(keys, line, strict=True))
                for title, lines in sections.items()
                for line in lines
                if line[0] in wanted
            ]
        )
        return
    for title, lines in sections.items():
        lines = [line for line in lines if line[0] in wanted]
        if lines and len(wanted) > 1:
            console.print(f"\n[dim]{escape(title.replace('`', ''))}[/dim]", highlight=False)
        for name, default, meaning in lines:
            console.print(f"[bold]{name}[/bold]  [dim]{escape(default)}[/dim]", highlight=False)
            console.print(Padding(escape(meaning), (0, 0, 0, 4)), highlight=False)


@app.command(rich_help_panel=PANEL)
def models(
    model: Annotated[str, typer.Argument(help="a hub id or a folder", metavar="MODEL")], as_json: AsJson = False
) -> None:
    """What a model is and what burnish would do with it, before its weights are loaded."""
    from burnish.show.terminal import starting

    with starting(console):
        from burnish.stages.models import describe

    facts = describe(console, model)
    if as_json:
        tell_json(facts)


@app.command(context_settings=TAKES_OVERRIDES, rich_help_panel=PANEL)
def benchmark(
    overrides: Overrides = None,
    model: Annotated[str | None, typer.Option(help="a hub id or a folder; default: the embedded model")] = None,
    output: Annotated[
        str | None, typer.Option(help="file for the numbers; default: benchmark-TIME.json in this folder")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """How fast PPO is on this machine, what memory it takes and how it rounds: a table, and a file to send."""
    from burnish.stages.benchmark import benchmark_config, report_file, run_benchmark

    report = run_benchmark(console, benchmark_config(model, overrides or []), report_file(output))
    if as_json:
        tell_json(report)


@app.command(rich_help_panel=PANEL)
def env(as_json: AsJson = False) -> None:
    """Versions and machine, for bug reports."""
    from burnish.stages.environment import environment

    found = environment()
    for name, value in found.items():
        console.print(safe(f"{name:14}{value}"), highlight=False)
    if as_json:
        tell_json(found)
