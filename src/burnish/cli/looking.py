"""Commands that show what runs have left."""

from __future__ import annotations

from typing import Annotated

import typer

from burnish.cli.app import AnyRun, AsJson, PPORun, app, console, safe, tell_json

PANEL = "Look"


@app.command(rich_help_panel=PANEL)
def page(
    folder: Annotated[str, typer.Argument(help="folder of run folders, or one run's")] = "runs",
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="where to listen; default: 8765, or any that is free")
    ] = None,
    host: Annotated[str, typer.Option(help="0.0.0.0 lets other machines in, with the token")] = "127.0.0.1",
    open_browser: Annotated[bool, typer.Option("--open", help="also open it in the browser")] = False,
    judge: Annotated[str | None, typer.Option(metavar="FILE", help="a file of prompts with answers to judge")] = None,
) -> None:
    """A local web page over all runs: live curves, every response, credit per token; judge answers, compare runs."""
    from importlib.util import find_spec

    from burnish.errors import InputError

    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise InputError("the page needs starlette and uvicorn; get them with: pip install 'burnish[page]'")
    from burnish.page.server import serve

    serve(console, folder, host, port, open_browser, judge)


@app.command(rich_help_panel=PANEL)
def runs(
    run_dir: Annotated[str, typer.Argument(help="folder of run folders")] = "runs", as_json: AsJson = False
) -> None:
    """All runs with their outcomes, newest first."""
    if as_json:
        from burnish.page.overview import all_runs

        tell_json(all_runs(run_dir))
        return
    from burnish.stages.overview import list_runs

    list_runs(console, run_dir)


@app.command(rich_help_panel=PANEL)
def report(
    run: PPORun,
    output: Annotated[str | None, typer.Option(help="file to write; default: report.html in the run folder")] = None,
    as_json: AsJson = False,
) -> None:
    """One HTML file: verdict, curves, samples, and every token coloured by its credit."""
    from burnish.runs.run import Run
    from burnish.stages.report import write_report

    page = write_report(Run.open(run), output)
    if page.is_file():  # on a terminal or in a pipe, the page itself says enough
        console.print(safe(str(page)), highlight=False, soft_wrap=True)
    if as_json:
        tell_json({"run": run, "report": str(page)})


@app.command(rich_help_panel=PANEL)
def diff(
    a: Annotated[str, typer.Argument(help="a run folder", metavar="A")],
    b: Annotated[str, typer.Argument(help="another", metavar="B")],
    as_json: AsJson = False,
) -> None:
    """What differs between two runs: settings and results."""
    from burnish.stages.overview import show_difference

    found = show_difference(console, a, b)
    if as_json:
        tell_json(found)


@app.command(rich_help_panel=PANEL)
def checkpoints(run: AnyRun, as_json: AsJson = False) -> None:
    """A run's checkpoints: step, size, and whether each verifies."""
    from burnish.stages.verify import show_checkpoints, told_checkpoints

    found = show_checkpoints(console, run)
    if as_json:
        tell_json({"run": run, "checkpoints": told_checkpoints(found)})


@app.command(rich_help_panel=PANEL)
def verify(run: AnyRun, as_json: AsJson = False) -> None:
    """Reads every byte of a run's checkpoints and logs; exit code 4 if something is damaged."""
    from burnish.stages.verify import examine, told_examined, verify_run

    if as_json:
        examined = examine(console, run)
        tell_json({"run": run} | told_examined(examined))
        examined.refuse_damage()
        return
    verify_run(console, run)
