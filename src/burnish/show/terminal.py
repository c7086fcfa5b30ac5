"""What a person sees in the terminal: progress while it runs, tables when it is done.

Model and prompt text is data: control characters are stripped and markup is escaped before it is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from burnish.base_setup.embedded import EMBEDDED_NAME, converted_folder
from burnish.base_setup.gguf import is_gguf
from burnish.config import ModelConfig
from burnish.drawing.comparison import comparison, speakers_of
from burnish.evaluation.evaluation import Evaluation
from burnish.evaluation.people import Choose, Question
from burnish.rewards.human import moving
from burnish.runs.log import FileLine
from burnish.text import headline, minutes, plain

if TYPE_CHECKING:
    from burnish.decoder.base_identity import MergedLora

PHASES = {
    "generate_sequences": "generating",
    "compute_rewards": "scoring",
    "add_values_to_sa_pairs": "predicting values",
    "train_value_model": "training value",
    "train_policy_model": "training policy",
}
CHOICES = ("1", "2", "t", "tie", "u", "undo", "q", "quit")
PROMPT_SHOWN = 400  # letters of a prompt that a person judges answers to
LINE_EVERY = 10  # updates of supervised training, in a log file


def spinner_for(console: Console) -> str:
    """One whose signs the terminal has."""
    return "line" if console.options.ascii_only else "dots"


@contextmanager
def _shown(progress: Progress) -> Iterator[Progress]:
    with progress:
        moving.append(progress)
        try:
            yield progress
        finally:
            moving.remove(progress)


@contextmanager
def busy(console: Console, what: str) -> Iterator[None]:
    """A spinner with the seconds, for work of unknown length; nothing if nobody looks at a terminal."""
    columns = (SpinnerColumn(spinner_for(console)), TextColumn("{task.description}"), TimeElapsedColumn())
    with _shown(Progress(*columns, console=console, transient=True, disable=not console.is_terminal)) as progress:
        progress.add_task(plain(what), total=None)
        yield


def starting(console: Console) -> AbstractContextManager[object]:
    """A spinner while torch is imported, which takes seconds."""
    return console.status("starting", spinner=spinner_for(console)) if console.is_terminal else nullcontext()


def loading(config: ModelConfig) -> str:
    """What a person waits for while a model is loaded."""
    if config.model_name == EMBEDDED_NAME and not converted_folder().is_dir():
        return "unpacking the embedded model (the first time only, about 30 s)"
    first = " (a GGUF file is converted the first time)" if is_gguf(config.model_name) else ""
    return f"loading {config.model_name}{first}"


def print_start(console: Console, merged: MergedLora | None) -> None:
    """Which LoRA the base was given before anything was trained, if any."""
    if merged is not None:
        told = f"The LoRA of {merged.folder} is merged into the base: the two together are where training starts."
        console.print(plain(told), highlight=False, soft_wrap=True)


@contextmanager
def updates(console: Console, what: str, total: int, done: int = 0) -> Iterator[Callable[[dict[str, float]], None]]:
    """A progress bar for supervised training (in a file, a line now and then); gives the function that is told of every
    update."""
    columns = (TextColumn("{task.description} {task.completed}/{task.total}"), BarColumn(bar_width=16))
    columns += (TextColumn("{task.fields[numbers]}"), TimeElapsedColumn())  # type: ignore[assignment]
    with _shown(Progress(*columns, console=console, transient=True, disable=not console.is_terminal)) as progress:
        task = progress.add_task(what, total=total, completed=done, numbers="")

        def on_update(statistics: dict[str, float]) -> None:
            shown = {n: statistics[n] for n in ("loss", "accuracy") if n in statistics}
            numbers = "  ".join(f"{n} {value:.3f}" for n, value in shown.items())
            progress.update(task, advance=1, numbers=numbers)
            update = int(statistics["update"])
            if update % LINE_EVERY == 0 or update == total:
                console.print(FileLine(f"{what} {update}/{total}  {numbers}"))

        yield on_update


def data_table(rows: list[tuple[str, str, str]]) -> Table:
    table = Table("data", "train", "held out", box=None, header_style="dim", padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*row)
    return table


class StepProgress:
    """One line for the whole training: step, phase, reward, KL, entropy, time left. Where nobody looks at a terminal, a
    line per step."""

    def __init__(self, console: Console, num_steps: int, done: int = 0) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("step {task.completed}/{task.total}"),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[numbers]}"),
            TextColumn("[dim]{task.description}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=num_steps, completed=done, numbers="first rollout")
        self._steps_left = num_steps - done
        self._seconds: list[float] = []

        self._shown = ExitStack()

    def __enter__(self) -> StepProgress:
        self._shown.enter_context(_shown(self._progress))
        return self

    def __exit__(self, *_: Any) -> None:
        self._shown.close()

    def on_phase(self, phase: str) -> None:
        self._progress.update(self._task, description=PHASES.get(phase, phase))

    def on_step(self, results: dict[str, Any]) -> None:
        self._steps_left -= 1
        self._seconds.append(results["seconds"])
        recent = self._seconds[-4:]
        left = round(self._steps_left * sum(recent) / len(recent))
        entropy = f"  entropy {results['entropy']:.2f}" if "entropy" in results else ""  # an engine may not know it
        numbers = f"reward {results['reward']:.3f}  KL {results['kl']:z.2f}{entropy}  {minutes(left)} left"
        self._progress.update(self._task, advance=1, numbers=numbers)
        task = self._progress.tasks[self._task]
        self._console.print(FileLine(f"step {task.completed:.0f}/{task.total:.0f}  {numbers}"))


def memory_table(rows: list[tuple[str, float, str]]) -> Table:
    table = Table("role", "MB", "what", box=None, header_style="dim", padding=(0, 2, 0, 0))
    for role, megabytes, what in rows:
        table.add_row(plain(role), f"{megabytes:.0f}", plain(what))
    return table


def before_after_table(before: Evaluation, after: Evaluation, names: tuple[str, str] = ("before", "after")) -> Table:
    """Means with their 95 % intervals, on held-out prompts."""
    table = Table("held-out", *names, title=f"{before.num_prompts} held-out prompts, mean and 95 % interval")
    for row in comparison(before.as_dict(), after.as_dict()):
        table.add_row(*row)
    return table


def answers_table(answers: list[dict[str, str]]) -> Group:
    """What the models say to the same prompts, side by side; the prompt above, so that 80 columns have room."""
    tables = []
    for answer in answers:
        speakers = speakers_of(answer)
        title = plain(headline(answer["prompt"], longest=120))
        table = Table(*speakers.values(), title=title, title_justify="left", expand=True)
        for column in table.columns:
            column.ratio = 1
        table.add_row(*(plain(answer[name].strip()) for name in speakers))
        tables.append(table)
    return Group("The most likely answers to held-out prompts:", *tables)


def chooser(console: Console) -> Choose:
    """Asks in the terminal which of two answers is better. The question fits a small window: of a long prompt the title
    is shown, and the whole of it on request.
    """

    def choose(question: Question) -> str:
        console.rule(f"{question.number} of {question.how_many}")
        prompt = question.prompt if len(question.prompt) <= PROMPT_SHOWN else headline(question.prompt, PROMPT_SHOWN)
        console.print(f"[dim]{plain(prompt)}[/dim]", highlight=False)
        table = Table("1", "2", show_lines=True)
        for column in table.columns:
            column.ratio = 1
        table.add_row(*(plain(answer.strip()) for answer in question.answers))
        console.print(table)
        while True:
            try:
                key = console.input("better: 1, 2, t (tie), u (undo), p (whole prompt) or q (quit)? ").strip().lower()
            except EOFError:
                console.print()
                return "q"
            if key == "p":
                console.print(f"[dim]{plain(question.prompt)}[/dim]", highlight=False)
            elif key in CHOICES:
                return key[0]
            else:
                console.print("Please type 1, 2, t, u, p or q.", highlight=False)

    return choose
