"""`burnish chat`: a person, or a pipe, talks to the start and the tuned model of a run."""

from __future__ import annotations

import io
import queue
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

from rich.console import Console

from burnish.errors import BurnishError, InputError, count, nearest
from burnish.runs.run import Run
from burnish.serving.answer import Piece
from burnish.serving.conversation import Conversation, How, Turn
from burnish.serving.engine import Engine, Limits
from burnish.serving.served import Served
from burnish.serving.shown import Shown, shown_on
from burnish.stages.generate import speakers_of
from burnish.text import plain

PASTED_WITHIN = 0.03  # seconds: lines that come this close to each other were not typed
HELP = """/help                         this list
/only tuned | start | both    who answers
/set NAME VALUE               temperature (0: the most likely words), top_k, top_p, max_tokens or seed; /set shows them
/reset                        the models forget what was said
/save FILE                    everything that was said, as JSON
/quit                         or Ctrl-D
Ctrl-C ends an answer. A text that begins with a slash is sent with two of them."""


class _QuitError(Exception):
    """The person has said so."""


class Chat:
    def __init__(self, console: Console, served: Served, engine: Engine, seed: int = 0) -> None:
        self.console = console
        self.engine = engine
        self.talk = Conversation(served, How(**served.usual, seed=seed))
        self.speaking = self.talk.speakers

    def take(self, text: str) -> None:
        """A command, or something to answer."""
        if text.startswith("/") and not text.startswith("//"):
            self._command(*(text[1:].split(maxsplit=1) or [""]))
        elif text.strip():
            self._answer(text[1:] if text.startswith("//") else text)

    # ------------------------------------------------------------------------------------------------- the answers

    def _answer(self, prompt: str) -> None:
        questions = [self.talk.question(speaker, prompt) for speaker in self.speaking]
        pieces: queue.Queue[tuple[str, Piece]] = queue.Queue()
        turn = Turn(prompt, dict.fromkeys(self.speaking, ""), self.talk.how)

        def listener(speaker: str) -> Callable[[Piece], None]:
            return lambda piece: pieces.put((speaker, piece))

        jobs = [self.engine.ask([q], listener(name)) for q, name in zip(questions, self.speaking, strict=True)]
        try:
            with shown_on(self.console, self.speaking) as shown:
                self._listen(pieces, turn, shown)
        finally:
            for job in jobs:
                job.leave()
        self.talk.turns.append(turn)

    def _listen(self, pieces: queue.Queue[tuple[str, Piece]], turn: Turn, shown: Shown) -> None:
        """Until all have ended, or the person has heard enough."""
        speaking = set(turn.answers)
        try:
            while speaking:
                try:
                    speaker, piece = pieces.get(timeout=0.1)
                except queue.Empty:
                    continue
                turn.answers[speaker] += piece.text
                shown.hear(speaker, piece.text)
                if piece.trouble is not None:
                    raise InputError(piece.trouble.message)
                if piece.finish is not None:
                    speaking.remove(speaker)
                    is_cut = piece.finish == "length" and self.console.is_terminal
                    shown.end(speaker, "..." if is_cut else "")
        except KeyboardInterrupt:
            if not self.console.is_terminal:
                raise
            for speaker in turn.answers:
                if speaker in speaking:
                    shown.end(speaker, "(stopped)")

    # ------------------------------------------------------------------------------------------------ the commands

    def _command(self, name: str, rest: str = "") -> None:
        commands = {
            "help": self._help,
            "only": self._only,
            "set": self._set,
            "reset": self._reset,
            "save": self._save,
            "quit": self._quit,
        }
        if name not in commands:
            raise InputError(f"there is no command /{name:.40}{nearest(name, commands)}; /help lists them")
        commands[name](rest.strip())

    def _help(self, rest: str) -> None:
        self._say(HELP)

    def _only(self, who: str) -> None:
        start, tuned = self.talk.speakers
        known = {"tuned": [tuned], "start": [start], start: [start], "both": [start, tuned]}
        if who not in known:
            raise InputError(f"/only is followed by tuned, start or both, not {who!r:.40}")
        self.speaking = known[who]
        self._say(f"{' and '.join(self.speaking)} answer{'' if len(self.speaking) > 1 else 's'}")

    def _set(self, rest: str) -> None:
        name, _, value = rest.partition(" ")
        if name:
            self.talk.how = self.talk.how.changed(name, value.strip())
        self._say(self.talk.how.known())

    def _reset(self, rest: str) -> None:
        self.talk.reset()
        self._say("forgotten")

    def _save(self, file: str) -> None:
        if not file:
            raise InputError("/save is followed by a file's name")
        self._say(f"saved to {self.talk.save(file)}")

    def _quit(self, rest: str) -> None:
        raise _QuitError

    def _say(self, text: str) -> None:
        """Only to a person: a pipe gets answers and nothing else."""
        if self.console.is_terminal:
            self.console.print(f"[dim]{plain(text)}[/dim]", highlight=False, soft_wrap=True)

    def welcome(self) -> None:
        start, tuned = self.talk.speakers
        self._say(f"{self.talk.served.name}: {start} and {tuned} answer. /help lists commands, Ctrl-D ends.")
        if not self.talk.is_chat:
            self._say("This run has no chat template: each text is continued by itself.")
        ends = self.talk.served.described(self.talk.served.name)["burnish"]["prompts_end_in"]
        if ends and not self.talk.is_chat:
            self._say(f"Prompts must end in {ends!r}, as in training.")


