"""Nothing is ever lost: a test for each promise of docs/reliability.md; the long ones are benchmarks/torture.py's."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import burnish
from burnish import DivergedError, InputError
from burnish.checkpoints import Checkpoints, State
from burnish.config import TrainConfig, load_train_config
from burnish.errors import NoCheckpointError, ResourceError
from burnish.guards import ConstantRewardGuard
from tiny import PROMPTS, tiny_trainer
from torments import Zygote, corrupt, killed_and_resumed, log_of, make_workplace, state_hash


@pytest.fixture(scope="module")
def zygote(tmp_path_factory):
    started = Zygote(tmp_path_factory.mktemp("outputs"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_workplace(tmp_path_factory.mktemp("reliability"))


@pytest.fixture(scope="module")
def whole(zygote, folder):
    """The run that nothing happened to."""
    outcome = zygote.run(folder, "train", "config.yaml", "run_name=whole")
    assert outcome.code == 0, outcome.text
    return folder / "runs" / "whole"


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
    pid = zygote.start(folder, *first)
    waiting_for(hurt / "sft" / "metrics.jsonl")
    os.kill(pid, signal.SIGINT)
    outcome = zygote.wait(pid)
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


def test_r2_the_same_seed_twice_is_the_same_run(zygote, folder, whole):
    assert zygote.run(folder, "train", "config.yaml", "run_name=twin").code == 0
    assert state_hash(folder / "runs" / "twin") == state_hash(whole)
    assert log_of(folder / "runs" / "twin") == log_of(whole)
    assert zygote.run(folder, "train", "config.yaml", "run_name=other", "seed=1").code == 0
    assert state_hash(folder / "runs" / "other") != state_hash(whole)


def test_r3_resumed_after_every_step(zygote, folder, whole):
    for step in range(1, 6):
        name = f"stopped-{step}"
        # a line of metrics, one of samples per step, and two probes at the start: the kill falls into the step after
        outcome = zygote.run(
            folder, "train", "config.yaml", f"run_name={name}", "save_every=1", kill_at=3 + 2 * step + 2
        )
        assert outcome.code == -9, outcome.text
        assert zygote.run(folder, "resume", f"runs/{name}").code == 0
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
    from tiny import tiny_model

    tiny_model(seed=5).save_pretrained(folder / "model")
    try:
        outcome = zygote.run(folder, "resume", run)
        assert outcome.code == 2
        assert "base model" in outcome.text
    finally:
        tiny_model().save_pretrained(folder / "model")
    outcome = zygote.run(folder, "train", "config.yaml", "run_name=same", "seed=7")
    assert outcome.code == 2
    assert "seed: 0 -> 7" in outcome.text
    config = run / "config.yaml"
    before = config.read_text()
    assert zygote.run(folder, "resume", run, "learning_rate=0.5", "--from", "77").code == 4
    assert config.read_text() == before  # a refusal changes nothing
    config.write_text(before.replace("batch_size: 4", "batch_size: 2", 1))  # edited by hand: the checkpoint knows
    outcome = zygote.run(folder, "resume", run)
    assert outcome.code == 2
    assert "batch_size: 4 -> 2" in outcome.text


def test_r5_another_learning_rate_is_allowed_and_told(zygote, folder):
    run = interrupted(zygote, folder, "faster")
    outcome = zygote.run(folder, "resume", run, "learning_rate=0.002")
    assert outcome.code == 0, outcome.text
    assert "learning_rate: 0.001 -> 0.002" in outcome.text


def test_r6_logs_survive_kills(zygote, folder, whole):
    kills = [(n, where) for n in (2, 5, 7) for where in ("log", "save", "file")]
    killed_and_resumed(zygote, folder, "logged", kills)
    assert log_of(folder / "runs" / "logged") == log_of(whole)
    probes = [json.loads(line) for line in (folder / "runs" / "logged" / "probes.jsonl").read_text().splitlines()]
    assert sorted((p["step"], p["prompt"]) for p in probes) == sorted(
        (p["step"], p["prompt"]) for p in map(json.loads, (whole / "probes.jsonl").read_text().splitlines())
    )


# ------------------------------------------------------------------------------------------------ disk and processes


def test_r7_a_full_disk_leaves_the_last_checkpoint_whole(tmp_path, monkeypatch):
    """Here the disk only says that it is full; below it is."""
    store = Checkpoints(tmp_path / "checkpoints")
    store.save(1, State({"w": torch.arange(4.0)}, {"step": 1}))

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("burnish.checkpoints.to_disk", full)
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
        "from judge import vowels\n"
        f"calls, switch, disk = [], Path({str(tmp_path / 'switch')!r}), Path({str(small_disk)!r})\n"
        "def f(prompts, responses):\n"
        "    calls.append(1)\n"
        "    if len(calls) == 5 and switch.exists():\n"  # once before training, for the held-out prompts
        "        with open(disk / 'filler', 'wb', buffering=0) as out:\n"
        "            try:\n"
        "                while out.write(bytes(4096)): pass\n"
        "            except OSError: pass\n"
        "    return vowels(prompts, responses)\n"
    )
    shutil.copy(folder / "judge.py", tmp_path)
    train = ("train", "config.yaml", f"reward={fill}:f")
    undisturbed = zygote.run(folder, *train, "run_name=roomy")
    assert undisturbed.code == 0, undisturbed.text
    (tmp_path / "switch").touch()
    outcome = zygote.run(folder, *train, f"run_dir={small_disk}", "run_name=cramped")
    assert outcome.code == 6, outcome.text
    assert "full" in outcome.text
    assert "Traceback" not in outcome.text
    assert all(c.problem is None for c in Checkpoints(small_disk / "cramped" / "checkpoints").all())
    (small_disk / "filler").unlink()
    (tmp_path / "switch").unlink()
    resumed = zygote.run(folder, "resume", small_disk / "cramped")
    assert resumed.code == 0, resumed.text
    assert state_hash(small_disk / "cramped") == state_hash(folder / "runs" / "roomy")
    assert log_of(small_disk / "cramped") == log_of(folder / "runs" / "roomy")


def test_r7_space_is_checked_before_the_first_step(tmp_path):
    with pytest.raises(ResourceError, match=r"checkpoints need .* and .* are free"):
        Checkpoints(tmp_path).check_space(2**50)


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
    assert "no" in zygote.run(folder, "checkpoints", run).out
    log = (run / "metrics.jsonl").read_text()
    for _ in range(2):  # nor does a second try start over and forget what there was
        outcome = zygote.run(folder, "resume", run)
        assert outcome.code == 4
        assert "no checkpoint" in outcome.text
        assert "Traceback" not in outcome.text
    assert (run / "metrics.jsonl").read_text() == log


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


def test_r11_held_out_answers_that_cannot_be_scored_are_left_out(zygote, folder):
    (folder / "picky.py").write_text(
        "def f(p, r):\n    return [float('nan') if x.startswith('number 1') else float(len(y)) for x, y in zip(p, r)]\n"
    )
    rows = [{"prompt": f"number {i}:"} for i in (1, 2, 3, 4)]
    (folder / "held_out.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "others.jsonl").write_text("\n".join(json.dumps({"prompt": f"number {i}:"}) for i in range(20, 30)))
    settings = ("prompts=others.jsonl", "eval_prompts=held_out.jsonl", "num_eval_prompts=0", "reward=picky.py:f")
    outcome = zygote.run(folder, "train", "config.yaml", "run_name=picky", *settings)
    assert outcome.code == 0, outcome.text
    answers = json.loads((folder / "runs" / "picky" / "verdict.json").read_text())["answers"]
    assert [a["prompt"] for a in answers] == ["number 2:", "number 3:", "number 4:"]


def test_r11_a_hanging_function_is_cut_at_the_time_limit(tmp_path):
    (tmp_path / "hang.py").write_text(
        "import time\ndef f(prompts, responses):\n"
        "    if len(prompts) > 1 or prompts[0] == 'go:':\n        time.sleep(1000)\n"
        "    return [1.0 + len(x) for x in responses]\n"
    )
    from burnish import PPOTrainer
    from tiny import tiny_config, tiny_model, tiny_tokenizer

    config = tiny_config(reward=f"{tmp_path}/hang.py:f", reward_timeout=1.0)
    trainer = PPOTrainer(config, None, tiny_model(), tiny_tokenizer())
    started = time.monotonic()
    with pytest.warns(UserWarning, match=r"response 6 is left out.*took more than 1 s"):
        results = trainer.ppo_step(PROMPTS)
    assert time.monotonic() - started < 60
    assert len(results["rewards"]) == len(PROMPTS) - 1


def test_r11_the_worker_runs_nothing_that_lies_about_and_ends_with_its_trainer(tmp_path):
    import sys

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
    with pytest.raises(DivergedError, match="policy gradient norm became nan before an optimizer step"):
        trainer.ppo_step(PROMPTS)
    assert torch.equal(before, weight)


def test_r12_the_batch_is_kept_and_the_last_good_checkpoint_named(zygote, folder):
    outcome = zygote.run(
        folder, "train", "config.yaml", "run_name=wild", "learning_rate=1e30", "max_kl=null", "save_every=1"
    )
    assert outcome.code == 5, outcome.text
    assert "Traceback" not in outcome.text
    run = folder / "runs" / "wild"
    steps = [int(p.name.removeprefix("step-")) for p in sorted(run.glob("checkpoints/step-*"))]
    assert (f"last good checkpoint is of step {steps[-1]}" if steps else "There is no checkpoint yet") in outcome.text
    (dump,) = run.glob("diverged-step-*.jsonl")
    assert f"The responses of step {dump.stem.rpartition('-')[2]} are in" in outcome.text
    rows = [json.loads(line) for line in dump.read_text().splitlines()]
    assert rows
    assert all({"response", "tokens", "logprob_policy"} <= set(row) for row in rows)


def test_r13_a_runaway_policy_is_stopped(zygote, folder):
    run = ("train", "config.yaml", "steps=60", "kl_coef=0", "learning_rate=0.1", "max_kl=0.05")
    outcome = zygote.run(folder, *run, "run_name=runaway")
    assert outcome.code == 5, outcome.text
    assert "runs away from its reference. Lower learning_rate" in outcome.text
    early = tiny_trainer(learning_rate=0.1, target_kl_stop=0.01, epochs=4)
    early.ppo_step(PROMPTS)
    assert early.policy.num_updates < 4  # the epoch was left


def test_r13_a_constant_reward_is_told():
    guard = ConstantRewardGuard()
    guard.check([1.0, 1.0])
    guard.check([1.0, 1.0])
    with pytest.warns(UserWarning, match="nothing to learn from"):
        guard.check([1.0, 1.0])


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


def test_r16_every_key_misspelt_by_one_edit_is_refused(tmp_path):
    draw = random.Random(0)
    for key in TrainConfig.model_fields:
        wrong = one_edit(key, draw)
        if wrong in TrainConfig.model_fields or not wrong:
            continue
        (tmp_path / "c.yaml").write_text(yaml.safe_dump({"prompts": "a.txt", wrong: 1, "steps": 0}))
        with pytest.raises(
            InputError, match=f"(?s)2 errors.*unknown key {wrong!r}.*steps|2 errors.*steps.*unknown key {wrong!r}"
        ) as e:
            load_train_config(tmp_path / "c.yaml")
        assert len(key) < 4 or "did you mean" in str(e.value) or "it is called" in str(e.value)


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


def test_r17_a_soak_neither_grows_nor_leaks():
    import psutil

    trainer = tiny_trainer(steps=60, lr_schedule="constant")
    process, sizes, handles = psutil.Process(), [], []

    def on_step(results):
        sizes.append(process.memory_info().rss)
        handles.append(process.num_fds())

    trainer.train(PROMPTS, on_step)
    assert sizes[-1] < 1.05 * sizes[20]
    assert handles[-1] == handles[0]


def test_r18_no_network(tmp_path):
    """A run in a process that cannot open a socket to anywhere."""
    make_workplace(tmp_path)
    script = (
        "import socket, sys\n"
        "def refuse(*a, **k): raise OSError('no network')\n"
        "socket.socket.connect = refuse; socket.create_connection = refuse; socket.getaddrinfo = refuse\n"
        "sys.argv = ['burnish', 'train', 'config.yaml', 'steps=1', 'run_name=offline']\n"
        "from burnish.cli import main; main()\n"
    )
    import sys

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
    import sys

    make_workplace(tmp_path)
    secret = "hf_planted0123456789secret"
    environment = os.environ | {"HF_TOKEN": secret, "WANDB_API_KEY": secret, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "burnish.cli", "train", "config.yaml", "steps=2", "run_name=secret"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert secret not in done.stdout + done.stderr
    for file in (tmp_path / "runs").rglob("*"):
        assert not file.is_file() or secret.encode() not in file.read_bytes(), file


def test_a_run_name_stays_inside_its_folder(tmp_path):
    for name in ("../x", "/etc/x", "a/b", ".hidden", "x" * 65, ""):
        (tmp_path / "c.yaml").write_text(yaml.safe_dump({"prompts": "a.txt", "run_name": name}))
        with pytest.raises(InputError, match="run_name"):
            load_train_config(tmp_path / "c.yaml")
