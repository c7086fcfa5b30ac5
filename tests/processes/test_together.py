"""A run that several processes make: whole, killed, hung, stopped, resumed by as many or by others."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from burnish.processes.launch import exit_code, without_option
from burnish.runs.checkpoints import Checkpoints
from failures import PIPELINE, copy_of, log_of, make_workplace, state_hash, waiting_for

LOST = "another process of this run has ended, or has not answered for"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_workplace(tmp_path_factory.mktemp("together"))


def start(fork_server, folder, *arguments, patience="1", kill=None):
    """Two processes of a command; `kill` is for the second, or (rank, order)."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "BURNISH_PATIENCE": patience}
    which, order = kill or (0, {})
    return [
        fork_server.start(
            folder, *arguments, environment=world | {"RANK": str(rank)}, **(order if rank == which else {})
        )
        for rank in range(2)
    ]


def ended(fork_server, pids):
    return [fork_server.wait(pid) for pid in pids]


def train(name, *settings):
    return ("train", "config.yaml", f"run_name={name}", "steps=4", "best_of=1", *settings)


@pytest.fixture(scope="module")
def whole(fork_server, folder):
    """The run of two processes that nothing happened to."""
    first, second = ended(fork_server, start(fork_server, folder, *train("whole")))
    assert (first.code, second.code) == (0, 0), first.text + second.text
    assert "Took" in first.text
    assert second.text == ""  # one speaks for both
    return folder / "runs" / "whole"


def test_two_processes_leave_the_run_of_one(fork_server, folder, whole):
    assert fork_server.run(folder, *train("alone")).code == 0
    both, alone = log_of(whole), log_of(folder / "runs" / "alone")
    assert [row["step"] for row in both[0]] == [1, 2, 3, 4]
    for row, expected in zip(both[0], alone[0], strict=True):
        for name in ("reward", "kl", "policy_loss", "value_loss", "kl_coef", "policy_updates", "entropy"):
            assert row[name] == pytest.approx(expected[name], abs=1e-5), name
    assert [row["response"] for row in both[1]] == [row["response"] for row in alone[1]]
    assert {p.name for p in whole.iterdir()} == {p.name for p in (folder / "runs" / "alone").iterdir()}


def test_time_is_told_by_process(whole):
    row = json.loads((whole / "metrics.jsonl").read_text().splitlines()[0])
    assert set(row["seconds_by_process"]) == {"0", "1"}
    for worked in row["seconds_by_process"].values():
        assert 0 < worked < row["seconds"]
    assert 0 < row["seconds_waited"] < row["seconds"]


@pytest.mark.parametrize(("rank", "kill_at", "where"), [(1, 9, "log"), (0, 13, "save")])
def test_kill_any_process_and_nothing_is_lost(fork_server, folder, whole, rank, kill_at, where):
    name = f"killed-{rank}-{kill_at}-{where}"
    outcomes = ended(
        fork_server, start(fork_server, folder, *train(name), kill=(rank, {"kill_at": kill_at, "where": where}))
    )
    assert outcomes[rank].code == -9
    other = outcomes[1 - rank]
    assert other.code == 7, other.text
    assert other.text.count(LOST) == 1
    assert "Resume with: burnish resume" in other.text
    assert "Traceback" not in other.text
    run = folder / "runs" / name
    copy_of(run, f"{name}-alone")
    resumed = ended(fork_server, start(fork_server, folder, *train(name)))
    assert [outcome.code for outcome in resumed] == [0, 0], resumed[0].text
    assert state_hash(run) == state_hash(whole)
    assert log_of(run) == log_of(whole)
    alone = fork_server.run(folder, *train(f"{name}-alone"))  # nor is it if another number of them resumes
    assert alone.code == 0, alone.text
    assert "processes: 2 then, 1 now" in alone.text
    for row, expected in zip(log_of(folder / "runs" / f"{name}-alone")[0], log_of(whole)[0], strict=True):
        assert row["policy_loss"] == pytest.approx(expected["policy_loss"], abs=1e-5)


def test_who_no_longer_answers_is_not_waited_for(fork_server, folder):
    pids = start(fork_server, folder, *train("hung", "steps=100000"), patience="0.1")
    waiting_for(folder / "runs" / "hung" / "metrics.jsonl")
    os.kill(pids[1], signal.SIGSTOP)
    started = time.monotonic()
    first = fork_server.wait(pids[0])
    assert time.monotonic() - started < 30
    os.kill(pids[1], signal.SIGKILL)
    fork_server.wait(pids[1])
    assert first.code == 7, first.text
    assert f"{LOST} 0.1 minutes" in first.text


def test_a_request_to_one_process_stops_both_saved(fork_server, folder):
    pids = start(fork_server, folder, *train("stopped", "steps=100000", "save_every=0"))
    waiting_for(folder / "runs" / "stopped" / "metrics.jsonl")
    os.kill(pids[1], signal.SIGTERM)
    time.sleep(0.2)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pids[1], signal.SIGTERM)  # a launcher passes on what has reached the process already
    outcomes = ended(fork_server, pids)
    assert [outcome.code for outcome in outcomes] == [143, 143], outcomes[0].text
    assert sum(outcome.text.count("Resume with: burnish resume") for outcome in outcomes) == 1
    (saved,) = Checkpoints(folder / "runs" / "stopped" / "checkpoints").all()
    assert saved.step == len(log_of(folder / "runs" / "stopped")[0])


