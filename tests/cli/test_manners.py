"""What every command does alike: JSON for programs, silence for scripts, completion for shells, a log for later."""

import io
import json
import os
import pty
import re
import subprocess
import sys
import warnings
from contextlib import suppress
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from burnish.cli.app import app, tell_json
from burnish.config import TrainConfig
from burnish.errors import StoppedError
from burnish.runs import log
from burnish.runs.run import Run
from failures import make_workplace

WITHOUT_JSON = {*"init demo pipeline sft reward train resume page serve chat".split()}
"""Commands that make something or talk, and report in the run folder."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory, fork_server):
    """A folder in which a run has been made."""
    folder = make_workplace(tmp_path_factory.mktemp("work"))
    ended = fork_server.run(folder, "train", "config.yaml", "run_name=one")
    assert ended.code == 0, ended.text
    return folder


def as_json(fork_server, folder, *arguments, code=0):
    ended = fork_server.run(folder, *arguments, "--json")
    assert ended.code == code, ended.text
    return json.loads(ended.out), ended.err


def test_every_command_that_reports_has_json():
    commands = {own.name or own.callback.__name__: own.callback for own in app.registered_commands}
    without = {name for name, callback in commands.items() if "as_json" not in callback.__annotations__}
    assert without <= WITHOUT_JSON


def test_json_is_one_document_and_nothing_else(trained, fork_server):
    said, _ = as_json(fork_server, trained, "runs")
    assert (said["runs"][0]["run"], said["runs"][0]["state"]) == ("one", "finished")
    said, _ = as_json(fork_server, trained, "diff", "runs/one", "runs/one")
    assert said["settings"] == []
    assert len(said["outcomes"]) == 2
    said, _ = as_json(fork_server, trained, "checkpoints", "runs/one")
    assert said["checkpoints"][-1]["problem"] is None
    said, _ = as_json(fork_server, trained, "reward-test", "config.yaml", "a prompt", "an answer")
    assert said["reward"] == pytest.approx(sum(own["score"] * own["weight"] for own in said["parts"]))
    said, _ = as_json(fork_server, trained, "config", "kl_coef")
    assert said[0]["key"] == "kl_coef"
    said, _ = as_json(fork_server, trained, "env")
    assert {"burnish", "torch", "python"} <= said.keys()
    said, _ = as_json(fork_server, trained, "report", "runs/one")
    assert Path(trained, said["report"]).is_file()
    said, _ = as_json(fork_server, trained, "models", "model")
    assert said["layers"] == 2
    said, _ = as_json(fork_server, trained, "generate", "runs/one", "number 1:", "number 2:")
    assert [own["prompt"] for own in said["answers"]] == ["number 1:", "number 2:"]
    assert {"base", "tuned"} <= said["answers"][0].keys()


def test_the_list_of_runs_is_that_of_the_page(trained):
    """One content, two ways to it."""
    pytest.importorskip("starlette")
    from burnish.page.library import Library
    from burnish.page.overview import all_runs, data
    from burnish.page.view import Asked

    assert all_runs(str(trained / "runs")) == data(Asked(Library(trained / "runs"), {}, {}))


def test_damage_is_in_the_document_and_in_the_exit_code(trained, fork_server, tmp_path):
    said, _ = as_json(fork_server, trained, "verify", "runs/one")
    assert said["is_whole"]
    run = Run.new(tmp_path, "torn").begin(TrainConfig(prompts="prompts.txt"))
    (run.folder / "metrics.jsonl").write_text('{"step": 1}\n{"step": 3}\n')
    said, err = as_json(fork_server, tmp_path, "verify", "torn", code=4)
    assert not said["is_whole"]
    assert said["problem"] in " ".join(err.split())


def test_an_error_leaves_stdout_empty(trained, fork_server):
    ended = fork_server.run(trained, "diff", "runs/one", "runs/none", "--json")
    assert (ended.code, ended.out) == (2, "")
    assert "there is no folder runs/none" in ended.err


def test_what_json_cannot_hold_is_null(capsys):
    tell_json({"nan": float("nan"), "all": [1.5, float("inf")]})
    assert json.loads(capsys.readouterr().out) == {"nan": None, "all": [1.5, None]}


def test_quiet_prints_nothing_but_the_log_has_it(trained, fork_server):
    ended = fork_server.run(trained, "--quiet", "train", "config.yaml", "run_name=silent")
    assert (ended.code, ended.out) == (0, "")
    assert "step 1/" in (trained / "runs/silent/log.txt").read_text()
    ended = fork_server.run(trained, "--quiet", "diff", "runs/one", "runs/none")
    assert "there is no folder" in ended.err  # errors are said


def test_verbose_shows_where_an_error_arose(trained, fork_server):
    ended = fork_server.run(trained, "--verbose", "diff", "runs/one", "runs/none")
    assert ended.code == 2
    assert "Traceback" in ended.err
    assert "there is no folder runs/none" in ended.err


def test_completion_is_offered_and_help_stays_tidy():
    said = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80", "TERM": "dumb"}).stdout
    assert "--install-completion" in said
    assert max(map(len, said.splitlines())) <= 80
    environment = os.environ | {"_BURNISH_COMPLETE": "complete_bash", "COMP_WORDS": "burnish ini", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv = ['burnish']; from burnish.cli import main; main()"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert "init" in done.stdout.split()


def on_a_terminal(*arguments, **environment):
    """What a command says there."""
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    ours, its = pty.openpty()
    command = [sys.executable, "-m", "burnish", *arguments]
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), its)
    subprocess.run(command, **streams, env=kept | {"TERM": "xterm"} | environment, timeout=120)
    os.close(its)
    said = b""
    with suppress(OSError):  # which is how a terminal that nobody has any more ends
        while more := os.read(ours, 4096):
            said += more
    os.close(ours)
    return said.decode()


def test_no_colour_where_none_is_wanted():
    red = "\x1b[31merror:"
    assert red in on_a_terminal("diff", "none", "none")
    said = on_a_terminal("diff", "none", "none", NO_COLOR="1")
    assert "error:" in said
    assert not re.search(r"\x1b\[[\d;]*3\d", said)


# ------------------------------------------------------------------------------------------------------------ log.txt


def test_the_log_has_what_was_said_with_times(trained):
    lines = (trained / "runs/one/log.txt").read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  \S?", line) for line in lines)
    text = "\n".join(lines)
    assert re.findall(r"  step (\d+)/", text) == sorted(set(re.findall(r"  step (\d+)/", text)))
    for words in ("held out", "Run folder: runs/one", "burnish report runs/one"):  # from first to last
        assert words in text
    assert "\x1b" not in text


def test_a_resumed_run_goes_on_in_its_log_after_a_torn_line(trained, fork_server):
    file = trained / "runs/one/log.txt"
    before = file.read_text()
    file.write_text(before + "2026-01-01 00:00:00  torn")
    ended = fork_server.run(trained, "resume", "runs/one", "--from", "4")
    assert ended.code == 0, ended.text
    after = file.read_text()
    assert after.startswith(before)
    assert re.search(r"  torn\n\d{4}-.*\n(.*\n)*.*Resuming after step 4", after)


@pytest.fixture
def run(tmp_path):
    return Run.new(tmp_path, "run").begin(TrainConfig(prompts="prompts.txt"))


def test_the_log_is_bounded(run, monkeypatch):
    monkeypatch.setattr(log, "MOST_BYTES", 2000)
    monkeypatch.setattr(log, "KEPT_BYTES", 500)
    own = log.RunLog()
    own.keep_in(run)
    for number in range(100):
        own.write(f"line {number}")
    lines = (run.folder / "log.txt").read_text().splitlines()
    assert sum(map(len, lines)) < 2500
    assert lines[0] == log.DROPPED.strip()
    assert lines[-1].endswith("line 99")


def test_warnings_and_the_end_are_in_the_log_and_moving_lines_are_not(run, monkeypatch):
    shown = Console(file=io.StringIO(), force_terminal=True)

    def work():
        shown.print("before there is a folder")
        with shown.status("spinning"):
            shown.print(log.FileLine("step 1/2"))
        log.keep_log(run)
        warnings.warn("mind this", stacklevel=1)
        raise StoppedError("stopped after step 1", 130)

    monkeypatch.setattr(warnings, "showwarning", lambda *_, **__: None)
    with pytest.raises(StoppedError), log.logged(shown):
        work()
    text = (run.folder / "log.txt").read_text()
    said = [line[21:] for line in text.splitlines()]
    assert said == ["before there is a folder", "step 1/2", "warning: mind this", "stopped after step 1"]


def test_a_log_that_cannot_be_written_ends_no_run(run):
    (run.folder / "log.txt").mkdir()
    own = log.RunLog()
    own.keep_in(run)
    own.write("said")
    assert (run.folder / "log.txt").is_dir()
