"""`burnish chat` in a terminal (a pty) and in a pipe."""

import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time

import pytest
from rich.console import Console

from burnish.errors import InputError
from burnish.serving import chat as chat_module
from burnish.serving import engine as engine_module
from burnish.serving.chat import Chat
from burnish.serving.engine import Engine, Limits
from burnish.serving.shown import InTurn
from burnish.text import visible
from talkers import GREEDY, served_run, tiny_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("runs")
    tiny_run(made, name="plain")
    tiny_run(made, chat=True, name="chats", temperature=0.8, top_k=50)
    return made


@pytest.fixture(scope="module")
def chatty(folder):
    return served_run(folder / "chats")


@pytest.fixture
def talk(chatty, tmp_path):
    """In a pipe: `talk.out()` is what has been printed."""
    engine = Engine(chatty.speakers.setup.base, Limits())
    with open(tmp_path / "out", "w") as file:
        made = Chat(Console(file=file, width=100), chatty, engine)
        made.out = lambda: (tmp_path / "out").read_text()
        yield made
    engine.close()
    engine.join(10)


def test_both_answer_in_turn_as_burnish_generate_does(chatty, talk):
    talk.take("/set temperature 0")
    talk.take("hello")
    base, tuned = (chatty.speakers.answers(name, ["hello"], GREEDY, 0)[0] for name in ("base", "tuned"))
    (turn,) = talk.talk.turns
    assert turn.answers == {"base": base, "tuned": tuned}
    assert talk.out().startswith("base:\n")
    assert "\ntuned:\n" in talk.out()
    assert "\x1b" not in talk.out()


def test_each_model_remembers_its_own_answers_until_reset(chatty, talk):
    talk.take("/only tuned")
    talk.take("one")
    talk.take("/only both")
    talk.take("two")
    first = talk.talk.turns[0].answers["tuned"]
    assert set(talk.talk.turns[0].answers) == {"tuned"}
    heard = {name: talk.talk.question(name, "three").prompt for name in ("base", "tuned")}
    decoded = {name: chatty.speakers.setup.base.tokenizer.decode(ids) for name, ids in heard.items()}
    assert decoded["base"].count("[user]") == 2
    assert decoded["tuned"].startswith(f"[user]one<eos>[assistant]{first}<eos>[user]two<eos>")
    talk.take("/reset")
    assert len(talk.talk.question("tuned", "x").prompt) == len("[user]x+[assistant]")


def test_what_was_said_is_saved_once_and_nothing_is_written_over(talk, tmp_path):
    talk.take("hello")
    talk.take(f"/save {tmp_path / 'said.json'}")
    talk.take("//with a slash")
    talk.take(f"/save {tmp_path / 'said.json'}")
    said = json.loads((tmp_path / "said.json").read_text())
    assert [turn["prompt"] for turn in said["turns"]] == ["hello", "/with a slash"]
    assert said["turns"][0]["drawn_with"]["temperature"] == 0.8
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(InputError, match="is there already"):
        talk.take(f"/save {tmp_path / 'mine'}")
    with pytest.raises(InputError, match="there is no folder"):
        talk.take(f"/save {tmp_path / 'none' / 'x'}")
    for name in ("~nobody-of-this-name/x", str(tmp_path / ("x" * 300)), str(tmp_path / "x\0y")):
        with pytest.raises(InputError, match="cannot be written"):
            talk.take(f"/save {name}")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("/rest", "there is no command /rest; did you mean 'reset'?"),
        ("/only them", "/only is followed by tuned, start or both"),
        ("/set temprature 1", "there is no setting 'temprature'; did you mean 'temperature'?"),
        ("/set top_p 2", "top_p is '2'; it must be a number from 0.001 to 1"),
        ("/set top_k 1.5", "it must be a whole number"),
        ("/set temperature nan", "temperature is 'nan'"),
        ("/save", "/save is followed by a file's name"),
        ("/", "there is no command /"),
        ("x" * 400, "the model's context is 256 tokens"),
    ],
)
def test_what_cannot_be_done_is_told(talk, command, message):
    with pytest.raises(InputError) as told:
        talk.take(command)
    assert message in str(told.value)
    assert talk.talk.turns == []


def test_a_prompt_without_a_template_is_continued(folder, chatty, tmp_path):
    served = served_run(folder / "plain")
    engine = Engine(served.speakers.setup.base, Limits())
    with open(tmp_path / "out", "w") as out:
        talk = Chat(Console(file=out), served, engine)
        talk.take("/set temperature 0")
        talk.take("go:")
        talk.take("go:")
        with pytest.raises(InputError, match="the prompt must end in ':', as in training"):
            talk.take("go")
    assert talk.talk.turns[0].answers == talk.talk.turns[1].answers
    assert talk.talk.turns[0].answers["tuned"] == served.speakers.answers("tuned", ["go:"], GREEDY, 0)[0]
    engine.close()


def test_who_speaks_out_of_turn_is_kept_until_his_turn(tmp_path):
    with open(tmp_path / "out", "w") as out, InTurn(Console(file=out), ["a", "b"]) as shown:
        for speaker, piece in (("b", "2"), ("a", "1\x1b[31m"), ("b", "2"), ("a", "1")):
            shown.hear(speaker, piece)
        shown.end("b", "...")
        shown.end("a")
    assert (tmp_path / "out").read_text() == "a:\n1[31m1\nb:\n22 ...\n"


