"""What all commands share: the application, its console, and arguments that come up again and again."""

from __future__ import annotations

import logging
import os
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="PPO fine-tuning for language models on the machine you have.\n\n"
    "Start with `burnish demo` or `burnish init`; then `burnish train CONFIG.yaml` on your own prompts.",
    epilog="Exit codes: 0 done, 1 internal error, 2 config or data, 3 run folder in use, 4 no usable checkpoint, "
    "5 diverged, 6 memory, disk or rollout server, 7 another process of the run ended, 8 an export that is wrong, "
    "130 Ctrl-C, 143 SIGTERM.",
)
console = Console(emoji=False)  # text is shown as it is, `:cat:` too

Config = Annotated[str, typer.Argument(help="YAML file; `burnish config` lists its keys", metavar="CONFIG.yaml")]
Overrides = Annotated[list[str] | None, typer.Argument(help="settings to change", metavar="key=value ...")]
AnyRun = Annotated[str, typer.Argument(help="a run folder", metavar="RUN")]
PPORun = Annotated[str, typer.Argument(help="a PPO run's folder", metavar="RUN")]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="proceed with a run that was made elsewhere, after listing what its config would do"),
]
TAKES_OVERRIDES = {"ignore_unknown_options": True}


class Ended(SystemExit):
    """Other processes have done the work, and have said how it went."""


def _print_version(wanted: bool) -> None:
    if wanted:
        from burnish.stages.environment import installed

        console.print(f"burnish {installed('burnish')}", highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print nothing but warnings and errors; a run's log.txt has the rest.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Let other libraries speak too, and show where an error arose.")
    ] = False,
) -> None:
    console.quiet = quiet
    if verbose:
        speak_up()


# --------------------------------------------------------------------------------------------------------- verbose


def speak_up() -> None:
    """What was kept quiet says what it has to say."""
    os.environ["BURNISH_VERBOSE"] = "1"  # several processes of a command speak alike
    os.environ["TRANSFORMERS_VERBOSITY"] = "info"
    for name in ("HF_HUB_DISABLE_PROGRESS_BARS", "TQDM_DISABLE"):
        os.environ.pop(name, None)
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    logging.getLogger("huggingface_hub").setLevel(logging.INFO)


def is_verbose() -> bool:
    return os.environ.get("BURNISH_VERBOSE") == "1"


# ------------------------------------------------------------------------------------------------------------ JSON


def _nothing_else(wanted: bool) -> bool:
    console.quiet = console.quiet or wanted
    return wanted


AsJson = Annotated[
    bool,
    typer.Option("--json", callback=_nothing_else, help="one JSON document on stdout, and nothing else (docs/cli.md)"),
]


def tell_json(document: Any) -> None:
    """The same texts as for people: without secrets. A number that JSON does not have is null."""
    from burnish.text import as_json, without_secrets

    sys.stdout.write(as_json(without_secrets(document)) + "\n")


def safe(text: str) -> str:
    """An error may quote what a model, a file or somebody's function said."""
    from burnish.text import visible, without_secrets

    return escape(visible(without_secrets(text)))