def test_what_is_ruined_ends_as_in_one_process(fork_server, folder):
    pids = start(fork_server, folder, *train("ruined", "max_kl=null"), kill=(0, {"ruinous": True}))
    outcomes = ended(fork_server, pids)
    assert [outcome.code for outcome in outcomes] == [5, 5], outcomes[0].text
    assert "Traceback" not in outcomes[0].text + outcomes[1].text
    assert (outcomes[0].text + outcomes[1].text).count("error:") == 1


def test_a_wrong_config_is_told_once(fork_server, folder):
    outcomes = ended(fork_server, start(fork_server, folder, "train", "config.yaml", "kl_coff=1"))
    assert [outcome.code for outcome in outcomes] == [2, 2]
    assert sum(outcome.text.count("kl_coff") for outcome in outcomes) == 1


def test_a_pipeline_of_two_processes_is_that_of_one(fork_server, folder):
    """Killed once on its way, in the reward model's stage."""
    prompts = [f"number {i}:" for i in range(14)]
    demonstrations = [{"prompt": p, "completion": p[-3:]} for p in prompts]
    preferences = [{"prompt": p, "chosen": p[-3:], "rejected": p[:3]} for p in prompts]
    (folder / "demonstrations.jsonl").write_text("\n".join(map(json.dumps, demonstrations)))
    (folder / "preferences.jsonl").write_text("\n".join(map(json.dumps, preferences)))
    (folder / "pipeline.yaml").write_text(PIPELINE.replace("lora_r: 4,", "lora_r: 4, lora_dropout: 0.0,"))
    killed = ended(
        fork_server,
        start(fork_server, folder, "pipeline", "pipeline.yaml", "run_name=both", kill=(1, {"kill_at": 13})),
    )
    assert [outcome.code for outcome in killed] == [7, -9], killed[0].text
    assert (folder / "runs" / "both" / "sft" / "result.json").is_file()
    assert not (folder / "runs" / "both" / "ppo").exists()
    resumed = ended(fork_server, start(fork_server, folder, "resume", "runs/both"))
    assert [outcome.code for outcome in resumed] == [0, 0], resumed[0].text + resumed[1].text
    assert (folder / "runs" / "both" / "ppo" / "report.html").is_file()
    assert fork_server.run(folder, "pipeline", "pipeline.yaml", "run_name=one").code == 0
    for stage in ("sft", "reward"):
        both, one = ([json.loads(row) for row in lines_of(folder / "runs" / name / stage)] for name in ("both", "one"))
        assert [row["loss"] for row in both] == pytest.approx([row["loss"] for row in one], abs=1e-5)
    assert log_of(folder / "runs" / "both" / "ppo")[0][-1]["reward"] == pytest.approx(
        log_of(folder / "runs" / "one" / "ppo")[0][-1]["reward"], abs=1e-4
    )


def lines_of(run):
    return (run / "metrics.jsonl").read_text().splitlines()


def test_the_launcher_starts_them_anew_and_the_run_resumes_by_itself(tmp_path):
    """Real processes of torch's launcher: one of them is killed in its third step. No name is given to the run."""
    folder = make_workplace(tmp_path)
    (folder / "judge.py").write_text(
        "import os, pathlib, signal\n"
        "def score(prompts, responses):\n"
        "    logs = pathlib.Path('runs').glob('*/metrics.jsonl')\n"
        "    if any(len(f.read_text().splitlines()) == 3 for f in logs) and not os.path.exists('killed'):\n"
        "        pathlib.Path('killed').touch()\n"
        "        os.kill(os.getppid(), signal.SIGKILL)\n"
        "    return [sum(map(ord, r)) % 10 / 10 for r in responses]\n"
    )
    arguments = ["train", "config.yaml", "steps=4", "best_of=1", "num_eval_prompts=0"]
    launched = f"launch(2, {arguments!r}, max_restarts=1)"
    program = f"import sys\nfrom burnish.processes.launch import launch\nsys.exit({launched})"
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert (folder / "killed").is_file()
    assert "Resuming after step 2 of 4" in done.stdout
    (run,) = (folder / "runs").iterdir()
    assert re.fullmatch(r"\d{8}-\d{6}", run.name)
    assert [row["step"] for row in log_of(run)[0]] == [1, 2, 3, 4]


def test_the_launcher_gives_the_exit_code_of_the_command(folder):
    command = [sys.executable, "-m", "burnish", "train", "none.yaml", "--processes", "2"]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.count("none.yaml") == 1


@pytest.mark.parametrize(
    ("codes", "code"), [([5, 5], 5), ([-9, 7], 7), ([7, 6], 6), ([-9, -15], 7), ([143, 143], 143), ([-15, 2], 2)]
)
def test_the_exit_code_is_the_first_reason_that_was_given(codes, code):
    assert exit_code(codes) == code


def test_what_each_process_is_started_with():
    given = ["train", "--processes", "2", "c.yaml", "steps=1"]
    assert without_option(given) == ["train", "c.yaml", "steps=1"]
    assert without_option(["train", "c.yaml", "--processes=2"]) == ["train", "c.yaml"]
