"""Run folders of other versions: opened, or refused in a sentence."""

import json
import re
import shutil

import pytest

from burnish.config import SFTConfig, TrainConfig
from burnish.errors import InputError
from burnish.runs.run import FORMAT, Run
from failures import make_workplace


@pytest.fixture(scope="module")
def work(tmp_path_factory, fork_server):
    """A run of today, and the same as format 1 had it."""
    folder = make_workplace(tmp_path_factory.mktemp("work"))
    ended = fork_server.run(folder, "train", "config.yaml", "run_name=new")
    assert ended.code == 0, ended.text
    old = folder / "runs" / "old"
    shutil.copytree(folder / "runs" / "new", old)
    config = (old / "config.yaml").read_text()
    assert config.startswith(f"format: {FORMAT}\nstage: ppo\n")
    (old / "config.yaml").write_text(config.split("stage: ppo\n")[1].replace("run_name: new", "run_name: old"))
    for name in ("journal.jsonl", "log.txt", "config.yaml.hmac"):
        (old / name).unlink()
    return folder


def test_a_folder_of_format_1_opens_and_is_shown(work, fork_server):
    run = Run.open(work / "runs" / "old")
    assert run.stage == "ppo"
    assert TrainConfig(**run.settings) == TrainConfig(**Run.open(work / "runs/new").settings | {"run_name": "old"})
    for command in (["runs"], ["diff", "runs/old", "runs/new"], ["report", "runs/old"], ["verify", "runs/old"]):
        ended = fork_server.run(work, *command)
        assert ended.code == 0, ended.text
    assert "format" not in (work / "runs/old/config.yaml").read_text()  # looking changes nothing


def test_it_is_resumed_as_a_folder_of_today(work, fork_server):
    refused = fork_server.run(work, "resume", "runs/old", "--from", "4")
    assert refused.code == 2
    assert "or by an older version" in refused.text
    ended = fork_server.run(work, "resume", "runs/old", "--from", "4", "--trust")
    assert ended.code == 0, ended.text
    assert (work / "runs/old/config.yaml").read_text().startswith(f"format: {FORMAT}\n")
    steps = [[json.loads(line) for line in (work / f"runs/{n}/metrics.jsonl").open()] for n in ("old", "new")]
    assert [row["reward"] for row in steps[0]] == [row["reward"] for row in steps[1]]


@pytest.mark.parametrize("number", [FORMAT + 1, 0, "two"])
def test_a_folder_of_another_format_is_refused_in_one_sentence(tmp_path, number):
    run = Run.new(tmp_path, "later").begin(SFTConfig(demonstrations="rows.jsonl"))
    file = run.folder / "config.yaml"
    file.write_text(re.sub(r"^format: .*", f"format: {number}", file.read_text()))
    with pytest.raises(InputError, match=rf"has format '?{number}'?, and this version of burnish reads 1 to {FORMAT};"):
        _ = Run.open(run.folder).settings


def test_a_run_folders_own_config_trains_again(work, fork_server):
    ended = fork_server.run(work, "train", "runs/new/config.yaml", "run_name=again", "steps=1")
    assert ended.code == 0, ended.text
