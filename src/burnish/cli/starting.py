"""The command that one begins with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from burnish.cli.app import app, console, safe

PANEL = "Train"


def _templates(incomplete: str) -> list[tuple[str, str]]:
    """For the shell's completion."""
    from burnish.stages.starting import TEMPLATES

    return [(name, own.about) for name, own in TEMPLATES.items() if name.startswith(incomplete)]


@app.command(rich_help_panel=PANEL)
def init(
    template: Annotated[
        str | None,
        typer.Argument(
            metavar="[TEMPLATE]",
            help="`tldr`, `sentiment`, `preferences`, `math` or `blank`; without it, they are listed",
            autocompletion=_templates,
        ),
    ] = None,
    folder: Annotated[
        str | None, typer.Argument(metavar="[FOLDER]", help="a new or empty one; default: named like the template")
    ] = None,
) -> None:
    """A folder to start from: a commented config, data to try it on, and a reward function to edit."""
    from burnish.stages.starting import TEMPLATES, write_template

    if template is None:
        for name, own in TEMPLATES.items():
            console.print(f"[bold]{name:12}[/bold] {own.about}", highlight=False)
        console.print(
            "\nburnish init TEMPLATE [FOLDER] writes one of them into a folder.", highlight=False, markup=False
        )
        return
    place = Path(folder or template)
    names, command = write_template(template, place)
    console.print(safe(f"{place} now has {', '.join(names)}."), highlight=False, soft_wrap=True)
    console.print(safe(f"Next: {command}"), highlight=False, soft_wrap=True)
