"""Run folders of other versions: opened, or refused in a sentence."""

import json
import re
import shutil
from pathlib import Path

import pytest

from burnish.config import SFTConfig, TrainConfig
from burnish.errors import InputError
from burnish.runs.checkpoints import MANIFEST, VALUES, _digest, _fingerprint
from burnish.runs.run import FORMAT, Run
from failures import make_workplace

RECORDED = Path(__file__).with_name("format_1")


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


@pytest.fixture
def recorded(tmp_path):
    """What burnish 0.1.0 left of a run of two steps, with the model, prompts and reward of that run.

    It wrote whole paths. Those of the machine that it ran on are cut to names, which are made whole here again.
    """
    place = Path(shutil.copytree(RECORDED, tmp_path / "recorded"))
    files = {"model_name": place / "model", "prompts": place / "prompts.jsonl", "reward": place / "judge.py:vowels"}
    config = place / "runs/old/config.yaml"
    for key, path in files.items():
        config.write_text(re.sub(rf"^{key}: .*", f"{key}: {path}", config.read_text(), flags=re.MULTILINE))
    for checkpoint in (place / "runs/old/checkpoints").iterdir():
        values = json.loads((checkpoint / VALUES).read_text())
        values["config"] |= {key: str(path) for key, path in files.items()}
        (checkpoint / VALUES).write_text(json.dumps(values))
        rewrite(checkpoint / MANIFEST)
    return place


def rewrite(manifest, **changes):
    """With the sums of what is there now."""
    values = json.loads(manifest.read_text()) | changes
    del values["sha256"]
    values["files"] = {name: _fingerprint(manifest.parent / name) for name in values["files"]}
    manifest.write_text(json.dumps(values | {"sha256": _digest(values)}))


def rows_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").open()]


def test_a_folder_that_0_1_0_wrote_opens_and_is_shown(recorded, fork_server):
    before = (recorded / "runs/old/config.yaml").read_bytes()
    assert not before.startswith(b"format:")
    assert Run.open(recorded / "runs/old").stage == "ppo"
    for command, told in (
        ("runs", "old"),
        ("report runs/old", "report.html"),
        ("verify runs/old", "2 steps, each once"),
    ):
        ended = fork_server.run(recorded, *command.split())
        assert ended.code == 0, ended.text
        assert told in ended.text
    ended = fork_server.run(recorded, "generate", "runs/old", "number 3:", "--trust")
    assert ended.code == 0, ended.text
    assert "tuned" in ended.text
    assert (recorded / "runs/old/config.yaml").read_bytes() == before


def test_a_run_that_0_1_0_began_makes_its_second_step_again_and_goes_on(recorded, fork_server):
    ended = fork_server.run(recorded, *"resume runs/old --from 1 steps=3 --trust".split())
    assert ended.code == 0, ended.text
    assert "0.1.0" in ended.text  # versions differ, which is told
    then, now = rows_of(RECORDED / "runs/old"), rows_of(recorded / "runs/old")
    assert [row["step"] for row in now] == [1, 2, 3]
    for name in ("reward", "kl", "policy_loss", "value_loss"):
        assert now[1][name] == pytest.approx(then[1][name], rel=1e-4, abs=1e-6)
    assert (recorded / "runs/old/config.yaml").read_text().startswith(f"format: {FORMAT}\n")


def test_checkpoints_of_earlier_numbers_are_refused_and_the_adapters_still_load(recorded, fork_server):
    for manifest in (recorded / "runs/old/checkpoints").glob("*/MANIFEST.json"):
        rewrite(manifest, format=3)
    refused = fork_server.run(recorded, *"resume runs/old --from 1 --trust".split())
    assert refused.code == 4
    assert "cannot be resumed: it is of a run whose KL was charged over the kept set alone" in refused.text
    ended = fork_server.run(recorded, "generate", "runs/old", "number 3:", "--trust")
    assert ended.code == 0, ended.text


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
