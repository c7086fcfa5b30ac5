"""Nothing is ever lost: a test for each promise of docs/reliability.md; the long ones are benchmarks/torture.py's."""

import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from rich.console import Console

import burnish
from burnish import DivergedError, InputError, PPOTrainer, cli
from burnish.checkpoints import Checkpoints, Saver, State
from burnish.config import RewardModelConfig, SFTConfig, TrainConfig, load_config, load_train_config
from burnish.config.pipeline_config import load_pipeline_config
from burnish.data import Demonstration, Prompt, places_of
from burnish.errors import NoCheckpointError, ResourceError, StoppedError
from burnish.guards import RunawayGuard, StopSignals
from burnish.runs import LOGS, Run
from burnish.sft_trainer import SFTTrainer
from burnish.stages.saving import hold
from burnish.training_state import compare_identity
from tiny import PROMPTS, tiny_config, tiny_model, tiny_tokenizer, tiny_trainer
from torments import corrupt, killed_and_resumed, log_of, make_workplace, soak, state_hash


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_workplace(tmp_path_factory.mktemp("reliability"))


@pytest.fixture(scope="module")
def whole(zygote, folder):
    """The run that nothing happened to."""
    outcome = zygote.run(folder, "train", "config.yaml", "run_name=whole")
    assert outcome.code == 0, outcome.text
    run = folder / "runs" / "whole"
    assert all(row["reward_std"] > 0.1 for row in log_of(run)[0])  # there is something to learn, and so to lose
    return run


def copy_of(run, name):
    return Path(shutil.copytree(run, run.parent / name))


def interrupted(zygote, folder, name, kill_at=13):
    """A run that was killed while it wrote its second checkpoint or so."""
    assert zygote.run(folder, "train", "config.yaml", f"run_name={name}", kill_at=kill_at, where="save").code == -9
    return folder / "runs" / name


# ------------------------------------------------------------------------------------------------------- exact resume


def test_r1_a_killed_run_ends_in_the_same_state(zygote, folder, whole):
    draw = random.Random(1)
    kills = [(1, "file"), (2, "file")]  # before there is a config, and before there is a first measurement
    kills += [(draw.randrange(1, 12), "save") for _ in range(3)] + [(draw.randrange(1, 8), "log") for _ in range(2)]
    hits = killed_and_resumed(zygote, folder, "killed", kills)
    assert hits == {"file": 2, "save": 3, "log": 2}
    assert state_hash(folder / "runs" / "killed") == state_hash(whole)


PIPELINE = """
model: {model_name: model, max_new_tokens: 6, lora_r: 4, save_every: 2}
sft: {demonstrations: demonstrations.jsonl, batch_size: 2, learning_rate: 0.01, num_eval_prompts: 2}
reward_model:
  {preferences: preferences.jsonl, batch_size: 2, learning_rate: 0.01, num_eval_prompts: 2, num_centring_prompts: 4}
ppo: {prompts: prompts.jsonl, num_eval_prompts: 4, batch_size: 4, steps: 3, save_every: 1}
best_of: 2
"""


def test_r1_a_stopped_or_killed_pipeline_goes_on_in_every_stage(zygote, folder):
    prompts = [f"number {i}:" for i in range(14)]
    demonstrations = [{"prompt": p, "completion": p[-3:]} for p in prompts]
    preferences = [{"prompt": p, "chosen": p[-3:], "rejected": p[:3]} for p in prompts]
    (folder / "demonstrations.jsonl").write_text("\n".join(map(json.dumps, demonstrations)))
    (folder / "preferences.jsonl").write_text("\n".join(map(json.dumps, preferences)))
    (folder / "pipeline.yaml").write_text(PIPELINE)
    whole, hurt = folder / "runs" / "pipe", folder / "runs" / "hurt"
    outcome = zygote.run(folder, "pipeline", "pipeline.yaml", "run_name=pipe")
    assert outcome.code == 0, outcome.text

    first = ("pipeline", "pipeline.yaml", "run_name=hurt")
    outcome = zygote.run(folder, *first, kill_at=2, signal=signal.SIGINT)
    assert outcome.code == 130, outcome.text
    assert "burnish resume runs/hurt" in outcome.text
    assert not (hurt / "reward").exists()  # a request to stop is one for all stages
    outcome = zygote.run(folder, "resume", "runs/hurt/sft")  # the pipeline held some of its prompts back
    assert outcome.code == 2
    assert "goes on with: burnish resume runs/hurt" in outcome.text
    stages_hit = set()
    for attempt in range(30):
        kill = {"kill_at": 7} if attempt % 2 else {"kill_at": 10, "where": "save"}
        outcome = zygote.run(folder, "resume", hurt, **kill)
        if outcome.code == 0:
            break
        assert outcome.code == -9, outcome.text
        (unfinished,) = (p.name for p in hurt.iterdir() if p.is_dir() and not (p / "result.json").exists())
        stages_hit.add(unfinished)
    assert outcome.code == 0
    assert stages_hit == {"sft", "reward", "ppo"}
    for stage in ("sft", "reward", "ppo"):
        assert state_hash(hurt / stage) == state_hash(whole / stage), stage
    verdicts = [json.loads((run / "ppo" / "verdict.json").read_text()) for run in (whole, hurt)]
    assert verdicts[0] == verdicts[1]

    # A finished pipeline goes on for more steps of PPO or from an earlier one; what is refused leaves no trace.
    kept = (hurt / ".pipeline.yaml").read_text()
    for settings, code in ((["ppo.seed=9"], 2), (["--from", "99", "ppo.learning_rate=0.5"], 4), (["sft.epochs=9"], 2)):
        assert zygote.run(folder, "resume", hurt, *settings).code == code
        assert (hurt / ".pipeline.yaml").read_text() == kept
    outcome = zygote.run(folder, "resume", hurt, "--from", "2", "ppo.learning_rate=0.002")
    assert outcome.code == 0, outcome.text
    assert "Going on after step 2 of 3" in outcome.text
    outcome = zygote.run(folder, "resume", hurt, "ppo.steps=4")
    assert outcome.code == 0, outcome.text
    assert [row["step"] for row in log_of(hurt / "ppo")[0]] == [1, 2, 3, 4]
    moved = hurt.rename(folder / "runs" / "elsewhere")
    assert zygote.run(folder, "resume", moved).code == 0
    outcome = zygote.run(folder, "eval", moved / "ppo", "--best-of", "1")
    assert outcome.code == 0, outcome.text


def test_r2_the_same_seed_twice_is_the_same_run(zygote, folder, whole):
    assert zygote.run(folder, "train", "config.yaml", "run_name=twin").code == 0
    assert state_hash(folder / "runs" / "twin") == state_hash(whole)
    assert log_of(folder / "runs" / "twin") == log_of(whole)
    assert zygote.run(folder, "train", "config.yaml", "run_name=other", "seed=2").code == 0
    assert state_hash(folder / "runs" / "other") != state_hash(whole)