# ---------------------------------------------------------------------------------------------- a terminal, a pipe


class Terminal:
    """A child of this process whose terminal is ours: what it prints, and what it is typed."""

    def __init__(self, talk, columns):
        self.text = ""
        self.pid, self.end = pty.fork()
        if self.pid == 0:
            code = 1
            try:
                sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")  # not pytest's
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
                talk()
                code = 0
            finally:
                os._exit(code)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        while True:
            try:
                self.text += os.read(self.end, 4096).decode(errors="replace")
            except OSError:
                return

    def wait_for(self, pattern, after=0, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = re.search(pattern, self.text[after:])
            if found:
                return after + found.end()
            time.sleep(0.01)
        raise AssertionError(f"no {pattern!r} in {self.text[after:]!r}")

    def type(self, text):
        os.write(self.end, text.encode())

    def close(self):
        """Its exit code."""
        for _ in range(3000):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = None
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        raise AssertionError(f"it did not end: {self.text[-500:]!r}")

    def kill(self):
        """Where a test has failed it is still there."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.end)


@pytest.fixture
def terminal(monkeypatch, folder, chatty):
    """`burnish chat` in a fork: the models are loaded already."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(chat_module, "speakers_of", lambda *_, **__: chatty.speakers)

    begun = []

    def begin(columns=100):
        begun.append(Terminal(lambda: chat_module.chat(Console(emoji=False), str(folder / "chats"), 0, False), columns))
        return begun[-1]

    yield begin
    for own in begun:
        own.kill()


def test_two_columns_where_there_is_room(terminal):
    seen = terminal(100)
    seen.wait_for("> ")
    seen.type("/set temperature 0\n")
    at = seen.wait_for("temperature 0, ")
    seen.type("hello\n")
    at = seen.wait_for(r"base.*tuned", at)
    at = seen.wait_for("> ", at)
    seen.type("/help\n")
    seen.wait_for("Ctrl-C ends an answer", at)
    seen.type("\x04")
    assert seen.close() == 0


def test_one_below_the_other_where_there_is_none_and_no_colours_if_unwanted(terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    seen = terminal(60)
    at = seen.wait_for("> ")
    seen.type("hello\n")
    at = seen.wait_for("base:", at)
    at = seen.wait_for("tuned:", at)
    at = seen.wait_for("> ", at)
    assert not re.search(r"\x1b\[3\d", seen.text)
    seen.type("/quit\n")
    assert seen.close() == 0


@pytest.mark.parametrize("paste", ["first line\nsecond line\n", "\x1b[200~first line\nsecond line\x1b[201~\n"])
def test_pasted_lines_are_one_text(terminal, tmp_path, paste):
    seen = terminal()
    at = seen.wait_for("> ")
    seen.type(paste)
    at = seen.wait_for(r"base.*tuned", at)
    at = seen.wait_for("> ", at)
    seen.type(f"/save {tmp_path / 'said'}\n")
    seen.wait_for("saved to", at)
    seen.type("\x04")
    assert seen.close() == 0
    (turn,) = json.loads((tmp_path / "said").read_text())["turns"]
    assert turn["prompt"] == "first line\nsecond line"


def test_ctrl_c_ends_an_answer_and_not_the_chat(terminal, tmp_path, monkeypatch):
    before = engine_module.Batch.step
    monkeypatch.setattr(engine_module.Batch, "step", lambda batch: (time.sleep(0.3), before(batch))[1])
    seen = terminal(60)
    seen.wait_for("> ")
    seen.type("\x03")
    at = seen.wait_for("Ctrl-D ends the chat")
    at = seen.wait_for("> ", at)
    seen.type("hello\n")
    at = seen.wait_for(r"base:\S*\s+\S", at)
    seen.type("\x03")
    at = seen.wait_for(r"\(stopped\)", at)
    at = seen.wait_for("> ", at)
    seen.type(f"/save {tmp_path / 'said'}\n")
    seen.wait_for("saved to", at)
    seen.type("\x04")
    assert seen.close() == 0
    (turn,) = json.loads((tmp_path / "said").read_text())["turns"]
    assert set(turn["answers"]) == {"base", "tuned"}


def test_a_pipe_that_quits_tells_what_could_not_be_answered_before(chatty, folder, monkeypatch, capsys):
    monkeypatch.setattr(chat_module, "speakers_of", lambda *_, **__: chatty.speakers)

    def sent(lines):
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        chat_module.chat(Console(), str(folder / "chats"), 0, False)

    sent("/quit\n/nonsense\n")
    assert capsys.readouterr() == ("", "")
    with pytest.raises(InputError, match="1 line could not be answered"):
        sent("/nonsense\n/quit\n/nonsense\n")
    assert capsys.readouterr().err.startswith("error: there is no command /nonsense")


def test_a_pipe_gets_answers_and_nothing_else(chatty, folder):
    """Through the command line: lines in, answers out; what cannot be answered is told, and counted in the end."""
    lines = "/only tuned\n/set temperature 0\nhello\n\n/nonsense\n"
    command = [sys.executable, "-m", "burnish", "chat", str(folder / "chats")]
    ended = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=300)
    expected = chatty.speakers.answers("tuned", ["hello"], GREEDY, 0)[0]
    assert ended.stdout == f"{visible(expected)}\n"
    assert "error: there is no command /nonsense" in ended.stderr
    assert "error: 1 line could not be answered" in ended.stderr
    assert ended.returncode == 2
