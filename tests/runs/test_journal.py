"""How it is with a run: whoever looks at its folder sees whether it runs, and how it ended."""

import io
import os
import signal
import subprocess
import sys
import time
import warnings

import pytest
from rich.console import Console

from burnish.config import SFTConfig, TrainConfig
from burnish.errors import DivergedError, LockedError, StoppedError
from burnish.runs.checkpoints import State
from burnish.runs.journal import JOURNAL, NOW, SILENT_END, Journal, ask_to_stop, condition_of, doing_now, last_event
from burnish.runs.run import Run
from burnish.runs.saving import hold
from burnish.runs.stop import StopSignals


@pytest.fixture
def run(tmp_path):
    return Run.new(tmp_path, "run")


def work(run, then):
    """A stage that begins, does `then`, and ends."""
    with hold(Console(file=io.StringIO()), run, TrainConfig(prompts="p.txt")) as saving:
        saving.begin(
            State, lambda state: None, dict.fromkeys(("data", "base model", "frozen adapters", "versions"), "")
        )
        then(saving)


def events(run):
    return [(row["event"], row["text"]) for row in run.read_lines(JOURNAL)]


def test_a_run_at_work_says_so_and_what_it_does(run):
    def then(saving):
        saving.journal.doing(3, 10, "train_policy_model")
        found = condition_of(run)
        assert (found.state, found.process.pid) == ("running", os.getpid())
        now = doing_now(run)
        assert (now["step"], now["steps"], now["phase"]) == (3, 10, "train_policy_model")
        assert abs(now["since"] - time.time()) < 5

    work(run, then)
    assert not run.path(NOW).exists()
    assert doing_now(run) is None
    assert events(run) == [("begun", ""), ("finished", "")]
    assert condition_of(run).state == "stopped"  # this one left no result
    run.write("result.json", {})
    assert condition_of(run).state == "finished"


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (StoppedError("stopped after step 3, and saved.", 130), "stopped"),
        (KeyboardInterrupt(), "stopped"),
        (DivergedError("the KL became nan"), "failed"),
        (RuntimeError("CUDA error"), "failed"),
        (MemoryError(), "failed"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_journal_says_how_it_ended_and_why(run, error, state):
    def then(saving):
        raise error

    with pytest.raises(BaseException):  # noqa: B017, PT011
        work(run, then)
    found = condition_of(run)
    assert found.state == state
    assert found.process is None
    assert str(error).split(";")[0] in found.why
    assert [event for event, _ in events(run)] == ["begun", state]


def test_a_killed_run_ended_without_a_word(run):
    script = (
        "import time\nfrom burnish.runs.run import Run\nfrom burnish.runs.journal import Journal\n"
        f"from pathlib import Path\nrun = Run(Path({str(run.folder)!r}))\n"
        "with run.lock():\n    Journal(run).begin(0)\n    print('there', flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "there\n"
        assert condition_of(run).state == "running"
        process.send_signal(signal.SIGKILL)
    assert (condition_of(run).state, condition_of(run).why) == ("stopped", SILENT_END)


def test_another_process_with_the_number_of_one_that_ended_is_not_the_run(run):
    run.folder.mkdir()
    run.path(".lock").write_text(f"process {os.getpid()} since 2020-01-01 00:00:00")  # which does not hold it
    assert condition_of(run).state == "stopped"
    for damaged in ("", "process", "process x", "process 99999999 since"):
        run.path(".lock").write_text(damaged)
        assert condition_of(run).state == "stopped"


def test_looking_never_takes_the_lock(run):
    def then(saving):
        for _ in range(20):
            condition_of(run)

    work(run, then)
    with run.lock():
        condition_of(run)
    with run.lock():  # nobody else has it
        pass


def test_warnings_are_shown_and_noted(run):
    def then(saving):
        warnings.warn("the reward is flat", UserWarning, stacklevel=1)

    with pytest.warns(UserWarning, match="the reward is flat"):
        work(run, then)
    assert ("warning", "the reward is flat") in events(run)
    with pytest.warns(UserWarning, match="later"):
        warnings.warn("later", UserWarning, stacklevel=1)
    assert len(events(run)) == 3


def test_a_stop_is_asked_for_once(run):
    def then(saving):
        ask_to_stop(run)
        assert condition_of(run).is_stopping
        with pytest.raises(LockedError, match="is stopping already"):
            ask_to_stop(run)
        saving.after_step(1, 0.0, is_last=False)

    with pytest.raises(StoppedError, match="stopped after step 1, and saved") as stopped:
        work(run, then)
    assert stopped.value.exit_code == 130
    with pytest.raises(LockedError, match="is not running: it is stopped"):
        ask_to_stop(run)


def test_a_stop_after_the_last_step_stops_the_pipeline(run):
    with StopSignals() as pipeline:
        work(run, lambda saving: ask_to_stop(run))
    assert pipeline.exit_code == 130
    work(run, lambda saving: saving.after_step(1, 0.0, is_last=False))  # one that was asked before does not count


def test_a_torn_journal_is_read_as_far_as_it_goes(run):
    work(run, lambda saving: None)
    with run.path(JOURNAL).open("a") as out:
        out.write('{"time": 1, "event": "fai')
    assert last_event(run)["event"] == "finished"
    run.path(JOURNAL).write_text("[]\nnonsense\n")
    assert last_event(run) is None


def test_a_run_that_was_never_begun_has_no_journal(run):
    with hold(Console(file=io.StringIO()), run, SFTConfig(demonstrations="d.jsonl")):
        pass
    assert not run.path(JOURNAL).exists()
    Journal(run).end("failed")
    assert not run.path(JOURNAL).exists()


@pytest.mark.parametrize(
    ("number", "told"), [(signal.SIGINT, "Ctrl-C in its terminal"), (signal.SIGTERM, "SIGTERM")], ids=["INT", "TERM"]
)
def test_a_signal_during_a_step_is_seen_by_those_who_look(run, number, told):
    def then(saving):
        os.kill(os.getpid(), number)
        assert condition_of(run).is_stopping
        with pytest.raises(LockedError, match="is stopping already"):
            ask_to_stop(run)
        saving.after_step(1, 0.0, is_last=False)

    with pytest.raises(StoppedError, match="stopped after step 1, and saved") as stopped:
        work(run, then)
    assert stopped.value.exit_code == 128 + number
    assert [event for event, _ in events(run)] == ["begun", "stopping", "stopped"]
    assert ("stopping", told) in events(run)


def test_a_signal_while_the_model_is_loaded_is_seen_from_the_first_step_on(run):
    with hold(Console(file=io.StringIO()), run, TrainConfig(prompts="p.txt")) as saving:
        os.kill(os.getpid(), signal.SIGINT)
        assert not run.path(JOURNAL).exists()  # it has not begun
        saving.begin(
            State, lambda state: None, dict.fromkeys(("data", "base model", "frozen adapters", "versions"), "")
        )
        assert condition_of(run).is_stopping