def test_r3_resumed_after_every_step(zygote, folder, whole):
    for step in range(1, 6):
        name = f"stopped-{step}"
        # The kill comes with the first line of the step after, whatever a run logs.
        lines = sum(row["step"] <= step for log in LOGS for row in Run(whole).read_lines(log))
        outcome = zygote.run(folder, "train", "config.yaml", f"run_name={name}", "save_every=1", kill_at=lines + 1)
        assert outcome.code == -9, outcome.text
        resumed = zygote.run(folder, "resume", f"runs/{name}")
        assert resumed.code == 0, resumed.text
        assert f"Going on after step {step} of 6" in resumed.text
        assert state_hash(folder / "runs" / name, same_saves=False) == state_hash(whole, same_saves=False)


def test_r3_a_finished_run_says_so_and_does_nothing(zygote, folder, whole):
    before = {p: p.stat().st_mtime_ns for p in whole.rglob("*") if p.is_file()}
    for command in (("resume", "runs/whole"), ("train", "config.yaml", "run_name=whole")):
        outcome = zygote.run(folder, *command)
        assert outcome.code == 0
        assert "is finished" in outcome.text
    assert {p: p.stat().st_mtime_ns for p in whole.rglob("*") if p.is_file()} == before


def test_r3_from_an_earlier_checkpoint(zygote, folder, whole):
    run = copy_of(whole, "back")
    outcome = zygote.run(folder, "resume", "runs/back", "--from", "4")
    assert outcome.code == 0, outcome.text
    assert "Going on after step 4" in outcome.text
    assert state_hash(run) == state_hash(whole)
    assert zygote.run(folder, "resume", "runs/back", "--from", "3").code == 4


@pytest.mark.parametrize("kill_at", [1, 2, 3, 4])
def test_r3_a_kill_while_an_earlier_checkpoint_is_taken_up(zygote, folder, whole, kill_at):
    """It may not look finished with half of its logs."""
    run = copy_of(whole, f"back-{kill_at}")
    outcome = zygote.run(folder, "resume", run, "--from", "4", kill_at=kill_at, where="file")
    assert outcome.code == -9, outcome.text
    assert not (run / "result.json").exists() or log_of(run) == log_of(whole)
    assert zygote.run(folder, "resume", run).code == 0
    assert state_hash(run) == state_hash(whole)
    assert log_of(run) == log_of(whole)


def test_r3_a_finished_run_of_other_data_is_another(zygote, folder, whole):
    text = (folder / "prompts.jsonl").read_text()
    (folder / "others2.jsonl").write_text(text.replace("number 3:", "number 33:"))
    outcome = zygote.run(folder, "train", "config.yaml", "run_name=whole", "prompts=others2.jsonl")
    assert (outcome.code, "is finished, with other data" in outcome.text) == (2, True), outcome.text


def test_r3_a_finished_run_goes_on_for_more_steps_only(zygote, folder, whole):
    run = copy_of(whole, "longer")
    files = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    outcome = zygote.run(folder, "resume", run, "learning_rate=0.5")
    assert outcome.code == 2
    assert "is finished, with other settings (learning_rate: 0.001 -> 0.5)" in outcome.text
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == files  # what made the run is not rewritten

    outcome = zygote.run(folder, "resume", run, "steps=8", kill_at=2)  # stopped on the way, it is not finished
    assert outcome.code == -9
    outcome = zygote.run(folder, "resume", run)
    assert outcome.code == 0, outcome.text
    assert [row["step"] for row in log_of(run)[0]] == list(range(1, 9))

    bare = copy_of(whole, "bare")
    shutil.rmtree(bare / "checkpoints")
    log = (bare / "metrics.jsonl").read_text()
    assert zygote.run(folder, "resume", bare, "steps=8").code == 4
    assert (bare / "metrics.jsonl").read_text() == log


def test_r4_every_field_of_the_state_is_used():
    """Each in turn as it was in a fresh trainer: the next step is refused, or another one."""

    def next_step(trainer):
        results = trainer.ppo_step(PROMPTS)
        return results["sa_pairs"]["action"].tolist(), fingerprint(trainer)

    def fingerprint(trainer):
        state = trainer.state()
        return {k: t.tolist() for k, t in state.tensors.items()}, json.dumps(state.values)

    changes = {"adaptive_kl_target": 0.5, "mini_batch_size": 4, "adaptive_kl_horizon": 10, "lora_dropout": 0.0}
    changes |= {"lora_layers": 1, "lora_target_modules": ["v_proj"]}  # few fields of each kind
    trained = tiny_trainer(**changes)
    for _ in range(2):
        trained.ppo_step(PROMPTS)
    saved, fresh = trained.state(), tiny_trainer(**changes).state()
    expected = next_step(trained)

    def resumed(state):
        trainer = tiny_trainer(**changes)
        trainer.generator.agree_on_invocation(PROMPTS)
        trainer.restore(state)
        return next_step(trainer)

    assert resumed(State(dict(saved.tensors), json.loads(json.dumps(saved.values)))) == expected
    unused = []
    for name in saved.tensors:
        blank = dict(saved.tensors)
        blank[name] = fresh.tensors[name] if name in fresh.tensors else torch.zeros_like(blank[name])
        if torch.equal(blank[name], saved.tensors[name]):
            continue  # torch's own random numbers, which these steps do not draw from
        try:
            if resumed(State(blank, saved.values)) == expected:
                unused.append(name)
        except (NoCheckpointError, burnish.BurnishError):
            pass
    assert unused == []
    for name in saved.values:
        values = {k: v for k, v in saved.values.items() if k != name}
        with pytest.raises(NoCheckpointError, match=name):
            resumed(State(saved.tensors, values))
    trainer = tiny_trainer(**changes)
    draws = []
    for _ in range(2):  # a reward may draw from these
        trainer.restore(saved)
        draws.append((random.random(), np.random.random(), torch.rand(()).item()))
    assert draws[0] == draws[1]


def test_r5_other_data_and_another_model_are_refused(zygote, folder):
    run = interrupted(zygote, folder, "same")
    prompts = folder / "prompts.jsonl"
    before = prompts.read_text()
    prompts.write_text(before.replace("number 3:", "number 33:"))
    try:
        outcome = zygote.run(folder, "resume", run)
        assert outcome.code == 2
        assert "data changed" in outcome.text
    finally:
        prompts.write_text(before)
    tiny_model(seed=5).save_pretrained(folder / "model")
    try:
        outcome = zygote.run(folder, "resume", run)
        assert outcome.code == 2
        assert "base model" in outcome.text
    finally:
        tiny_model().save_pretrained(folder / "model")
    outcome = zygote.run(folder, "train", "config.yaml", "run_name=same", "seed=7")
    assert outcome.code == 2
    assert "seed: 1 -> 7" in outcome.text
    config = run / "config.yaml"
    before = config.read_text()
    assert zygote.run(folder, "resume", run, "learning_rate=0.5", "--from", "77").code == 4
    assert config.read_text() == before  # a refusal changes nothing
    config.write_text(before.replace("batch_size: 4", "batch_size: 2", 1))  # edited by hand: the checkpoint knows
    assert zygote.run(folder, "resume", run).code == 2  # and so does the proof whose config it is
    outcome = zygote.run(folder, "resume", run, "--trust")
    assert outcome.code == 2
    assert "batch_size: 4 -> 2" in outcome.text


