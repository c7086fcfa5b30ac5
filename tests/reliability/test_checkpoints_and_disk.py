"""Checkpoints are whole or not there, and a full disk loses nothing (R7, R8)."""

import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from rich.console import Console

from burnish.config import SFTConfig
from burnish.errors import NoCheckpointError, ResourceError
from burnish.runs.checkpoints import Checkpoints, State
from burnish.runs.run import Run
from burnish.runs.saving import Saving
from burnish.runs.stop import StopSignals
from failures import copy_of, corrupt, log_of, state_hash


def test_r7_a_full_disk_leaves_the_last_checkpoint_whole(tmp_path, monkeypatch):
    """Here the disk only says that it is full; below it is."""
    store = Checkpoints(tmp_path / "checkpoints", keep=1)  # the older one goes only when the new one is there
    store.save(1, State({"w": torch.arange(4.0)}, {"step": 1}))

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("burnish.runs.disk.to_disk", full)
    with pytest.raises(ResourceError, match=r"the disk is full \(\d+ MB free\)") as stopped:
        store.save(2, State({"w": torch.zeros(4)}, {"step": 2}))
    assert stopped.value.exit_code == 6
    monkeypatch.undo()
    step, state = store.latest()
    assert (step, state.tensors["w"].tolist()) == (1, [0.0, 1.0, 2.0, 3.0])
    assert not list((tmp_path / "checkpoints").glob(".writing*"))


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=60m", "small", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small disk can only be mounted by root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_r7_a_disk_that_fills_up_during_a_run(fork_server, folder, small_disk, tmp_path):
    """Whatever was being written, the last checkpoint is whole and the run can end as if undisturbed."""
    fill = tmp_path / "fill.py"
    fill.write_text(
        "from pathlib import Path\n"
        "from judge import score\n"
        f"calls, switch, disk = [], Path({str(tmp_path / 'switch')!r}), Path({str(small_disk)!r})\n"
        "def f(prompts, responses):\n"
        "    calls.append(1)\n"
        "    if len(calls) == 5 and switch.exists():\n"  # once before training, for the held-out prompts
        "        with open(disk / 'filler', 'wb', buffering=0) as out:\n"
        "            try:\n"
        "                while out.write(bytes(4096)): pass\n"
        "            except OSError: pass\n"
        "    return score(prompts, responses)\n"
    )
    shutil.copy(folder / "judge.py", tmp_path)
    train = ("train", "config.yaml", f"reward={fill}:f")
    undisturbed = fork_server.run(folder, *train, "run_name=roomy")
    assert undisturbed.code == 0, undisturbed.text
    (tmp_path / "switch").touch()
    outcome = fork_server.run(folder, *train, f"run_dir={small_disk}", "run_name=cramped")
    assert outcome.code == 6, outcome.text
    assert re.search(r"(cannot save a checkpoint of \d+ kB in .*: )?the disk .*is full \(\d+ kB free\)", outcome.text)
    assert "Traceback" not in outcome.text
    assert all(c.problem is None for c in Checkpoints(small_disk / "cramped" / "checkpoints").all())
    (small_disk / "filler").unlink()
    (tmp_path / "switch").unlink()
    resumed = fork_server.run(folder, "resume", small_disk / "cramped")
    assert resumed.code == 0, resumed.text
    assert state_hash(small_disk / "cramped") == state_hash(folder / "runs" / "roomy")
    assert log_of(small_disk / "cramped") == log_of(folder / "runs" / "roomy")


def test_r7_space_is_checked_before_the_first_step(fork_server, folder, small_disk):
    (small_disk / "filler").write_bytes(bytes(20 * 2**20))
    outcome = fork_server.run(folder, "train", "config.yaml", f"run_dir={small_disk}", "run_name=tight")
    assert outcome.code == 6
    assert re.search(r"checkpoints need \d+ MB in .* and \d+ MB are free; make room", outcome.text)
    assert not (small_disk / "tight" / "metrics.jsonl").exists()


def test_r7_the_space_asked_for_is_that_of_all_checkpoints(tmp_path, monkeypatch):
    store, size = Checkpoints(tmp_path / "checkpoints", keep=3), 200 * 2**20
    for free, enough in ((1051 * 2**20, True), (1049 * 2**20, False)):  # three, the best, one in the making, 50 MB
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: shutil._ntuple_diskusage(free, 0, free))
        if enough:
            assert store.check_space(size) == "Checkpoints take 200 MB each, 1000 MB at most; 1051 MB are free."
            continue
        with pytest.raises(ResourceError, match=r"checkpoints need 1050 MB in .*, and 1049 MB are free"):
            store.check_space(size)


def test_r7_the_size_that_is_foretold_is_that_of_the_files(whole):
    (newest,) = [sorted(whole.glob("checkpoints/step-*"))[-1]]
    real = sum(f.stat().st_size for f in newest.iterdir())
    state = Checkpoints(whole / "checkpoints").load(int(newest.name.removeprefix("step-")))
    assert state.nbytes == pytest.approx(real, rel=0.25)  # the tiny model's random numbers weigh more than a real one's


def test_r7_a_checkpoint_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    events = []
    fsync, rename = os.fsync, Path.rename
    monkeypatch.setattr(os, "fsync", lambda f: (events.append(os.readlink(f"/proc/self/fd/{f}")), fsync(f))[1])
    monkeypatch.setattr(Path, "rename", lambda p, to: (events.append(f"rename {p.name}"), rename(p, to))[1])
    Checkpoints(tmp_path).save(1, State({"w": torch.zeros(2)}, {}))
    names = [event.removeprefix(f"{tmp_path}/") for event in events]
    files = [f".writing-000001/{n}" for n in ("MANIFEST.json", "tensors.safetensors", "values.json")]
    assert names == [*files, ".writing-000001", "rename .writing-000001", str(tmp_path)]


