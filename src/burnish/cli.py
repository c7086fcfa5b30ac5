"""The command line. errors.py has the exit codes."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, TypeVar

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
    epilog="Exit codes: 0 done, 1 internal error, 2 config or data, 3 run folder in use, 4 no usable checkpoint, "
    "5 diverged, 6 memory or disk, 7 another process of the run ended, 130 Ctrl-C, 143 SIGTERM.",
)
T = TypeVar("T")
console = Console(emoji=False)  # text is shown as it is, `:cat:` too


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
) -> None: ...


Config = Annotated[str, typer.Argument(help="YAML file; `burnish config` lists its keys", metavar="CONFIG.yaml")]
Overrides = Annotated[list[str] | None, typer.Argument(help="settings to change", metavar="key=value ...")]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="proceed with a run that was made elsewhere, after listing what its config would do"),
]
Processes = Annotated[
    int | None,
    typer.Option(min=1, help="processes on this machine that make the run together; `torchrun -m burnish` for several"),
]
TAKES_OVERRIDES = {"ignore_unknown_options": True}
UNUSABLE_PATH = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EACCES, errno.EPERM, errno.EROFS)


@app.command()
def demo(
    task: Annotated[
        str, typer.Option(help="`tldr` (SFT, reward model, PPO: summarize posts) or `sentiment` (PPO alone)")
    ] = "tldr",
    steps: Annotated[
        int | None, typer.Option(min=1, help="PPO steps; the default takes a few minutes on two cores")
    ] = None,
    seed: Annotated[int, typer.Option(help="everything random follows from it")] = 0,
    run_dir: Annotated[str, typer.Option(help="folder for the run's folder")] = "runs",
    recipe: Annotated[
        str | None, typer.Option(help="how to learn: `ppo` (with a value model), `rloo`, ... (docs/recipes.md)")
    ] = None,
) -> None:
    """From human feedback to a better model, on a real 135M model and bundled texts: verdict and report in minutes."""
    from burnish.stages.demo import run_demo

    run_demo(console, task, steps, seed, run_dir, recipe)


@app.command(context_settings=TAKES_OVERRIDES)
def sft(config: Config, overrides: Overrides = None, processes: Processes = None) -> None:
    """Supervised fine-tuning on demonstrations. Its adapter is where PPO starts, and what KL is measured from."""
    _run_stage("sft", config, overrides, processes)


@app.command(context_settings=TAKES_OVERRIDES)
def reward(config: Config, overrides: Overrides = None, processes: Processes = None) -> None:
    """A reward model from preferences or human scores, with a report on whether it is any good."""
    _run_stage("reward", config, overrides, processes)


@app.command(context_settings=TAKES_OVERRIDES)
def train(config: Config, overrides: Overrides = None, processes: Processes = None) -> None:
    """PPO on your prompts with your reward. Example: `burnish train configs/tldr.yaml steps=20 kl_coef=0.05`"""
    _run_stage("ppo", config, overrides, processes)


def _run_stage(name: str, file: str, overrides: list[str] | None, processes: int | None) -> None:
    from burnish.config import load_config
    from burnish.stages.stage import STAGES

    stage = STAGES[name]
    with _processes(processes):
        stage.run(_read(lambda: load_config(stage.config, file, overrides)), console)


@contextmanager
def _processes(count: int | None) -> Iterator[None]:
    """What follows is done by this process, or by several: those that torchrun started, or `count` started now."""
    from burnish.processes import launch, world

    if count is not None and count > 1:
        launch.refuse_twice()
        raise _Ended(launch.launch(count, launch.without_option(sys.argv[1:])))
    with world.joined():
        console.quiet |= not world.is_first()
        yield


class _Ended(SystemExit):
    """Other processes have done the work, and have said how it went."""


def _read(load: Callable[[], T]) -> T:
    """A config that every process can read."""
    from burnish.processes import world

    with world.together():
        return load()


@app.command(context_settings=TAKES_OVERRIDES)
def resume(
    run: Annotated[str, typer.Argument(help="a run folder", metavar="RUN")],
    overrides: Overrides = None,
    from_step: Annotated[
        int | None, typer.Option("--from", min=0, help="a checkpoint's step; default: the last")
    ] = None,
    trust: Trust = False,
    processes: Processes = None,
) -> None:
    """Resumes a stopped or killed run, as if nothing had happened."""
    from burnish.stages.resume import resume_run

    with _processes(processes):
        resume_run(console, run, from_step, overrides or [], trust)


@app.command()
def checkpoints(run: Annotated[str, typer.Argument(help="a run folder", metavar="RUN")]) -> None:
    """A run's checkpoints: step, size, and whether each verifies."""
    from burnish.stages.verify import show_checkpoints

    show_checkpoints(console, run)


@app.command()
def verify(run: Annotated[str, typer.Argument(help="a run folder", metavar="RUN")]) -> None:
    """Reads every byte of a run's checkpoints and logs; exit code 4 if something is damaged."""
    from burnish.stages.verify import verify_run

    verify_run(console, run)