@pytest.mark.parametrize("changed", ["data", "base model", "frozen adapters", "device"])
def test_r5_nothing_that_makes_the_run_may_change(changed):
    then = dict.fromkeys(("data", "base model", "frozen adapters", "versions", "threads", "device"), "same")
    assert compare_identity(then, dict(then)) == []
    assert "threads: same then, 3 now" in compare_identity(then, then | {"threads": 3})[0]
    with pytest.raises(InputError, match=f"{changed} changed since"):
        compare_identity(then, then | {changed: "other"})


def test_r5_a_finished_run_that_goes_on_is_checked_first(zygote, folder, whole):
    run = copy_of(whole, "further")
    for setting in ("eval_reward=sentimnt", "eval_reward=gone.py:f", "tracker=wandb"):
        assert zygote.run(folder, "resume", run, "steps=8", setting).code == 2
        assert (run / "result.json").is_file()
        assert (run / "verdict.json").is_file()


def test_r5_data_and_folders_may_be_moved(zygote, folder):
    run = interrupted(zygote, folder, "moved")
    shutil.copy(folder / "prompts.jsonl", folder / "elsewhere.jsonl")
    assert zygote.run(folder, "resume", run, "prompts=elsewhere.jsonl").code == 0


def test_r5_another_learning_rate_is_allowed_and_told(zygote, folder):
    run = interrupted(zygote, folder, "faster")
    outcome = zygote.run(folder, "resume", run, "learning_rate=0.002")
    assert outcome.code == 0, outcome.text
    assert "learning_rate: 0.001 -> 0.002" in outcome.text


def test_r5_another_price_of_kl_is_charged_from_there_on(zygote, folder):
    run = interrupted(zygote, folder, "dearer")
    done = int(max((run / "checkpoints").glob("step-*")).name.removeprefix("step-"))
    drifted = [row["kl_coef"] for row in log_of(run)[0]]
    assert drifted[done - 1] != drifted[0]  # it has a target, and is on its way there
    outcome = zygote.run(folder, "resume", run, "kl_coef=0.5")
    assert outcome.code == 0, outcome.text
    assert log_of(run)[0][done]["kl_coef"] == 0.5


def test_r5_a_mended_reward_is_allowed_and_told(zygote, folder):
    run = interrupted(zygote, folder, "mended")
    judge = folder / "judge.py"
    before = judge.read_text()
    judge.write_text(before.replace("/ 10", "* 10"))
    try:
        outcome = zygote.run(folder, "resume", run)
    finally:
        judge.write_text(before)
    assert outcome.code == 0, outcome.text
    assert "Changed: what the reward's files hold." in outcome.text
    start, result = (json.loads((run / name).read_text()) for name in ("start.json", "result.json"))
    assert max(start["evaluation"]["reward"]) > 1  # measured anew: both sides of the verdict by the same reward
    assert result["before"]["reward"]["mean"] == pytest.approx(np.mean(start["evaluation"]["reward"]))


def test_r6_logs_survive_kills(zygote, folder, whole):
    kills = [(n, where) for n in (2, 5, 7) for where in ("log", "torn", "save", "file")]
    hits = killed_and_resumed(zygote, folder, "logged", kills)
    assert hits["torn"] == 3
    assert log_of(folder / "runs" / "logged") == log_of(whole)
    probes = [json.loads(line) for line in (folder / "runs" / "logged" / "probes.jsonl").read_text().splitlines()]
    assert sorted((p["step"], p["prompt"]) for p in probes) == sorted(
        (p["step"], p["prompt"]) for p in map(json.loads, (whole / "probes.jsonl").read_text().splitlines())
    )


# ------------------------------------------------------------------------------------------------ disk and processes


def test_r7_a_full_disk_leaves_the_last_checkpoint_whole(tmp_path, monkeypatch):
    """Here the disk only says that it is full; below it is."""
    store = Checkpoints(tmp_path / "checkpoints", keep=1)  # the older one goes only when the new one is there
    store.save(1, State({"w": torch.arange(4.0)}, {"step": 1}))

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("burnish.disk.to_disk", full)
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


def test_r7_a_disk_that_fills_up_during_a_run(zygote, folder, small_disk, tmp_path):
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
    undisturbed = zygote.run(folder, *train, "run_name=roomy")
    assert undisturbed.code == 0, undisturbed.text
    (tmp_path / "switch").touch()
    outcome = zygote.run(folder, *train, f"run_dir={small_disk}", "run_name=cramped")
    assert outcome.code == 6, outcome.text
    assert re.search(r"(cannot save a checkpoint of \d+ kB in .*: )?the disk .*is full \(\d+ kB free\)", outcome.text)
    assert "Traceback" not in outcome.text
    assert all(c.problem is None for c in Checkpoints(small_disk / "cramped" / "checkpoints").all())
    (small_disk / "filler").unlink()
    (tmp_path / "switch").unlink()
    resumed = zygote.run(folder, "resume", small_disk / "cramped")
    assert resumed.code == 0, resumed.text
    assert state_hash(small_disk / "cramped") == state_hash(folder / "runs" / "roomy")
    assert log_of(small_disk / "cramped") == log_of(folder / "runs" / "roomy")


def test_r7_space_is_checked_before_the_first_step(zygote, folder, small_disk):
    (small_disk / "filler").write_bytes(bytes(20 * 2**20))
    outcome = zygote.run(folder, "train", "config.yaml", f"run_dir={small_disk}", "run_name=tight")
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
    monkeypatch.setattr("burnish.checkpoints.time.monotonic", lambda: now[0])
    saver = Saver(Checkpoints(tmp_path), State, every_steps=4, every_minutes=10)
    saved = []
    for step in range(1, 12):
        now[0] += 250.0
        if saver.after_step(step, reward=-abs(step - 6), is_last=step == 11, must_save=False):
            saved.append(step)
    assert saved == [3, 4, 7, 8, 11]  # 750 s are more than ten minutes
    assert saver.best == (8, -6 / 5)  # the mean of its last five steps: -2, -1, 0, -1, -2


def test_another_version_s_checkpoint_is_left_alone(tmp_path, monkeypatch):
    store = Checkpoints(tmp_path)
    monkeypatch.setattr("burnish.checkpoints.FORMAT", 99)
    store.save(1, State({"w": torch.zeros(2)}, {}))
    monkeypatch.undo()
    with pytest.raises(NoCheckpointError, match=r"has format 99, this version of burnish reads \d+;.*'torch'"):
        store.latest()
    (listed,) = store.all()
    assert "has format 99" in listed.problem
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


def test_r8_without_any_usable_checkpoint(zygote, folder, whole):
    run = copy_of(whole, "broken")
    (run / "result.json").unlink()
    for manifest in run.rglob("MANIFEST.json"):
        manifest.write_text("{}")
    assert zygote.run(folder, "verify", run).code == 4
    shown = zygote.run(folder, "checkpoints", run).out
    steps = [str(int(p.name.removeprefix("step-"))) for p in sorted(run.glob("checkpoints/step-*"))]
    assert re.findall(r"^ *(\d+) .*MB +no +MANIFEST", shown, re.MULTILINE) == steps
    log = (run / "metrics.jsonl").read_text()
    for _ in range(2):  # nor does a second try start over and forget what there was
        outcome = zygote.run(folder, "resume", run)
        assert outcome.code == 4
        assert "no checkpoint" in outcome.text
        assert "Traceback" not in outcome.text
    assert (run / "metrics.jsonl").read_text() == log


