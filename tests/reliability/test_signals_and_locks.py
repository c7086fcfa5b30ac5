"""Ctrl-C and SIGTERM save first; a run folder belongs to one process (R9, R10)."""

import os
import re
import signal
import time

import pytest
from rich.console import Console

from burnish.errors import StoppedError
from burnish.runs.checkpoints import Checkpoints
from burnish.runs.run import Run
from burnish.runs.saving import hold
from burnish.runs.stop import StopSignals
from failures import waiting_for
from tiny import tiny_config


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_r9_a_signal_saves_first(fork_server, folder, number, code):
    name = f"signal-{code}"
    pid = fork_server.start(folder, "train", "config.yaml", f"run_name={name}", "steps=100000", "save_every=0")
    waiting_for(folder / "runs" / name / "metrics.jsonl")
    os.kill(pid, number)
    outcome = fork_server.wait(pid)
    assert outcome.code == code, outcome.text
    assert "burnish resume" in outcome.text
    assert "Traceback" not in outcome.text
    (saved,) = Checkpoints(folder / "runs" / name / "checkpoints").all()
    assert saved.problem is None
    assert saved.step == len((folder / "runs" / name / "metrics.jsonl").read_text().splitlines())


def test_r9_twice_is_out_at_once(fork_server, folder):
    (folder / "slow.py").write_text(
        "import time\ncalls = 0\ndef f(p, r):\n    global calls\n    calls += 1\n"
        "    time.sleep(30 if calls > 3 else 0)\n    return [float(len(x)) for x in r]\n"
    )
    pid = fork_server.start(folder, "train", "config.yaml", "run_name=twice", "reward=slow.py:f", "steps=1000")
    waiting_for(folder / "runs" / "twice" / "config.yaml")
    time.sleep(1.0)
    os.kill(pid, signal.SIGINT)
    time.sleep(0.3)
    os.kill(pid, signal.SIGINT)
    started = time.monotonic()
    assert fork_server.wait(pid).code in (-2, 130)
    assert time.monotonic() - started < 2


def test_r9_what_is_asked_of_a_pipeline_is_asked_of_its_stage():
    with StopSignals() as pipeline:
        os.kill(os.getpid(), signal.SIGTERM)  # while a model is loaded, say
        with StopSignals() as stage:
            assert stage.exit_code == 143
    assert pipeline.exit_code == 143
    with StopSignals() as pipeline:
        with StopSignals() as stage:
            os.kill(os.getpid(), signal.SIGINT)
        assert pipeline.exit_code == stage.exit_code == 130


def test_r9_a_stop_while_a_stage_is_loaded_comes_before_its_first_step(tmp_path):
    run = Run.new(tmp_path, "run").begin(tiny_config())
    with StopSignals():  # a pipeline's
        os.kill(os.getpid(), signal.SIGTERM)
        with (
            pytest.raises(StoppedError, match=r"before the first step of .*run\. Resume with") as stopped,
            hold(Console(quiet=True), run, tiny_config()),
        ):
            pytest.fail("the stage has begun")
    assert stopped.value.exit_code == 143


def test_r10_one_process_per_run_folder(fork_server, folder):
    for trial in range(5):
        pids = [
            fork_server.start(folder, "train", "config.yaml", f"run_name=both-{trial}", "steps=3") for _ in range(2)
        ]
        outcomes = sorted((fork_server.wait(pid) for pid in pids), key=lambda o: o.code)
        assert [o.code for o in outcomes] in ([0, 3], [0, 0]), [o.text for o in outcomes]
        if outcomes[1].code == 3:
            assert re.search(r"in use by process \d+ since \d{4}-", outcomes[1].text)
        else:  # the second came when the first was done
            assert any("already finished" in o.text for o in outcomes)