@app.command(context_settings=TAKES_OVERRIDES)
def pipeline(config: Config, overrides: Overrides = None, processes: Processes = None) -> None:
    """SFT, reward model, PPO, verdict and report in one go; stages that are done already are skipped."""
    from burnish.config.pipeline_config import load_pipeline_config
    from burnish.stages.pipeline import run_pipeline

    with _processes(processes):
        run_pipeline(_read(lambda: load_pipeline_config(config, overrides)), console)


@app.command("eval")
def evaluate(
    run: Annotated[str, typer.Argument(help="a PPO run's folder", metavar="RUN")],
    best_of: Annotated[
        int | None,
        typer.Option(
            min=1, max=10_000, help="answers of the start model to choose the best from; default: as in the config"
        ),
    ] = None,
    ask: Annotated[int, typer.Option(min=0, help="blind comparisons for you to make; kept as preferences")] = 0,
    trust: Trust = False,
) -> None:
    """The tuned model against its start on held-out prompts: was it worth it?"""
    from burnish.stages.evaluate import evaluate_run

    evaluate_run(console, run, best_of, ask, trust=trust)


@app.command()
def credit(
    run: Annotated[str, typer.Argument(help="a PPO run's folder", metavar="RUN")],
    prompts: Annotated[int, typer.Option(min=2, help="held-out prompts, one response each")] = 16,
    positions: Annotated[int, typer.Option(min=1, help="tokens of each response")] = 4,
    continuations: Annotated[int, typer.Option(min=2, help="from the state before and after each of them")] = 16,
    trust: Trust = False,
) -> None:
    """How far the credit of tokens may be trusted: against what continuations from each state really earn."""
    from burnish.show.terminal import starting
    from burnish.stages.evaluate import held_out_of

    held_out = held_out_of(console, run, trust)
    with starting(console):
        from burnish.stages.credit import measure_run

    measure_run(console, held_out, prompts, positions, continuations)


@app.command()
def report(
    run: Annotated[str, typer.Argument(help="a PPO run's folder", metavar="RUN")],
    output: Annotated[str | None, typer.Option(help="file to write; default: report.html in the run folder")] = None,
) -> None:
    """One HTML file: verdict, curves, samples, and every token coloured by its credit."""
    from burnish.runs.run import Run
    from burnish.stages.report import write_report

    page = write_report(Run.open(run), output)
    if page.is_file():  # on a terminal or in a pipe, the page itself says enough
        console.print(_safe(str(page)), highlight=False, soft_wrap=True)


@app.command()
def runs(run_dir: Annotated[str, typer.Argument(help="folder of run folders")] = "runs") -> None:
    """All runs with their outcomes, newest first."""
    from burnish.stages.overview import list_runs

    list_runs(console, run_dir)


@app.command()
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


@app.command()
def diff(
    a: Annotated[str, typer.Argument(help="a run folder", metavar="A")],
    b: Annotated[str, typer.Argument(help="another", metavar="B")],
) -> None:
    """What differs between two runs: settings and results."""
    from burnish.stages.overview import show_difference

    show_difference(console, a, b)


@app.command("reward-test")
def reward_test(
    config: Config,
    prompt: Annotated[str, typer.Argument(help="a prompt")],
    response: Annotated[str, typer.Argument(help="an answer to it")],
    reference: Annotated[
        str | None, typer.Option(help="the right answer, for rules that compare (rouge_l, exact_number)")
    ] = None,
    trust: Trust = False,
) -> None:
    """What each part of a config's reward thinks of one answer."""
    from burnish.config import load_train_config
    from burnish.stages.reward_test import check_trust, show_reward

    settings = load_train_config(config)
    check_trust(console, config, settings, trust)
    show_reward(console, settings, prompt, response, reference)


@app.command()
def generate(
    run: Annotated[str, typer.Argument(help="folder of a PPO or SFT run", metavar="RUN")],
    prompts: Annotated[
        list[str], typer.Argument(help="prompts, as in training (a chat template is added if it was on)")
    ],
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="longest answer; default: as in training")] = None,
    sample: Annotated[bool, typer.Option(help="draw with the run's temperature, top-k and top-p")] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="for --sample")] = 0,
    trust: Trust = False,
) -> None:
    """The start model's answers beside the tuned model's: the most likely ones, or drawn ones with --sample."""
    from burnish.runs.run import Run
    from burnish.show.terminal import starting

    Run.open(run)  # one that does not exist is reported at once
    with starting(console):
        from burnish.stages.generate import generate_beside_start

    generate_beside_start(console, run, prompts, max_new_tokens, sample, seed, trust)