def test_r8_verify_tells_whole_from_damaged(zygote, folder, whole):
    outcome = zygote.run(folder, "verify", whole)
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
        outcome = zygote.run(folder, "verify", run)
        assert outcome.code == 4, (file, len(content), outcome.text)
        assert message in outcome.text


def test_r8_one_damaged_checkpoint_is_quarantined_and_the_run_ends_the_same(zygote, folder, whole):
    run = copy_of(whole, "bitten")
    (run / "result.json").unlink()
    tensors = sorted(run.glob("checkpoints/step-*"))[-1] / "tensors.safetensors"
    content = bytearray(tensors.read_bytes())
    content[len(content) // 2] ^= 1
    tensors.write_bytes(content)
    outcome = zygote.run(folder, "resume", run)
    assert outcome.code == 0, outcome.text
    assert "tensors.safetensors is not what was written" in outcome.text
    assert state_hash(run) == state_hash(whole)


def waiting_for(file, lines=1):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if file.is_file() and len(file.read_text().splitlines()) >= lines:
            return
        time.sleep(0.05)
    raise AssertionError(f"{file} did not come")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_r9_a_signal_saves_first(zygote, folder, number, code):
    name = f"signal-{code}"
    pid = zygote.start(folder, "train", "config.yaml", f"run_name={name}", "steps=100000", "save_every=0")
    waiting_for(folder / "runs" / name / "metrics.jsonl")
    os.kill(pid, number)
    outcome = zygote.wait(pid)
    assert outcome.code == code, outcome.text
    assert "burnish resume" in outcome.text
    assert "Traceback" not in outcome.text
    (saved,) = Checkpoints(folder / "runs" / name / "checkpoints").all()
    assert saved.problem is None
    assert saved.step == len((folder / "runs" / name / "metrics.jsonl").read_text().splitlines())


def test_r9_twice_is_out_at_once(zygote, folder):
    (folder / "slow.py").write_text(
        "import time\ncalls = 0\ndef f(p, r):\n    global calls\n    calls += 1\n"
        "    time.sleep(30 if calls > 3 else 0)\n    return [float(len(x)) for x in r]\n"
    )
    pid = zygote.start(folder, "train", "config.yaml", "run_name=twice", "reward=slow.py:f", "steps=1000")
    waiting_for(folder / "runs" / "twice" / "config.yaml")
    time.sleep(1.0)
    os.kill(pid, signal.SIGINT)
    time.sleep(0.3)
    os.kill(pid, signal.SIGINT)
    started = time.monotonic()
    assert zygote.wait(pid).code in (-2, 130)
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
            pytest.raises(StoppedError, match=r"before the first step of .*run\. Go on with") as stopped,
            hold(Console(quiet=True), run, tiny_config()),
        ):
            pytest.fail("the stage has begun")
    assert stopped.value.exit_code == 143


def test_r10_one_process_per_run_folder(zygote, folder):
    for trial in range(5):
        pids = [zygote.start(folder, "train", "config.yaml", f"run_name=both-{trial}", "steps=3") for _ in range(2)]
        outcomes = sorted((zygote.wait(pid) for pid in pids), key=lambda o: o.code)
        assert [o.code for o in outcomes] in ([0, 3], [0, 0]), [o.text for o in outcomes]
        if outcomes[1].code == 3:
            assert re.search(r"in use by process \d+ since \d{4}-", outcomes[1].text)
        else:  # the second came when the first was done
            assert any("is finished" in o.text for o in outcomes)


# ----------------------------------------------------------------------------------------------- rewards and numbers


@pytest.mark.parametrize(
    ("body", "message", "calls"),
    [
        ("return [float('nan') if x == bad else 1.0 for x in r]", "nan", 2),
        ("return [float('inf') if x == bad else 1.0 for x in r]", "inf", 2),
        ("return [None if x == bad else 1.0 for x in r]", "None, not a number", 2),
        ("return ['good' if x == bad else 1.0 for x in r]", "'good', not a number", 2),
        ("return [1.0] * (len(r) - (bad in r))", "values for", 10),
        ("assert bad not in r; return [1.0] * len(r)", "AssertionError", 10),
    ],
)
def test_r11_a_response_that_cannot_be_scored_is_left_out(body, message, calls):
    """Named, asked again, then left out: never in the loss, never scored 0."""
    seen = []

    def judge(prompts, r):
        seen.append(list(r))
        if len(seen) == 1:
            judge.bad = r[3]
        bad = judge.bad
        return eval_body(body, r, bad)

    trainer = tiny_trainer(judge)
    with pytest.warns(UserWarning, match=rf"response 3 is left out.*{re.escape(message)}"):
        results = trainer.ppo_step(PROMPTS)
    assert len(seen) == calls  # asked and asked again; if that failed altogether, for each of the eight alone
    assert len(results["rewards"]) == results["sa_pairs"].mask.shape[0] == len(PROMPTS) - 1
    assert judge.bad not in results["generated_texts"]


def eval_body(body, r, bad):
    namespace = {}
    exec("def f(r, bad):\n    " + body, namespace)
    return namespace["f"](r, bad)


def write_others(folder):
    """Prompts to train on that are none of those measured on."""
    (folder / "others.jsonl").write_text("\n".join(json.dumps({"prompt": f"number {i}:"}) for i in range(20, 30)))


def test_r11_held_out_answers_that_cannot_be_scored_are_left_out(zygote, folder):
    (folder / "picky.py").write_text(
        "def f(p, r):\n    return [float('nan') if x.startswith('number 1') else float(len(y)) for x, y in zip(p, r)]\n"
    )
    rows = [{"prompt": f"number {i}:"} for i in (1, 2, 3, 4)]
    (folder / "held_out.jsonl").write_text("\n".join(map(json.dumps, rows)))
    write_others(folder)
    settings = ("prompts=others.jsonl", "eval_prompts=held_out.jsonl", "num_eval_prompts=0", "reward=picky.py:f")
    outcome = zygote.run(folder, "train", "config.yaml", "run_name=picky", *settings)
    assert outcome.code == 0, outcome.text
    answers = json.loads((folder / "runs" / "picky" / "verdict.json").read_text())["answers"]
    assert [a["prompt"] for a in answers] == ["number 2:", "number 3:", "number 4:"]


def test_r11_a_held_out_answer_without_a_score_does_not_end_the_run(zygote, folder):
    """Not even if it is alone in the last batch of the measurement."""
    (folder / "fifth.py").write_text(
        "def f(p, r):\n    return [float('nan') if x == 'number 5:' else float(len(y)) for x, y in zip(p, r)]\n"
    )
    write_others(folder)
    (folder / "five.jsonl").write_text("\n".join(json.dumps({"prompt": f"number {i}:"}) for i in range(1, 6)))
    settings = ("prompts=others.jsonl", "eval_prompts=five.jsonl", "num_eval_prompts=0", "reward=fifth.py:f")
    outcome = zygote.run(folder, "train", "config.yaml", "run_name=fifth", "steps=2", *settings)
    assert outcome.code == 0, outcome.text
    assert "1 held-out answers have no reward" in outcome.text
    answers = json.loads((folder / "runs" / "fifth" / "verdict.json").read_text())["answers"]
    assert [a["prompt"] for a in answers] == [f"number {i}:" for i in range(1, 5)]
    (folder / "fifth.py").write_text(
        "def f(p, r):\n    return [float('nan') if x[7:] in '1:2:3:' else float(len(y)) for x, y in zip(p, r)]\n"
    )
    outcome = zygote.run(folder, "train", "config.yaml", "run_name=most", *settings)
    assert outcome.code == 2
    assert "more than half of the responses could not be scored: reward f, response 0 is nan" in outcome.text
    settings = (*settings[:-1], "reward=judge.py:score", "eval_reward=fifth.py:f")
    outcome = zygote.run(folder, "train", "config.yaml", "run_name=second", *settings)
    assert outcome.code == 2
    assert "more than half of the responses could not be scored" in outcome.text
    assert not (folder / "runs" / "second" / "metrics.jsonl").exists()  # found before the first step