def test_the_last_and_the_best_checkpoints_stay(tmp_path):
    store = Checkpoints(tmp_path, keep=2)
    for step in range(1, 7):
        store.save(step, State({"w": torch.zeros(2)}, {}), best_step=min(step, 2))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000002", "step-000005", "step-000006"]


def test_checkpoints_come_by_steps_by_minutes_and_at_the_end(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("burnish.runs.saving.time.monotonic", lambda: now[0])
    config = SFTConfig(demonstrations="-", save_every=4, save_minutes=10, keep_checkpoints=9)
    saving = Saving(Console(quiet=True), Run(tmp_path / "run"), config, StopSignals())
    for step in range(1, 12):
        now[0] += 250.0
        saving.after_step(step, reward=-abs(step - 6), is_last=step == 11)
    assert [c.step for c in saving.checkpoints.all()] == [3, 4, 7, 8, 11]  # 750 s are more than ten minutes
    assert saving.best == (8, -6 / 5)  # the mean of its last five steps: -2, -1, 0, -1, -2


def test_another_version_s_checkpoint_is_left_alone(tmp_path, monkeypatch):
    store = Checkpoints(tmp_path)
    monkeypatch.setattr("burnish.runs.checkpoints.FORMAT", 99)
    store.save(1, State({"w": torch.zeros(2)}, {}))
    monkeypatch.undo()
    with pytest.raises(NoCheckpointError, match=r"has format 99, this version of burnish reads \d+;.*'torch'"):
        store.latest()
    (listed,) = store.all()
    assert "has format 99" in listed.problem
    assert [p.name for p in tmp_path.iterdir()] == ["step-000001"]


def test_a_checkpoint_that_charged_the_kl_otherwise_says_so(tmp_path, monkeypatch):
    store = Checkpoints(tmp_path)
    monkeypatch.setattr("burnish.runs.checkpoints.FORMAT", 3)
    store.save(1, State({"w": torch.zeros(2)}, {}))
    monkeypatch.undo()
    with pytest.raises(NoCheckpointError, match=r"step-000001 cannot be resumed: .*over the kept set alone.*new run$"):
        store.latest()
    assert [p.name for p in tmp_path.iterdir()] == ["step-000001"]


def test_r8_damage_is_found_and_the_one_before_is_used(tmp_path):
    draw = random.Random(0)
    for trial in range(50):
        store = Checkpoints(tmp_path / str(trial), keep=2)
        for step in (1, 2):
            store.save(step, State({"w": torch.full((50,), float(step))}, {"step": step}))
        victim = draw.choice(sorted((tmp_path / str(trial) / "step-000002").iterdir()))
        kind = corrupt(victim, draw)
        messages = []
        step, state = store.latest(messages.append)
        assert (step, state.values) == (1, {"step": 1}), (trial, victim.name, kind)
        assert victim.name in messages[0]
        assert [p.name for p in (tmp_path / str(trial)).glob("damaged-*")] == ["damaged-000002"]


def test_r8_without_any_usable_checkpoint(fork_server, folder, whole):
    run = copy_of(whole, "broken")
    (run / "result.json").unlink()
    for manifest in run.rglob("MANIFEST.json"):
        manifest.write_text("{}")
    assert fork_server.run(folder, "verify", run).code == 4
    shown = fork_server.run(folder, "checkpoints", run).out
    steps = [str(int(p.name.removeprefix("step-"))) for p in sorted(run.glob("checkpoints/step-*"))]
    assert re.findall(r"^ *(\d+) .*MB +no +MANIFEST", shown, re.MULTILINE) == steps
    log = (run / "metrics.jsonl").read_text()
    for _ in range(2):  # nor does a second try start over and forget what there was
        outcome = fork_server.run(folder, "resume", run)
        assert outcome.code == 4
        assert "no checkpoint" in outcome.text
        assert "Traceback" not in outcome.text
    assert (run / "metrics.jsonl").read_text() == log


def test_r8_verify_tells_whole_from_damaged(fork_server, folder, whole):
    outcome = fork_server.run(folder, "verify", whole)
    assert outcome.code == 0, outcome.text
    assert "logs are whole: 6 steps, each once" in outcome.text
    lines = (whole / "metrics.jsonl").read_text().splitlines(keepends=True)
    samples = (whole / "samples.jsonl").read_text()
    for file, content, message in (
        ("metrics.jsonl", "".join(lines[:-1]), "does not hold every step"),
        ("metrics.jsonl", "", "does not hold every step"),
        ("metrics.jsonl", "".join([*lines, lines[-1]]), "does not hold every step"),
        ("samples.jsonl", samples[:-9], "the last line of"),
        ("samples.jsonl", "{\n" + samples, "is damaged"),
    ):
        run = copy_of(whole, f"looked-at-{len(content)}")
        (run / file).write_text(content)
        outcome = fork_server.run(folder, "verify", run)
        assert outcome.code == 4, (file, len(content), outcome.text)
        assert message in outcome.text


def test_r8_one_damaged_checkpoint_is_quarantined_and_the_run_ends_the_same(fork_server, folder, whole):
    run = copy_of(whole, "bitten")
    (run / "result.json").unlink()
    tensors = sorted(run.glob("checkpoints/step-*"))[-1] / "tensors.safetensors"
    content = bytearray(tensors.read_bytes())
    content[len(content) // 2] ^= 1
    tensors.write_bytes(content)
    outcome = fork_server.run(folder, "resume", run)
    assert outcome.code == 0, outcome.text
    assert "tensors.safetensors is not what was written" in outcome.text
    assert state_hash(run) == state_hash(whole)
