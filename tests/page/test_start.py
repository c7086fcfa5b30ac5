"""A run that is started on the page: the config is checked as `burnish` checks it, written, and run by a process of its
own.
"""

import json
import os
import sys
import time

import pytest
import yaml

from burnish.config import TrainConfig, load_train_config
from burnish.page import start as start_module
from burnish.runs.run import Run
from burnish.stages.stage import STAGES
from served import served

HOSTILE = "<script>document.title = 'owned'</script>"
STAND_IN = "import os, sys, time; print(sys.argv[1:], os.getsid(0) == os.getpid(), flush=True); time.sleep(float({!r}))"


@pytest.fixture
def page(tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    (tmp_path / "prompts.txt").write_text("one\ntwo\n")
    monkeypatch.chdir(tmp_path)
    with served(tmp_path / "runs") as found:
        yield found


def test_every_key_is_there_with_its_meaning_default_and_range(page):
    for stage, own in STAGES.items():
        shown = page.ask(f"/api/start?stage={stage}").json
        every = [field["key"] for section in shown["sections"] for field in section["fields"]]
        assert len(every) == len(set(every))
        fields = {field["key"]: field for section in shown["sections"] for field in section["fields"]}
        assert set(fields) == set(own.config.model_fields) - {"run_dir"}
        assert all(field["meaning"] for field in fields.values())
    fields = {field["key"]: field for s in page.ask("/api/start").json["sections"] for field in s["fields"]}
    assert (fields["steps"]["range"], fields["prompts"]["is_required"]) == ("at least 1", True)
    assert fields["learning_rate"]["range"] == "above 0, at most 1"
    assert fields["tracker"]["choices"] == ["tensorboard", "wandb", "trackio"]
    assert fields["skip_bad"]["choices"] == ["true", "false"]
    assert fields["top_p"]["default"] == yaml.safe_dump(TrainConfig.model_fields["top_p"].default).split("\n")[0]


def test_a_config_is_checked_as_on_the_command_line(page):
    form = {"prompts": "prompts.txt", "steps": 0, "top_p": 3, "batch_size": "many"}
    answer = page.post("/api/start", form | {"run_name": "one"})
    assert answer.status == 422
    for key in ("steps", "top_p", "batch_size"):
        assert key in answer.json["error"]
    assert "prompts is missing" in page.post("/api/start", {"run_name": "one"}).json["error"]
    assert "run_name" in page.post("/api/start", {"prompts": "prompts.txt", "run_name": "../x"}).json["error"]
    assert "not valid YAML" in page.post("/api/start", {"prompts": "prompts.txt", "steps": "[1"}).json["error"]
    assert os.listdir("runs") == []


def test_checking_shows_the_yaml_and_writes_nothing(page, tmp_path):
    form = {"prompts": "prompts.txt", "reward": "repetition", "steps": 7, "run_name": "one", "run_dir": "/elsewhere"}
    shown = page.post("/api/start", form | {"do": "check"}).json
    expected = {"prompts": str(tmp_path / "prompts.txt"), "reward": "repetition", "steps": 7, "run_name": "one"}
    assert yaml.safe_load(shown["yaml"]) == expected | {"run_dir": str(tmp_path / "runs")}
    assert (shown["is_started"], os.listdir("runs")) == (False, [])


def test_a_run_is_a_process_of_its_own(page, tmp_path, monkeypatch):
    monkeypatch.setattr(start_module, "COMMAND", (sys.executable, "-c", STAND_IN.format("60")))
    form = {"prompts": "prompts.txt", "reward": "repetition", "run_name": "one", "do": "start"}
    told = page.post("/api/start", form).json
    file = tmp_path / "runs" / "one-start.yaml"
    assert (told["is_started"], told["file"]) == (True, str(file))
    assert load_train_config(file).run_name == "one"
    log = file.with_suffix(".log")
    end = time.monotonic() + 20
    while not log.read_text().endswith("\n") and time.monotonic() < end:
        time.sleep(0.05)
    assert log.read_text() == f"['train', '{file}'] True\n"  # the leader of its own session
    shown = page.ask("/api/start?begun=one").json["begun"]
    assert (shown["is_there"], shown["said"]) == (False, log.read_text().strip())
    assert page.ask("/api/start?begun=one").json["given"]["reward"] == "repetition"
    assert 'name="run_name" value="one"' in page.ask("/start?begun=one").text
    again = page.post("/api/start", form)
    assert (again.status, "one was started a moment ago" in again.json["error"]) == (422, True)
    start_module.started[file].kill()
    start_module.started[file].wait()
    monkeypatch.setattr(start_module, "COMMAND", (sys.executable, "-c", STAND_IN.format("0")))
    assert page.post("/api/start", form | {"steps": 9}).json["is_started"]  # it had not begun
    assert load_train_config(file).steps == 9
    assert start_module.started[file].wait(20) == 0


def test_values_of_json_are_taken_as_they_are(page):
    form = {"prompts": "prompts.txt", "run_name": "one", "tracker": None, "steps": 7, "skip_bad": True}
    form |= {"reward": [{"kind": "exact_match", "weight": 2}, {"kind": "http", "url": "http://127.0.0.1:1"}]}
    shown = page.post("/api/start", form | {"do": "check"}).json
    values = yaml.safe_load(shown["yaml"])
    assert {key: values[key] for key in ("tracker", "steps", "skip_bad", "reward")} == {
        key: form[key] for key in ("tracker", "steps", "skip_bad", "reward")
    }


def test_a_run_that_is_there_is_led_to_and_never_written_over(page, tmp_path):
    Run.new(tmp_path / "runs", "one").begin(TrainConfig(prompts="p.txt"))
    time.sleep(1)
    assert '<a href="/run/one">watch it</a>' in page.ask("/start?begun=one").text
    answer = page.post("/api/start", {"prompts": "prompts.txt", "run_name": "one", "do": "start"})
    assert (answer.status, "exists already; choose another run_name" in answer.json["error"]) == (422, True)


def test_starting_needs_the_token_a_folder_of_runs_and_a_plain_name(page, tmp_path):
    assert page.ask("/api/start", "POST", b"do=start&prompts=prompts.txt").status == 401
    assert page.ask("/start?begun=../../etc/passwd").status == 422
    assert page.ask("/start?begun=" + "%3Cb%3E").status == 422
    (tmp_path / "runs" / "x-start.log").write_text(HOSTILE)
    text = page.ask("/start?begun=x").text
    assert text.count("<script") == 1
    assert json.dumps(HOSTILE) not in text
    run = Run.new(tmp_path / "runs", "one").begin(TrainConfig(prompts="p.txt"))
    with served(run.folder) as one:
        answer = one.post("/api/start", {"prompts": "prompts.txt"})
        assert (answer.status, "this page shows one run" in answer.json["error"]) == (422, True)