def test_r11_rewards_of_tokens_as_many_as_there_are():
    """A response with too many or too few, or with one number where others have lists, is left out alone."""
    odd = {1: lambda tokens: [0.0] * (len(tokens) + 1), 4: lambda tokens: 0.5}

    def judge(prompts, responses, tokens):
        rows = [PROMPTS.index(p) for p in prompts]
        return [odd.get(row, lambda t: [0.1] * len(t))(t) for row, t in zip(rows, tokens, strict=True)]

    with pytest.warns(UserWarning, match=r"response \d is left out.*per-token rewards need one each"):
        results = tiny_trainer(judge).ppo_step(PROMPTS)
    assert results["left_out"] == 2
    assert results["prompts"] == [p for n, p in enumerate(PROMPTS) if n not in odd]


def test_r11_a_hanging_function_is_cut_at_the_time_limit(tmp_path):
    (tmp_path / "hang.py").write_text(
        "import time\ndef f(prompts, responses):\n"
        "    if len(prompts) > 1 or prompts[0] == 'go:':\n        time.sleep(1000)\n"
        "    return [1.0 + len(x) for x in responses]\n"
    )
    config = tiny_config(reward=f"{tmp_path}/hang.py:f", reward_timeout=1.0)
    trainer = PPOTrainer(config, None, tiny_model(), tiny_tokenizer())
    started = time.monotonic()
    with pytest.warns(UserWarning, match=r"response 6 is left out.*took more than 1 s"):
        results = trainer.ppo_step(PROMPTS)
    assert time.monotonic() - started < 60
    assert len(results["rewards"]) == len(PROMPTS) - 1


def test_r11_the_worker_runs_nothing_that_lies_about_and_ends_with_its_trainer(tmp_path):
    (tmp_path / "inspect.py").write_text("raise SystemExit(9)")
    (tmp_path / "spin.py").write_text(
        "import os, time\ndef f(p, r):\n    open('pid', 'w').write(str(os.getpid()))\n    time.sleep(1000)\n"
    )
    script = "from burnish.rewards.isolated import IsolatedFunction as F; F('spin.py:f')(['p'], ['r'])"
    trainer = subprocess.Popen([sys.executable, "-P", "-c", script], cwd=tmp_path)
    waiting_for(tmp_path / "pid")
    worker = int((tmp_path / "pid").read_text())
    os.kill(worker, signal.SIGINT)  # a Ctrl-C reaches it too, and is not for it
    time.sleep(0.2)
    os.kill(worker, 0)
    trainer.kill()
    trainer.wait()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{worker}").exists()


def test_r11_a_reward_that_mostly_fails_ends_the_run():
    with (
        pytest.raises(InputError, match="more than half of the responses could not be scored"),
        pytest.warns(UserWarning, match="left out"),
    ):
        tiny_trainer(lambda p, r: [float("nan")] * len(r)).ppo_step(PROMPTS)


@pytest.mark.parametrize("where", ["policy", "value"])
def test_r12_numbers_that_are_none_stop_before_the_update(where):
    trainer = tiny_trainer()
    trainer.ppo_step(PROMPTS)
    role = trainer.policy if where == "policy" else trainer.value_model
    before = [p.clone() for p in role.parameters()]
    before[0].view(-1)[0] = float("nan")
    with torch.no_grad():
        role.parameters()[0].view(-1)[0] = float("nan")
    message = "policy's logits are not finite" if where == "policy" else r"value of response \d, token \d became nan"
    with pytest.raises(DivergedError, match=message):
        trainer.ppo_step(PROMPTS)
    assert all(torch.equal(a.nan_to_num(9), b.nan_to_num(9)) for a, b in zip(before, role.parameters(), strict=True))


def test_r12_a_gradient_that_is_no_number_stops_too():
    trainer = tiny_trainer()
    weight = trainer.policy.parameters()[1]
    weight.register_hook(lambda grad: grad * float("nan"))
    before = weight.clone()
    with pytest.raises(
        DivergedError, match=r"policy gradient norm became nan \(by response \d\) before an optimizer step"
    ):
        trainer.ppo_step(PROMPTS)
    assert torch.equal(before, weight)


@pytest.mark.parametrize(
    ("method", "what"), [("values", "value in training"), ("logprobs", "policy's log-probability")]
)
def test_r12_a_number_that_is_none_in_training_names_its_response(monkeypatch, method, what):
    trainer = tiny_trainer(micro_batch_size=2)
    model = trainer.value_model if method == "values" else trainer.policy
    original = getattr(model, method)

    def planted(context, mask, *rest):
        result = original(context, mask, *rest)
        if torch.is_grad_enabled():  # not in the rollout
            result = result * torch.where(context.prompt_mask.sum(1) == longest, torch.nan, 1.0)[:, None]
        return result

    longest = max(map(len, trainer.setup.encoder.encode(PROMPTS)))
    monkeypatch.setattr(model, method, planted)
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(DivergedError, match=rf"{what}.* of response 3, token 0 became nan"):
        trainer.ppo_step(PROMPTS)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_r12_models_that_an_update_ruined_are_not_saved(zygote, folder):
    settings = (
        "max_kl=null",
        "target_kl_stop=null",
        "save_every=1",
        "mini_batch_size=4",
        "epochs=1",
    )
    outcome = zygote.run(folder, "train", "config.yaml", "run_name=ruined", *settings, ruinous=True)
    assert outcome.code == 5, outcome.text
    assert "the updates of step 1 ruined the" in outcome.text
    run = folder / "runs" / "ruined"
    assert not list((run / "checkpoints").glob("step-*"))
    assert not (run / "adapters").exists()  # no more than a checkpoint
    assert (run / "diverged-step-1.jsonl").exists()


def test_r12_nor_is_a_supervised_model_that_an_update_ruined(zygote, folder):
    rows = [{"prompt": f"number {i}:", "completion": "abc"} for i in range(14)]
    (folder / "ruinous.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "sft.yaml").write_text(
        "model_name: model\ndemonstrations: ruinous.jsonl\nnum_eval_prompts: 2\nlora_r: 4\nbatch_size: 4\nepochs: 1\n"
    )
    for name, saves in (("often", "save_every=1"), ("at-the-end", "save_every=0")):
        outcome = zygote.run(folder, "sft", "sft.yaml", f"run_name={name}", saves, ruinous=True)
        assert outcome.code == 5, outcome.text
        run = folder / "runs" / name
        assert not list((run / "checkpoints").glob("step-*"))
        assert not (run / "adapters").exists()
        assert "There is no checkpoint yet" in outcome.text