def chat(console: Console, folder: str, seed: int, trust: bool) -> None:
    """With a person until Ctrl-D; with a pipe until it ends."""
    speakers = speakers_of(console if console.is_terminal else Console(stderr=True), folder, trust=trust)
    served = Served(Run.open(folder), speakers)
    engine = Engine(speakers.setup.base, Limits(seconds=24 * 3600.0))
    talk = Chat(console, served, engine, seed)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # bytes that are no text
    try:
        if sys.stdin.isatty():
            with suppress(_QuitError):
                _with_person(talk)
        else:
            _with_pipe(talk)
    finally:
        engine.close()
        engine.join(10)


def _with_person(talk: Chat) -> None:
    talk.welcome()
    for text in _typed(talk.console):
        try:
            talk.take(text)
        except KeyboardInterrupt:  # before the first word
            talk.console.print("\n[dim](stopped)[/dim]", highlight=False)
        except BurnishError as error:
            talk.console.print(f"[red]{plain(str(error))}[/red]", highlight=False, soft_wrap=True)


def _with_pipe(talk: Chat) -> None:
    """A line, an answer. What cannot be answered is told, and the end tells of it too."""
    errors, failed = Console(stderr=True, emoji=False), 0
    with suppress(_QuitError):
        for line in sys.stdin:
            try:
                talk.take(line.rstrip("\r\n"))
            except BurnishError as error:
                failed += 1
                errors.print(f"[red]error:[/red] {plain(str(error))}", highlight=False, soft_wrap=True)
    if failed:
        raise InputError(f"{count(failed, 'line')} could not be answered")


def _typed(console: Console) -> Iterator[str]:
    """What a person types, text by text. Lines that were pasted together are one text."""
    with suppress(ImportError):  # not everywhere; without it a line cannot be edited as comfortably
        import readline

        readline.parse_and_bind("set enable-bracketed-paste on")
    while True:
        try:
            text = input("> ")
            while _more_is_there():
                text += "\n" + input("")
        except KeyboardInterrupt:
            console.print("\n[dim]Ctrl-D ends the chat.[/dim]", highlight=False)
            continue
        except EOFError:
            console.print()
            return
        yield text


def _more_is_there() -> bool:
    """Whether another line has come already."""
    import select

    try:
        return bool(select.select([sys.stdin], [], [], PASTED_WITHIN)[0])
    except (OSError, ValueError):  # Windows asks sockets alone
        return False
