"""Somebody else's run folder does nothing unasked, no link is followed, and what a resume replaces is kept."""

import json
import os
import shutil
import stat
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
import yaml
from rich.console import Console

from burnish import InputError, PPOConfig
from burnish.base_setup.lora_files import adapter_folder
from burnish.config import RewardModelConfig, SFTConfig, TrainConfig
from burnish.models.adapter_files import save_to_run
from burnish.runs.checkpoints import Checkpoints, State
from burnish.runs.disk import write_whole
from burnish.runs.run import Run
from burnish.runs.trust import is_own, state_dir, write_own
from burnish.stages.evaluate import evaluate_run
from burnish.stages.trusted import all_deeds
from failures import log_of, make_workplace, state_hash
from tiny import tiny_config, tiny_trainer

pytestmark = pytest.mark.long

EVIL = "open({trace!r}, 'a').write('here')\ndef f(prompts, responses):\n    return [float(len(r)) for r in responses]\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_workplace(tmp_path_factory.mktemp("trust"))


@pytest.fixture(scope="module")
def whole(fork_server, folder):
    """A finished run of 6 steps, with checkpoints of steps 4 and 6 and the best one, and its report."""
    outcome = fork_server.run(folder, "train", "config.yaml", "run_name=whole", "keep_checkpoints=3")
    assert outcome.code == 0, outcome.text
    assert fork_server.run(folder, "report", "runs/whole").code == 0
    return folder / "runs" / "whole"


@pytest.fixture
def run(whole, tmp_path):
    """The same, as its user copied it."""
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def change(run: Path, **settings) -> None:
    """As somebody would who sends the folder."""
    file = run / "config.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | settings, sort_keys=False))


@pytest.fixture
def sent(run, tmp_path):
    """A folder whose reward leaves a trace when it is run, and the trace's path."""
    trace = tmp_path / "trace"
    (run / "evil.py").write_text(EVIL.format(trace=str(trace)))
    change(run, reward=f"{run / 'evil.py'}:f")
    return run, trace


def files_of(run: Path) -> dict[Path, bytes]:
    return {p.relative_to(run): p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name != ".lock"}


# ------------------------------------------------------------------------------------------------------ whose it is


def test_a_run_of_ones_own_needs_no_trust_wherever_it_lies(fork_server, folder, run):
    moved = run.rename(run.with_name("moved"))
    for command in (("resume", moved, "--from", "4"), ("eval", moved, "--best-of", "1"), ("generate", moved, "1:")):
        outcome = fork_server.run(folder, *command)
        assert outcome.code == 0, outcome.text
    assert is_own(moved / "config.yaml")  # a resume writes the config anew


def test_nobody_else_can_make_the_proof(run, tmp_path, monkeypatch):
    config = run / "config.yaml"
    proof = run / "config.yaml.hmac"
    assert is_own(config)
    before = config.read_text()
    config.write_text(before + "# \n")
    assert not is_own(config)
    config.write_text(before)
    assert is_own(config)
    good = proof.read_text()
    for forged in ("", "\n", "0" * 64, good[:-2], "\udcff\n", "x" * 5000 + good):
        proof.write_text(forged, errors="surrogateescape")
        assert not is_own(config)
    proof.unlink()  # as a run of an older version
    assert not is_own(config)
    proof.write_text(good)
    monkeypatch.setenv("BURNISH_STATE", str(tmp_path / "another user"))
    assert not is_own(config)
    write_own(tmp_path / "theirs.yaml", "a: 1")
    assert is_own(tmp_path / "theirs.yaml")
    assert not is_own(config)