def test_a_look_at_the_model_does_not_move_its_dropout():
    """A checkpoint more or less must not change a run."""

    def train(look):
        config = SFTConfig(model_name="tiny", demonstrations="-", lora_r=4, batch_size=4, epochs=1, lora_dropout=0.5)
        trainer = SFTTrainer(config, tiny_model(), tiny_tokenizer())
        rows = [Demonstration(p, "yes") for p in PROMPTS]
        return trainer.train(rows, lambda _: trainer.trainer.sound_state() if look else None)[-1]["loss"]

    assert train(look=True) == train(look=False)


def test_r12_a_supervised_stage_names_the_row():
    config = SFTConfig(model_name="tiny", demonstrations="-", lora_r=4, batch_size=8, epochs=1)
    trainer = SFTTrainer(config, tiny_model(), tiny_tokenizer())
    original = trainer.trainer.loss_of
    trainer.trainer.loss_of = lambda batch: (
        original(batch)[0] * (float("nan") if any(len(t.answer) == 4 for t in batch) else 1.0), {}
    )  # fmt: skip
    rows = [Demonstration(p, "yes" if p == PROMPTS[5] else "no") for p in PROMPTS]
    before = [p.clone() for p in trainer.model.parameters()]
    with pytest.raises(DivergedError, match=r"loss became nan \(by training row 6\) before update 1; no weight"):
        trainer.train(rows)
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
    rows[5] = Demonstration(Prompt(PROMPTS[5], "file.jsonl:9"), "yes")
    assert places_of(rows)[5] == "file.jsonl:9"


def test_r12_the_batch_is_kept_and_the_last_good_checkpoint_named(zygote, folder):
    settings = ("run_name=wild", "max_kl=null", "save_every=1")
    assert zygote.run(folder, "train", "config.yaml", *settings, kill_at=11).code == -9  # in step 4
    outcome = zygote.run(folder, "train", "config.yaml", *settings, ruinous=True)
    assert outcome.code == 5, outcome.text
    assert "Traceback" not in outcome.text
    run = folder / "runs" / "wild"
    steps = [int(p.name.removeprefix("step-")) for p in sorted(run.glob("checkpoints/step-*"))]
    assert steps[-1] >= 2
    earlier = ", ".join(map(str, steps[:-1]))
    assert f"last good checkpoint is of step {steps[-1]} (or {earlier}, from before the trouble)" in outcome.text
    assert f"burnish resume {run.relative_to(folder)} --from STEP learning_rate=..." in outcome.text
    assert not (run / "adapters").exists()  # they may be ruined
    (dump,) = run.glob("diverged-step-*.jsonl")
    assert f"The responses of step {dump.stem.rpartition('-')[2]} are in" in outcome.text
    rows = [json.loads(line) for line in dump.read_text().splitlines()]
    assert len(rows) == 4  # the whole batch
    assert all({"response", "tokens", "logprob_policy"} <= set(row) or "prompt" in row for row in rows)


def test_r13_a_runaway_policy_is_stopped(zygote, folder):
    run = ("train", "config.yaml", "steps=60", "kl_coef=0", "learning_rate=0.1", "max_kl=0.05", "top_k=0", "top_p=1")
    outcome = zygote.run(folder, *run, "run_name=runaway")
    assert outcome.code == 5, outcome.text
    assert "runs away from its reference. Lower learning_rate" in outcome.text
    logged = [row["kl"] / row["response_tokens"] > 0.05 for row in log_of(folder / "runs" / "runaway")[0]]
    assert logged[-3:] == [False, True, True]  # the third in a row ended it
    early = tiny_trainer(learning_rate=0.1, epochs=4)  # a hundred times the tests' usual, with the default guard
    early.ppo_step(PROMPTS)
    assert early.policy.num_updates < 4  # the epoch was left


def test_r13_a_policy_that_comes_back_in_time_goes_on():
    guard = RunawayGuard(max_kl=1.0)
    for kl in (2.0, 2.0, 0.5, 2.0, 2.0, 1.0, 2.0, 2.0):
        guard.check(kl)
    with pytest.raises(DivergedError, match=r"2\.0 nats per token, beyond max_kl 1 for 3 steps in a row"):
        guard.check(2.0)


def test_r13_a_constant_reward_is_told():
    trainer = tiny_trainer(lambda prompts, responses: [1.0] * len(responses))
    for _ in range(2):
        trainer.ppo_step(PROMPTS)
    with pytest.warns(UserWarning, match="every response got the reward 1, 3 steps in a row: PPO has nothing to learn"):
        trainer.ppo_step(PROMPTS)