@app.command()
def config(
    key: Annotated[str | None, typer.Argument(help="a key, or a part of its name; without it, all")] = None,
    recipe: Annotated[str | None, typer.Option(help="what `recipe: NAME` sets, as lines for a config")] = None,
) -> None:
    """Every key of a config file: its default, meaning, usual range and effect."""
    from burnish.config.documentation import field_lines, recipe_lines
    from burnish.errors import InputError, nearest

    if recipe is not None:
        console.print(_safe(recipe_lines(recipe)), highlight=False, soft_wrap=True)
        return
    sections = field_lines()
    known = [name for lines in sections.values() for name, _, _ in lines]
    wanted = [name for name in known if key in (None, name)] or [name for name in known if str(key).lower() in name]
    if not wanted:
        raise InputError(f"there is no key {key!r}{nearest(str(key), known)}; `burnish config` lists all")
    for title, lines in sections.items():
        lines = [line for line in lines if line[0] in wanted]
        if lines and len(wanted) > 1:
            console.print(f"\n[dim]{escape(title.replace('`', ''))}[/dim]", highlight=False)
        for name, default, meaning in lines:
            console.print(f"[bold]{name}[/bold]  [dim]{escape(default)}[/dim]", highlight=False)
            console.print(Padding(escape(meaning), (0, 0, 0, 4)), highlight=False)


@app.command()
def models(model: Annotated[str, typer.Argument(help="a hub id or a folder", metavar="MODEL")]) -> None:
    """What a model is and what burnish would do with it, before its weights are loaded."""
    from burnish.show.terminal import starting

    with starting(console):
        from burnish.stages.models import describe

    describe(console, model)


@app.command(context_settings=TAKES_OVERRIDES)
def benchmark(
    overrides: Overrides = None,
    model: Annotated[str | None, typer.Option(help="a hub id or a folder; default: the embedded model")] = None,
    output: Annotated[
        str | None, typer.Option(help="file for the numbers; default: benchmark-TIME.json in this folder")
    ] = None,
) -> None:
    """How fast PPO is on this machine, what memory it takes and how it rounds: a table, and a file to send."""
    from burnish.stages.benchmark import benchmark_config, report_file, run_benchmark

    run_benchmark(console, benchmark_config(model, overrides or []), report_file(output))


@app.command()
def env() -> None:
    """Versions and machine, for bug reports."""
    from burnish.stages.environment import environment

    for name, value in environment().items():
        console.print(_safe(f"{name:14}{value}"), highlight=False)


def main() -> None:
    """Runs a command; a user's mistake ends in one sentence and an exit code, never in a traceback."""
    from burnish.errors import (
        BurnishError,
        InputError,
        LostProcessError,
        ResourceError,
        StoppedError,
        is_disk_full,
        is_out_of_memory,
    )

    _print_whatever_comes()
    _quiet_libraries()
    warnings.showwarning = _show_warning
    warnings.filterwarnings("always", category=UserWarning, module=r"burnish\b")  # each response that is left out
    try:
        app()
    except BurnishError as error:
        mark = "" if isinstance(error, StoppedError) else "error:"
        _tell(str(error), mark, if_in_doubt=isinstance(error, LostProcessError))
        sys.exit(error.exit_code)
    except OSError as error:
        if is_disk_full(error):
            _tell("the disk is full; make room and try again")
            sys.exit(ResourceError.exit_code)
        if error.errno not in UNUSABLE_PATH or not isinstance(error.filename, str | bytes):
            raise
        _tell(f"{os.fsdecode(error.filename)} cannot be used: {error.strerror}")
        sys.exit(InputError.exit_code)
    except UnicodeEncodeError as error:  # a file's name: what is printed is printed whatever comes
        _tell(f"{error.object!r} has letters that are not {error.encoding}; set PYTHONUTF8=1, or choose another name")
        sys.exit(InputError.exit_code)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        _tell("memory ran out; end other programs, or choose a smaller model")
        sys.exit(ResourceError.exit_code)
    except SystemExit as end:
        if end.code == 130 and not isinstance(end, _Ended):
            _tell("interrupted", "")
        raise


def _safe(text: str) -> str:
    """An error may quote what a model, a file or somebody's function said."""
    from burnish.text import visible, without_secrets

    return escape(visible(without_secrets(text)))


def _tell(message: str, mark: str = "error:", if_in_doubt: bool = True) -> None:
    """How it ended: what several processes have to say alike, one of them says."""
    from burnish.processes import world

    if world.is_told_here(message, if_in_doubt):
        _say(message, mark, "red")


def _say(message: str, mark: str, colour: str) -> None:
    mark = f"[{colour}]{mark}[/{colour}] " if mark else ""
    Console(stderr=True, emoji=False).print(f"{mark}{_safe(message)}", highlight=False, soft_wrap=True)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    if not console.quiet:  # what all processes warn of, the first says
        _say(str(message), "warning:", "yellow")


def _print_whatever_comes() -> None:
    """A terminal that lacks a letter shows its number instead; no run ends for want of a letter."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _quiet_libraries() -> None:
    """Our progress line is the only one."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of a process that is gone, burnish itself tells
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)


if __name__ == "__main__":
    main()