def test_the_key_is_kept_for_this_user_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_STATE", str(tmp_path / "state"))
    made = []
    threads = [threading.Thread(target=lambda n=n: made.append(write_own(tmp_path / f"{n}", "x"))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    key = tmp_path / "state" / "key"
    assert len(key.read_bytes()) == 32
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert os.listdir(tmp_path / "state") == ["key"]
    assert all(is_own(tmp_path / f"{n}") for n in range(8))  # however many made the key at once, there is one
    monkeypatch.delenv("BURNISH_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert state_dir() == tmp_path / "xdg" / "burnish"


def test_without_a_place_for_the_key_a_run_begins_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("BURNISH_STATE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="will not be known as yours; set BURNISH_STATE"):
        run = Run.new(tmp_path, "run").begin(tiny_config())
    assert PPOConfig(**run.settings) == tiny_config()
    assert not is_own(run.folder / "config.yaml")


def test_a_kill_between_the_proof_and_the_config_loses_no_trust(tmp_path, monkeypatch):
    config = tmp_path / "config.yaml"
    write_own(config, "a: 1\n")

    def killed_before(path, text):
        if path == config:
            raise KeyboardInterrupt
        write_whole(path, text)

    monkeypatch.setattr("burnish.runs.trust.write_whole", killed_before)
    with pytest.raises(KeyboardInterrupt):
        write_own(config, "a: 2\n")
    assert config.read_text() == "a: 1\n"
    assert is_own(config)
    monkeypatch.undo()
    write_own(config, "a: 2\n")
    assert is_own(config)


def test_runs_from_python_are_their_users_too(tmp_path):
    tiny_trainer().save(tmp_path / "mine")
    assert is_own(tmp_path / "mine" / "config.yaml")


def test_trust_is_given_to_a_command_not_to_a_folder(run):
    change(run, learning_rate=0.5)
    write_own(run / "config.yaml", (run / "config.yaml").read_text())
    assert not is_own(run / "config.yaml")


# ------------------------------------------------------------------------------------- what a sent folder may not do


@pytest.mark.parametrize("command", [("resume", "--from", "4"), ("eval", "--best-of", "1"), ("credit",)])
def test_no_function_of_a_sent_folder_runs_unasked(fork_server, folder, sent, command):
    run, trace = sent
    before = files_of(run)
    outcome = fork_server.run(folder, command[0], run, *command[1:])
    assert outcome.code == 2, outcome.text
    assert f"run the Python file {run / 'evil.py'} and its function f" in outcome.text
    assert f"read {folder / 'prompts.jsonl'} (prompts)" in outcome.text
    assert "with --trust" in outcome.text
    assert not trace.exists()
    assert files_of(run) == before

    outcome = fork_server.run(folder, command[0], run, *command[1:], "--trust")
    assert outcome.code == 0, outcome.text
    assert f"run the Python file {run / 'evil.py'} and its function f" in outcome.text
    assert trace.exists()
    assert fork_server.run(folder, command[0], run, *command[1:]).code == 2  # every time


def test_looking_at_a_sent_folder_needs_no_trust_and_runs_nothing(fork_server, folder, sent, whole):
    run, trace = sent
    for command in (
        ("report", run),
        ("runs", run.parent),
        ("diff", run, whole),
        ("checkpoints", run),
        ("verify", run),
        ("generate", run, "number 1:"),  # asks no reward, and the model is on this machine
    ):
        outcome = fork_server.run(folder, *command)
        assert outcome.code == 0, outcome.text
    assert not trace.exists()


def test_a_second_reward_is_a_reward(fork_server, folder, sent):
    run, trace = sent
    change(run, reward="repetition", eval_reward=f"{run / 'evil.py'}:f")
    outcome = fork_server.run(folder, "eval", run)
    assert (outcome.code, "its function f" in outcome.text, trace.exists()) == (2, True, False)


def test_the_reward_of_a_sent_config_is_not_tried_out_unasked(fork_server, folder, sent, tmp_path):
    run, trace = sent
    outcome = fork_server.run(folder, "reward-test", run / "config.yaml", "a prompt", "an answer")
    assert (outcome.code, "its function f" in outcome.text, trace.exists()) == (2, True, False)
    assert fork_server.run(folder, "reward-test", run / "config.yaml", "a prompt", "an answer", "--trust").code == 0
    assert trace.exists()
    outcome = fork_server.run(folder, "reward-test", "config.yaml", "a prompt", "an answer")  # one that its user wrote
    assert outcome.code == 0, outcome.text


class _Service(BaseHTTPRequestHandler):
    heard: ClassVar[list[str | None]] = []

    def do_POST(self):
        self.heard.append(self.headers["Authorization"])
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps({"rewards": [1.0 + len(r) for r in asked["responses"]]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_no_token_goes_to_an_address_of_a_sent_folder(run, monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_TOKEN", "hf_planted")
    url = f"http://127.0.0.1:{server.server_port}/score"
    change(run, reward=[{"kind": "http", "url": url, "token_env": "HF_TOKEN"}])
    try:
        with pytest.raises(InputError, match=f"send prompts and answers to {url}, with the token in your .* HF_TOKEN"):
            evaluate_run(Console(quiet=True), str(run), best_of=1)
        assert _Service.heard == []
        evaluate_run(Console(quiet=True), str(run), best_of=1, trust=True)
        assert set(_Service.heard) == {"Bearer hf_planted"}
    finally:
        server.shutdown()


def test_all_that_a_config_asks_for_is_told(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "own.jsonl").touch()
    config = TrainConfig(
        model_name="org/model",
        prompts="org/prompts[test]",
        eval_prompts=str(tmp_path / "private.txt"),
        reward=[
            {"kind": "human", "path": str(tmp_path / "scores.jsonl")},
            {"kind": "http", "url": "http://example.org/x"},
            {"kind": "rule", "name": "repetition"},
            {"kind": "model", "path": "some/folder"},
        ],
        eval_reward=f"{tmp_path}/f.py:g",
        tracker="wandb",
    )
    assert list(all_deeds(config, tmp_path / "run")) == [
        "ask the model hub for org/model",
        "ask the hub for the data set org/prompts[test] (prompts)",
        f"read {tmp_path}/private.txt (eval_prompts)",
        f"read scores from {tmp_path}/scores.jsonl, and write new ones to it",
        "send prompts and answers to http://example.org/x",
        f"run the Python file {tmp_path}/f.py and its function g",
        "start the tracker wandb and give it all settings and metrics",
    ]
    model = {"model_name": str(tmp_path)}  # a model on this machine, data of the folder itself or of burnish, adapters
    own = str(tmp_path / "run" / "own.jsonl")
    for harmless in (
        SFTConfig(**model, demonstrations=own),
        RewardModelConfig(**model, preferences="bundled:tldr", sft="some/folder"),
        TrainConfig(**model, prompts=own, reward="repetition", sft="some/folder"),
        TrainConfig(model_name="embedded/SmolLM2-135M-Instruct", prompts="bundled:tldr", reward="tldr"),
    ):
        assert list(all_deeds(harmless, tmp_path / "run")) == []
    outside = str(tmp_path / "run" / ".." / "private.csv")
    assert list(all_deeds(SFTConfig(**model, demonstrations=outside), tmp_path / "run")) == [
        f"read {tmp_path}/private.csv (demonstrations)"
    ]


def test_what_a_config_names_cannot_pose_as_another_line(fork_server, folder, run):
    change(run, model_name="org/model\n  - nothing else\x1b[2J")
    outcome = fork_server.run(folder, "generate", run, "number 1:")
    assert outcome.code == 2
    assert "  - ask the model hub for org/model   - nothing else[2J\n" in outcome.err


def test_a_sent_folder_that_asks_for_nothing_needs_no_trust(fork_server, folder, run):
    shutil.copy(folder / "prompts.jsonl", run)
    change(run, reward="repetition", prompts=str(run / "prompts.jsonl"))
    outcome = fork_server.run(folder, "eval", run, "--best-of", "1")
    assert outcome.code == 0, outcome.text
    outcome = fork_server.run(folder, "resume", run, "tracker=tensorboard")
    assert (outcome.code, "start the tracker tensorboard" in outcome.text) == (2, True), outcome.text


def test_a_pipeline_of_somebody_else_is_refused_as_a_whole(fork_server, folder, tmp_path):
    trace = tmp_path / "trace"
    (tmp_path / "evil.py").write_text(EVIL.format(trace=str(trace)))
    (folder / "pipeline.yaml").write_text(
        "model: {model_name: model, max_new_tokens: 6, lora_r: 4}\nbest_of: 1\n"
        "ppo: {prompts: prompts.jsonl, reward: judge.py:score, num_eval_prompts: 4, batch_size: 4, steps: 1}\n"
    )
    outcome = fork_server.run(folder, "pipeline", "pipeline.yaml", f"run_dir={tmp_path}", "run_name=pipe")
    assert outcome.code == 0, outcome.text
    pipe = (tmp_path / "pipe").rename(tmp_path / "moved")
    for command in (("resume", pipe), ("resume", pipe, "ppo.steps=2"), ("eval", pipe / "ppo", "--best-of", "1")):
        outcome = fork_server.run(folder, *command)
        assert outcome.code == 0, outcome.text
    file = pipe / ".pipeline.yaml"
    file.write_text(file.read_text().replace(str(folder / "judge.py:score"), f"{tmp_path}/evil.py:f"))
    for command in (("resume", pipe), ("eval", pipe / "ppo")):
        outcome = fork_server.run(folder, *command)
        assert (outcome.code, "evil.py and its function f" in outcome.text) == (2, True), outcome.text
        assert not trace.exists()
    assert fork_server.run(folder, "eval", pipe / "ppo", "--best-of", "1", "--trust").code == 0
    assert trace.exists()


# ------------------------------------------------------------------------------------------------------------- links


@pytest.mark.parametrize(
    ("linked", "command"),
    [
        (".writing-report.html", "report"),
        ("report.html", "report"),
        ("metrics.jsonl", "report"),
        ("config.yaml", "report"),
        ("config.yaml.hmac", "eval"),
        (".lock", "eval"),
        ("verdict.json", "eval"),
        (".writing-verdict.json", "eval"),
        ("adapters/policy/adapter_model.safetensors", "eval"),
        ("adapters/policy", "generate"),
        ("adapters", "generate"),
        ("tensorboard", "resume"),
        (".writing-left", "resume"),
        ("samples.jsonl", "resume"),
        ("checkpoints/step-000004/tensors.safetensors", "resume"),
        ("checkpoints/step-000004", "verify"),
        ("checkpoints", "checkpoints"),
        ("start.json", "train"),
        (".lock", "train"),
    ],
)
def test_no_link_in_a_run_folder_is_followed(fork_server, folder, run, tmp_path, linked, command):
    outside = tmp_path / "outside"
    place = run / linked
    if place.exists():
        place.rename(outside)
    else:
        outside.write_text("precious")
    place.symlink_to(outside)
    before = files_of(outside) if outside.is_dir() else outside.read_bytes()
    kept = files_of(run)
    arguments = {
        "generate": ("generate", run, "number 1:"),
        "resume": ("resume", run, "--from", "4"),
        "train": ("train", "config.yaml", f"run_dir={run.parent}", f"run_name={run.name}", "steps=8"),
    }.get(command, (command, run))
    outcome = fork_server.run(folder, *arguments)
    assert outcome.code == 2, outcome.text
    assert f"{place} is a symbolic link to {outside}" in outcome.text
    assert (files_of(outside) if outside.is_dir() else outside.read_bytes()) == before
    assert files_of(run) == kept
    assert place.is_symlink()


def test_no_link_is_followed_where_nobody_looked_before(tmp_path):
    """Each reader and writer refuses for itself, or removes the link and not what it leads to."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    run = Run.new(tmp_path, "run").begin(tiny_config())

    (run.folder / ".writing-odd.json").symlink_to(victim)
    run.write("odd.json", {"a": 1})
    assert run.read("odd.json") == {"a": 1}
    for act in (
        lambda: run.append("odd.jsonl", {"a": 1}),
        lambda: run.write("odd.jsonl", {"a": 1}),
        lambda: run.read("odd.jsonl"),
        lambda: run.read_lines("odd.jsonl"),
    ):
        (run.folder / "odd.jsonl").unlink(missing_ok=True)
        (run.folder / "odd.jsonl").symlink_to(victim)
        with pytest.raises(InputError, match=f"odd.jsonl is a symbolic link to {victim}"):
            act()
    (run.folder / ".lock").symlink_to(victim)
    with pytest.raises(InputError, match="is a symbolic link"), Run(run.folder).lock():
        pass
    assert victim.read_text() == "precious"


def test_no_adapter_is_saved_or_loaded_through_a_link(tmp_path):
    trainer, elsewhere = tiny_trainer(adapter_scope="sequence"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    run = Run.new(tmp_path, "run").begin(trainer.config)
    (run.folder / "adapters").mkdir()
    (run.folder / "adapters" / ".writing-policy").symlink_to(elsewhere)
    saved = save_to_run(run, trainer.policy)
    assert (saved / "adapter_model.safetensors").is_file()
    assert os.listdir(elsewhere) == []
    assert adapter_folder(run.folder, "policy") == saved
    (saved / "adapter_config.json").rename(tmp_path / "away.json")
    (saved / "adapter_config.json").symlink_to(tmp_path / "away.json")
    with pytest.raises(InputError, match=r"adapter_config.json is a symbolic link"):
        adapter_folder(run.folder, "policy")
    shutil.rmtree(run.folder / "adapters")
    (run.folder / "adapters").symlink_to(elsewhere)
    with pytest.raises(InputError, match="adapters is a symbolic link"):
        save_to_run(run, trainer.policy)
    with pytest.raises(InputError, match="adapters is a symbolic link"):
        adapter_folder(run.folder, "policy")


def test_no_checkpoint_is_saved_or_found_through_a_link(tmp_path):
    away = tmp_path / "away"
    Checkpoints(away).save(1, State())
    store = Checkpoints(tmp_path / "checkpoints")
    store.folder.symlink_to(away)
    for act in (store.latest, store.all, lambda: store.load(1), lambda: store.save(2, State())):
        with pytest.raises(InputError, match="checkpoints is a symbolic link"):
            act()
    store.folder.unlink()
    store.folder.mkdir()
    (store.folder / "step-000001").symlink_to(away / "step-000001")
    with pytest.raises(InputError, match="step-000001 is a symbolic link"):
        store.latest()
    (store.folder / "step-000001").unlink()
    shutil.copytree(away / "step-000001", store.folder / "step-000001")
    (store.folder / "step-000001" / "values.json").unlink()
    (store.folder / "step-000001" / "values.json").symlink_to(away / "step-000001" / "values.json")
    with pytest.raises(InputError, match=r"values.json is a symbolic link"):
        store.load(1)


def test_pipes_and_devices_have_no_place_in_a_run_folder(fork_server, folder, run):
    (run / "probes.jsonl").unlink()
    os.mkfifo(run / "probes.jsonl")
    outcome = fork_server.run(folder, "report", run)
    assert (outcome.code, "probes.jsonl is a device, pipe or socket" in outcome.text) == (2, True), outcome.text


def test_the_run_folder_itself_may_be_reached_by_a_link(fork_server, folder, run, tmp_path):
    (tmp_path / "there").mkdir()
    run = run.rename(tmp_path / "there" / "mine")
    (tmp_path / "runs").symlink_to(tmp_path / "there")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link").symlink_to(run)
    for named in (tmp_path / "runs" / "mine", tmp_path / "elsewhere" / "link"):
        for command in (("report", named), ("generate", named, "number 1:"), ("resume", named, "--from", "4")):
            outcome = fork_server.run(folder, *command)
            assert outcome.code == 0, outcome.text


# ----------------------------------------------------------------------------------------------- where a report goes


def test_a_report_never_replaces_what_is_no_file(fork_server, folder, whole, tmp_path):
    outcome = fork_server.run(folder, "report", whole, "--output", tmp_path)
    assert (outcome.code, "is a folder; name a file" in outcome.text) == (2, True), outcome.text
    assert tmp_path.is_dir()

    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    outcome = fork_server.run(folder, "report", whole, "--output", pipe)
    assert outcome.code == 0, outcome.text
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    reader.join()
    assert read[0] == (whole / "report.html").read_text()
    assert outcome.out == ""  # as /dev/stdout the page would end in a path


def test_a_report_never_replaces_a_device(fork_server, folder, whole, tmp_path):
    device = tmp_path / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        device.write_text("")
    except OSError:
        pytest.skip("a device can only be made by root")
    outcome = fork_server.run(folder, "report", whole, "--output", device)
    assert outcome.code == 0, outcome.text
    assert stat.S_ISCHR(device.stat().st_mode)
    assert [p.name for p in tmp_path.iterdir()] == ["null"]


def test_a_link_named_as_output_stays_a_link(fork_server, folder, whole, tmp_path):
    (tmp_path / "www").mkdir()
    target, link = tmp_path / "www" / "page.html", tmp_path / "page.html"
    link.symlink_to(target)
    for _ in range(2):  # a target that is not there yet, and one that is
        outcome = fork_server.run(folder, "report", whole, "--output", link)
        assert outcome.code == 0, outcome.text
        assert link.is_symlink()
        assert target.read_text() == (whole / "report.html").read_text()
        target.write_text("old")


# ------------------------------------------------------------------------------------------------------ nothing lost


def test_checkpoints_on_a_disk_that_is_not_mounted_are_missed_before_anything_changes(
    fork_server, folder, run, tmp_path
):
    (run / "result.json").unlink()
    disk = (run / "checkpoints").rename(tmp_path / "disk")
    (run / "checkpoints").symlink_to(tmp_path / "not mounted" / "disk")
    before = files_of(run)
    train = ("train", "config.yaml", f"run_dir={run.parent}", f"run_name={run.name}", "keep_checkpoints=3")
    for command in (("resume", run), train):
        outcome = fork_server.run(folder, *command)
        assert outcome.code == 2, outcome.text
        assert "checkpoints is a symbolic link to" in outcome.text
        assert "is its disk mounted?" in outcome.text
        assert files_of(run) == before
    (run / "checkpoints").unlink()
    disk.rename(run / "checkpoints")
    outcome = fork_server.run(folder, "resume", run)
    assert (outcome.code, "Resuming after step 6" in outcome.text) == (0, True), outcome.text


def test_a_run_that_lost_its_checkpoints_begins_anew_and_keeps_its_logs(fork_server, folder, run, whole):
    for name in ("result.json", "verdict.json", "answers.json"):
        (run / name).unlink()
    shutil.rmtree(run / "checkpoints")
    logs = [(run / name).read_text() for name in ("metrics.jsonl", "samples.jsonl", "probes.jsonl")]
    outcome = fork_server.run(folder, "resume", run)
    assert outcome.code == 0, outcome.text
    left = run / "left-000006"
    assert f"no checkpoint, so it starts again. What is made again is kept as it was in {left}" in outcome.text
    assert [(left / name).read_text() for name in ("metrics.jsonl", "samples.jsonl", "probes.jsonl")] == logs
    assert not (left / "config.yaml").exists()  # lines, not a run
    assert log_of(run) == log_of(whole)


def test_what_a_finished_run_had_is_kept_when_it_goes_back(fork_server, folder, run, whole):
    before = {name: content for name, content in files_of(run).items() if name.parts[0] != "checkpoints"}
    outcome = fork_server.run(folder, "resume", run, "--from", "2", "learning_rate=0.01")
    assert outcome.code == 0, outcome.text
    left = run / "left-000006"
    assert f"kept as it was in {left}" in outcome.text
    assert files_of(left) == before  # result, verdict, logs, adapters, config: a run of its own
    assert (run / "result.json").read_bytes() != (left / "result.json").read_bytes()
    assert (run / "checkpoints" / "left-000006").is_dir()
    for command in (("report", left), ("generate", left, "number 1:"), ("eval", left), ("diff", left, run)):
        outcome = fork_server.run(folder, *command)
        assert outcome.code == 0, outcome.text
    assert "copy/left-000006" in fork_server.run(folder, "runs", run.parent).text

    result = (run / "result.json").read_bytes()
    assert fork_server.run(folder, "resume", run, "steps=7").code == 0  # for more steps, too
    assert (run / "left-000006-2" / "result.json").read_bytes() == result


def test_lines_of_steps_that_a_kill_made_again_are_kept(fork_server, folder, tmp_path):
    train = ("train", "config.yaml", f"run_dir={tmp_path}", "run_name=killed", "save_every=2")
    assert fork_server.run(folder, *train, kill_at=14).code == -9
    run = tmp_path / "killed"
    steps = [row["step"] for row in log_of(run)[0]]
    assert steps == [1, 2, 3, 4, 5][: len(steps)]
    done = int(max((run / "checkpoints").glob("step-*")).name.removeprefix("step-"))
    lost = (run / "metrics.jsonl").read_text().splitlines()[done:]
    assert lost
    assert fork_server.run(folder, *train).code == 0
    assert (run / f"left-{steps[-1]:06d}" / "metrics.jsonl").read_text().splitlines() == lost


def test_a_kill_at_any_moment_of_going_back_loses_nothing(fork_server, folder, whole, tmp_path):
    """Result, verdict and every line are in the run or beside it, and it goes on to the same end."""

    def rows(run, name):
        return {line for f in (run, *run.glob("left-*")) for line in (f / name).read_text().splitlines()}

    logs = {name: rows(whole, name) for name in ("metrics.jsonl", "samples.jsonl", "probes.jsonl")}
    went_back = []
    for kill_at in (1, 11, *range(20, 36, 2)):  # about 20 of them while the copy is made, then logs, proof and config
        run = Path(shutil.copytree(whole, tmp_path / f"run-{kill_at}"))
        outcome = fork_server.run(folder, "resume", run, "--from", "2", kill_at=kill_at, where="file")
        assert outcome.code == -9, outcome.text
        for name, lines in logs.items():
            assert rows(run, name) >= lines, kill_at
        for name in ("result.json", "verdict.json", "answers.json"):
            kept = [f / name for f in (run, *run.glob("left-*")) if (f / name).is_file()]
            assert (whole / name).read_bytes() in [file.read_bytes() for file in kept], kill_at
        assert is_own(run / "config.yaml")
        if not (run / "result.json").exists():
            went_back.append(run)
    assert 3 <= len(went_back) <= 8
    for run in (went_back[0], went_back[-1]):
        outcome = fork_server.run(folder, "resume", run)
        assert outcome.code == 0, outcome.text
        assert log_of(run) == log_of(whole)
        assert state_hash(run) == state_hash(whole)
        assert not (run / ".writing-left").exists()