def test_memory_that_runs_out_while_loading_is_no_traceback(tmp_path, monkeypatch, capsys):
    make_workplace(tmp_path)

    def too_large(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", too_large)
    monkeypatch.setattr("sys.argv", ["burnish", "train", str(tmp_path / "config.yaml"), f"run_dir={tmp_path / 'runs'}"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 6
    assert "memory ran out; end other programs, or choose a smaller model" in capsys.readouterr().err


def test_memory_that_runs_out_in_a_supervised_stage_costs_time_not_the_result():
    def loss(limit):
        config = SFTConfig(model_name="tiny", demonstrations="-", lora_r=4, batch_size=8, epochs=2, lora_dropout=0.0)
        trainer = SFTTrainer(config, tiny_model(), tiny_tokenizer())
        original = trainer.trainer.loss_of

        def scarce(batch):
            if len(batch) > limit:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")
            return original(batch)

        trainer.trainer.loss_of = scarce
        return trainer.train([Demonstration(p, "yes") for p in PROMPTS])[-1]["loss"]

    plenty = loss(100)
    with pytest.warns(UserWarning, match="a pass takes at most 2 rows"):
        assert loss(2) == pytest.approx(plenty, abs=1e-6)
    with pytest.raises(RuntimeError, match="allocate memory"), pytest.warns(UserWarning, match="at most 1 rows"):
        loss(0)


def test_memory_that_runs_out_anywhere_else_ends_with_advice(tmp_path):
    with (
        pytest.raises(ResourceError, match=r"memory ran out. Lower batch_size.*give the same command again"),
        hold(Console(quiet=True), Run(tmp_path / "run"), None),
    ):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")


def test_memory_that_runs_out_costs_time_not_the_result(monkeypatch):
    import burnish.ppo_trainer.model_trainer as module

    def losses(limit):
        original = module.accumulate_gradients

        def scarce(mini_batch, loss_of):
            if any(len(rows) > limit for _, rows in mini_batch.parts):
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")
            return original(mini_batch, loss_of)

        monkeypatch.setattr(module, "accumulate_gradients", scarce)
        results = tiny_trainer().ppo_step(PROMPTS)
        monkeypatch.undo()
        return results["policy_loss"], results["value_loss"]

    plenty = losses(100)
    with pytest.warns(UserWarning, match="smaller pieces"):
        scarce = losses(2)
    assert scarce == pytest.approx(plenty, abs=1e-6)
    with pytest.raises(ResourceError, match="not enough memory"), pytest.warns(UserWarning, match="smaller pieces"):
        losses(0)


# ------------------------------------------------------------------------------------------------- input and resources


def test_r14_prompts_at_the_edges(zygote, folder):
    (folder / "edges.txt").write_text(
        "\n".join(["number 1:", "x" * 240 + ":", "number 2:", ":", "a:", "b:", "c:", "d:"])
    )
    outcome = zygote.run(
        folder, "train", "config.yaml", "run_name=edges", "prompts=edges.txt", "max_new_tokens=1", "num_eval_prompts=2"
    )
    assert outcome.code == 0, outcome.text
    rows = log_of(folder / "runs" / "edges")[0]
    assert all(row["finished"] < 1 for row in rows)  # cut off, and counted
    assert all(row[key] == row[key] for row in rows for key in row if isinstance(row[key], float))


@pytest.mark.parametrize(
    ("prompt", "message"), [("  ", "'prompt' is empty"), ("x" * 300, "has 300 tokens; with max_new_tokens 6 the model")]
)
def test_r14_prompts_beyond_the_edges(zygote, folder, prompt, message):
    (folder / "beyond.jsonl").write_text("\n".join(json.dumps({"prompt": p}) for p in ("a:", "b:", prompt, "c:", "d:")))
    outcome = zygote.run(
        folder, "train", "config.yaml", "run_name=beyond", "prompts=beyond.jsonl", "num_eval_prompts=0"
    )
    assert outcome.code == 2
    assert message in outcome.text
    assert "beyond.jsonl:3" in outcome.text


@pytest.mark.parametrize("case", ["stop token first", "pad is stop token", "no pad token", "never a stop token"])
def test_r14_stop_and_pad_tokens_at_the_edges(case):
    model, tokenizer = tiny_model(), tiny_tokenizer(pad=case != "no pad token")
    if case == "stop token first":
        model.generation_config.eos_token_id = list(range(258))
    if case == "pad is stop token":
        tokenizer.pad_token = tokenizer.eos_token
    trainer = PPOTrainer(tiny_config(top_k=0, top_p=1.0), lambda p, r: [float(len(x)) for x in r], model, tokenizer)
    if case == "never a stop token":
        trainer.base.__class__ = type("NeverStops", (type(trainer.base),), {"stop_ids": []})
    for _ in range(2):
        results = trainer.ppo_step(PROMPTS)
        assert all(math.isfinite(v) for v in results.values() if isinstance(v, float))
        finished = results["finished"]
        assert finished == {"stop token first": 1.0, "never a stop token": 0.0}.get(case, finished)
        if case == "stop token first":
            assert results["response_tokens"] == 1.0


def test_r15_fewer_prompts_than_the_batch_are_refused(zygote, folder):
    (folder / "few.txt").write_text("a:\nb:\nc:\n")
    outcome = zygote.run(folder, "train", "config.yaml", "run_name=few", "prompts=few.txt", "num_eval_prompts=0")
    assert outcome.code == 2
    assert "there are 3 prompts to train on, fewer than batch_size 4" in outcome.text
    assert not (folder / "runs" / "few").exists()


def test_r15_all_bad_files_are_told_at_once(zygote, folder):
    (folder / "one.jsonl").write_text("{bad\n")
    (folder / "two.jsonl").write_text('{"prompt": 3}\n')
    settings = ("prompts=one.jsonl", "eval_prompts=two.jsonl", "run_name=both-bad")
    outcome = zygote.run(folder, "train", "config.yaml", *settings)
    assert outcome.code == 2
    assert "one.jsonl:1: not valid JSON" in outcome.text
    assert "two.jsonl:1: 'prompt' is of type int" in outcome.text


def test_r15_a_second_reward_and_a_tracker_are_checked_before_loading(zygote, folder):
    for setting, message in (
        ("eval_reward=sentimental", "did you mean 'sentiment'"),
        ("tracker=wandb", "needs a package"),
    ):
        outcome = zygote.run(folder, "train", "config.yaml", setting, "run_name=early", "model_name=/no/such/model")
        assert outcome.code == 2
        assert message in outcome.text


def test_r15_every_missing_reference_is_told_before_loading(zygote, folder):
    rows = [{"prompt": f"number {i}:", "reference": "7" if i % 2 else None} for i in range(14)]
    lines = [json.dumps({k: v for k, v in row.items() if v}) for row in rows]
    (folder / "some.jsonl").write_text("\n".join(lines))
    settings = ("prompts=some.jsonl", "run_name=early", "model_name=/no/such/model")
    outcome = zygote.run(folder, "train", "config.yaml", "reward=rouge_l", *settings)
    assert outcome.code == 2
    assert "rouge_l compares with a reference, and 7 prompts (" in outcome.text
    assert len(re.findall(r"some.jsonl:\d*[13579][,)]?", outcome.text)) == 3  # the first three, and the count
    (folder / "some.jsonl").write_text("\n".join(json.dumps(row | {"reference": "seven"}) for row in rows))
    outcome = zygote.run(folder, "train", "config.yaml", "reward=exact_number", *settings)
    assert "exact_number: 14 prompts (" in outcome.text
    assert "have a reference without a number" in outcome.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"prompt": "a:"}\n{bad\n', "2: not valid JSON"),
        (b'{"prompt": "\xff"}\n', "UTF-8"),
        (b'\xef\xbb\xbf{"prompt": 3}\r\n', "1: "),
        (b'{"prompts": "a"}\n', "no key 'prompt'"),
        (b'{"prompt": null}\n', "1: "),
        (b"", "holds no prompts"),
    ],
)
def test_r15_data_files_that_cannot_be_used(zygote, folder, content, message):
    (folder / "bad.jsonl").write_bytes(content)
    outcome = zygote.run(folder, "train", "config.yaml", "run_name=bad", "prompts=bad.jsonl")
    assert outcome.code == 2
    assert message in outcome.text
    assert "Traceback" not in outcome.text
    assert not (folder / "runs" / "bad").exists()


def one_edit(word, draw):
    at = draw.randrange(len(word))
    return draw.choice([word[:at] + word[at + 1 :], word[:at] + "q" + word[at:], word[:at] + "q" + word[at + 1 :]])


@pytest.mark.parametrize(
    ("kind", "data"),
    [(TrainConfig, "prompts"), (SFTConfig, "demonstrations"), (RewardModelConfig, "preferences")],
)
def test_r16_every_key_misspelt_by_one_edit_is_refused(tmp_path, kind, data):
    draw = random.Random(0)
    for key in kind.model_fields:
        wrong = one_edit(key, draw)
        if wrong in kind.model_fields or not wrong:
            continue
        (tmp_path / "c.yaml").write_text(yaml.safe_dump({data: "a.txt", wrong: 1, "batch_size": 0}))
        with pytest.raises(InputError, match="2 errors") as e:
            load_config(kind, tmp_path / "c.yaml")
        message = str(e.value)
        assert "batch_size: " in message
        assert f"unknown key {wrong!r}" in message
        assert len(key) < 4 or f"did you mean {key!r}" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prompts: a.txt\nlearning_rate: 1e-5\nlearning_rate: 2e-5\n", "stands twice"),
        ("prompts: a.txt\n\tsteps: 3\n", "not valid YAML"),
        ("prompts: a.txt\nrun_name: no\n", "run_name"),
    ],
)
def test_r16_yaml_traps(tmp_path, text, message):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(InputError, match=message):
        load_train_config(tmp_path / "c.yaml")


def test_r16_a_number_that_yaml_reads_as_text_is_a_number(tmp_path):
    (tmp_path / "c.yaml").write_text("prompts: a.txt\nlearning_rate: 1e-5\n")
    assert load_train_config(tmp_path / "c.yaml").learning_rate == 1e-5


def test_r17_a_soak_neither_grows_nor_leaks(folder):
    growth, handles = soak(folder, 60)
    assert growth < 0.05
    assert len(set(handles)) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "config.yaml", "steps=1", "run_name=offline"],
        pytest.param(["demo", "--task", "sentiment", "--steps", "1"], marks=pytest.mark.real_model),
    ],
)
def test_r18_no_network(tmp_path, arguments):
    """A run in a process that cannot open a socket to anywhere."""
    make_workplace(tmp_path)
    script = (
        "import socket, sys\n"
        "def refuse(*a, **k): raise OSError('no network')\n"
        "socket.socket.connect = refuse; socket.create_connection = refuse; socket.getaddrinfo = refuse\n"
        f"sys.argv = ['burnish', *{arguments!r}]\n"
        "from burnish.cli import main; main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------------------------------------------------ security

SOURCES = sorted((Path(burnish.__file__).parent).rglob("*.py"))


def test_no_pickle_no_torch_load_no_shell():
    for file in SOURCES:
        text = file.read_text()
        for pattern in (
            r"\bpickle\b",
            r"torch\.load\(",
            r"shell\s*=\s*True",
            r"os\.system",
            r"yaml\.load\((?!text, Loader=_Strict)",
        ):
            assert not re.search(pattern, text), f"{file.name}: {pattern}"
        assert "trust_remote_code=True" not in text


def test_planted_secrets_are_in_no_file_that_a_run_writes(tmp_path):
    make_workplace(tmp_path)
    secret = "hf_planted0123456789secret"
    environment = os.environ | {"HF_TOKEN": secret, "WANDB_API_KEY": secret, "OMP_NUM_THREADS": "1"}
    (tmp_path / "prompts.jsonl").write_text("\n".join(json.dumps({"prompt": f"{secret} {i}:"}) for i in range(14)))
    (tmp_path / "leaky.py").write_text(
        "import os\ndef f(p, r):\n    if ' 3:' in p[0] and len(p) == 1: raise ValueError(os.environ['HF_TOKEN'])\n"
        "    assert len(p) == 1 or 'first' in r[0]\n    return [float(len(x)) for x in r]\n"
    )
    for arguments in (["train", "config.yaml", "reward=leaky.py:f", "run_name=secret"], ["report", "runs/secret"]):
        command = [sys.executable, "-m", "burnish.cli", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert secret not in done.stdout + done.stderr
    assert (tmp_path / "runs" / "secret" / "report.html").is_file()
    assert re.search(r"\[(WANDB_API_KEY|HF_TOKEN)\] ", (tmp_path / "runs" / "secret" / "samples.jsonl").read_text())
    for file in (tmp_path / "runs").rglob("*"):
        assert not file.is_file() or secret.encode() not in file.read_bytes(), file


def test_a_secret_in_pieces_is_not_written_either(tmp_path, monkeypatch):
    trainer = tiny_trainer()
    results = trainer.ppo_step(PROMPTS)
    said = results["generated_texts"][0]
    monkeypatch.setattr("burnish.safe_text.SHORTEST_SECRET", len(said))
    monkeypatch.setenv("JUDGE_TOKEN", said)
    run = Run.new(tmp_path, "run").begin(trainer.config)
    run.log_samples(results, PROMPTS, trainer.base.tokenizer, 2)
    first, second = run.read_lines("samples.jsonl")
    assert (first["response"], set(first["tokens"]), set(first["action"])) == ("[JUDGE_TOKEN]", {"[hidden]"}, {0})
    assert "[hidden]" not in second["tokens"]


def test_secrets_are_taken_out_of_whatever_is_written_or_shown(tmp_path, monkeypatch):
    make_workplace(tmp_path)
    secret = "sk-planted-0123456789"
    (tmp_path / "leaky.py").write_text(
        "import os\ndef f(p, r):\n    if r[0] not in ('A first answer.', 'And a second one.'):\n"
        "        raise ValueError(os.environ['JUDGE_API_KEY'] + '\\x1b[31m')\n"
        "    return [1.0] * len(r)\n"
    )
    environment = os.environ | {"JUDGE_API_KEY": secret, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "burnish.cli", "train", "config.yaml", "reward=leaky.py:f", "run_name=leaky"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "ValueError: [JUDGE_API_KEY][31m" in done.stderr
    assert secret not in done.stdout + done.stderr
    assert "\x1b[31m" not in done.stderr
    monkeypatch.setenv("JUDGE_API_KEY", secret)
    Run(tmp_path).log({"said": [f"the key is {secret}"], "number": 0.1})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"said": ["the key is [JUDGE_API_KEY]"], "number": 0.1}\n'
    monkeypatch.setenv("JUDGE_API_KEY", '12345678"\u00e9')
    Run(tmp_path).write("odd.json", {"said": 'it is 12345678"\u00e9', "number": 0.123456789})
    assert Run(tmp_path).read("odd.json") == {"said": "it is [JUDGE_API_KEY]", "number": 0.123456789}


def test_a_run_folder_is_no_way_out_of_its_root(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(InputError, match="leads out of"):
        Run.new(tmp_path / "runs", "link")
    with pytest.raises(InputError, match="leads out of"):
        Run.new_or_unfinished(tmp_path / "runs", "link")
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    with pytest.raises(InputError, match="leads out of"):
        load_pipeline_config(tmp_path / "pipeline.yaml", [f"run_dir={tmp_path / 'runs'}", "run_name=link"])


def test_mistakes_about_folders_and_damaged_logs_end_in_a_sentence(zygote, folder, whole):
    (folder / "a-file").touch()
    outcome = zygote.run(folder, "train", "config.yaml", "run_dir=a-file", "run_name=x")
    assert (outcome.code, "cannot write to the run folder" in outcome.text) == (2, True), outcome.text
    run = copy_of(whole, "binary-log")
    (run / "metrics.jsonl").write_bytes(b"\xff\xfe\n")
    assert zygote.run(folder, "verify", run).code == 4
    run = copy_of(whole, "short-log")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([*lines[:2], *lines[3:]]) + "\n")
    outcome = zygote.run(folder, "verify", run)
    assert (outcome.code, "does not hold every step once" in outcome.text) == (4, True)
    (run / "config.yaml").write_text((run / "config.yaml").read_text() + "learning_rate: 3\n")
    outcome = zygote.run(folder, "resume", run)
    assert (outcome.code, "stands twice" in outcome.text) == (2, True)
    assert zygote.run(folder, "report", whole, "--output", "/no/where.html").code == 2
    listed = zygote.run(folder, "runs")
    assert listed.code == 0
    assert "whole" in listed.text


def test_a_run_name_stays_inside_its_folder(tmp_path):
    for name in ("../x", "/etc/x", "a/b", ".hidden", "x" * 65, ""):
        (tmp_path / "c.yaml").write_text(yaml.safe_dump({"prompts": "a.txt", "run_name": name}))
        with pytest.raises(InputError, match="run_name"):
            load_train_config(tmp_path / "c.yaml")
