"""A run that was killed or stopped resumes to the bit, or is refused with the reason (R1 to R6)."""

import json
import random
import shutil
import signal

import numpy as np
import pytest
import torch

import burnish
from burnish import InputError
from burnish.data import Prompt
from burnish.errors import NoCheckpointError
from burnish.runs.checkpoints import State
from burnish.runs.run import LOGS, Run
from failures import (
    CONFIG,
    PIPELINE,
    copy_of,
    interrupted,
    killed_and_resumed,
    log_of,
    state_hash,
)
from tiny import PROMPTS, changes, tiny_model, tiny_trainer

pytestmark = pytest.mark.long


def test_r1_a_killed_run_ends_in_the_same_state(fork_server, folder, whole):
    draw = random.Random(1)
    kills = [(1, "file"), (2, "file")]  # before there is a config, and before there is a first measurement
    kills += [(draw.randrange(1, 12), "save") for _ in range(3)] + [(draw.randrange(1, 8), "log") for _ in range(2)]
    hits = killed_and_resumed(fork_server, folder, "killed", kills)
    assert hits == {"file": 2, "save": 3, "log": 2}
    assert state_hash(folder / "runs" / "killed") == state_hash(whole)


def test_r1_a_stopped_or_killed_pipeline_goes_on_in_every_stage(fork_server, folder):
    prompts = [f"number {i}:" for i in range(14)]
    demonstrations = [{"prompt": p, "completion": p[-3:]} for p in prompts]
    preferences = [{"prompt": p, "chosen": p[-3:], "rejected": p[:3]} for p in prompts]
    (folder / "demonstrations.jsonl").write_text("\n".join(map(json.dumps, demonstrations)))
    (folder / "preferences.jsonl").write_text("\n".join(map(json.dumps, preferences)))
    (folder / "pipeline.yaml").write_text(PIPELINE)
    whole, hurt = folder / "runs" / "pipe", folder / "runs" / "hurt"
    outcome = fork_server.run(folder, "pipeline", "pipeline.yaml", "run_name=pipe")
    assert outcome.code == 0, outcome.text

    first = ("pipeline", "pipeline.yaml", "run_name=hurt")
    outcome = fork_server.run(folder, *first, kill_at=2, signal=signal.SIGINT)
    assert outcome.code == 130, outcome.text
    assert "burnish resume runs/hurt" in outcome.text
    assert not (hurt / "reward").exists()  # a request to stop is one for all stages
    outcome = fork_server.run(folder, "resume", "runs/hurt/sft")  # the pipeline held some of its prompts back
    assert outcome.code == 2
    assert "resume that with: burnish resume runs/hurt" in outcome.text
    stages_hit = set()
    for attempt in range(30):
        kill = {"kill_at": 7} if attempt % 2 else {"kill_at": 10, "where": "save"}
        outcome = fork_server.run(folder, "resume", hurt, **kill)
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
        assert fork_server.run(folder, "resume", hurt, *settings).code == code
        assert (hurt / ".pipeline.yaml").read_text() == kept
    outcome = fork_server.run(folder, "resume", hurt, "--from", "2", "ppo.learning_rate=0.002")
    assert outcome.code == 0, outcome.text
    assert "Resuming after step 2 of 3" in outcome.text
    outcome = fork_server.run(folder, "resume", hurt, "ppo.steps=4")
    assert outcome.code == 0, outcome.text
    assert [row["step"] for row in log_of(hurt / "ppo")[0]] == [1, 2, 3, 4]
    moved = hurt.rename(folder / "runs" / "elsewhere")
    assert fork_server.run(folder, "resume", moved).code == 0
    outcome = fork_server.run(folder, "eval", moved / "ppo", "--best-of", "1")
    assert outcome.code == 0, outcome.text


def test_r2_the_same_seed_twice_is_the_same_run(fork_server, folder, whole):
    assert fork_server.run(folder, "train", "config.yaml", "run_name=twin").code == 0
    assert state_hash(folder / "runs" / "twin") == state_hash(whole)
    assert log_of(folder / "runs" / "twin") == log_of(whole)
    assert fork_server.run(folder, "train", "config.yaml", "run_name=other", "seed=2").code == 0
    assert state_hash(folder / "runs" / "other") != state_hash(whole)


def test_r3_resumed_after_every_step(fork_server, folder, whole):
    for step in range(1, 6):
        name = f"stopped-{step}"
        # The kill comes with the first line of the step after, whatever a run logs.
        lines = sum(row["step"] <= step for log in LOGS for row in Run(whole).read_lines(log))
        outcome = fork_server.run(folder, "train", "config.yaml", f"run_name={name}", "save_every=1", kill_at=lines + 1)
        assert outcome.code == -9, outcome.text
        resumed = fork_server.run(folder, "resume", f"runs/{name}")
        assert resumed.code == 0, resumed.text
        assert f"Resuming after step {step} of 6" in resumed.text
        assert state_hash(folder / "runs" / name, same_saves=False) == state_hash(whole, same_saves=False)


@pytest.mark.parametrize("recipe", ["rloo", "tether"])
def test_r1_and_r3_with_groups_and_without_a_critic(fork_server, folder, recipe):
    """Killed in a step and while saving, and resumed: the same as if nothing had happened."""
    without = CONFIG.replace("value_learning_rate: 0.001\n", "")  # which is refused where there is no value model
    (folder / "groups.yaml").write_text(without)
    settings = ("train", "groups.yaml", f"recipe={recipe}", "responses_per_prompt=2", "reward_against=start")
    outcome = fork_server.run(folder, *settings, f"run_name={recipe}")
    assert outcome.code == 0, outcome.text
    undisturbed = folder / "runs" / recipe
    for kill in ({"kill_at": 6}, {"kill_at": 7, "where": "save"}):
        name = f"{recipe}-{kill['kill_at']}"
        outcome = fork_server.run(folder, *settings, f"run_name={name}", **kill)
        assert outcome.code == -9, outcome.text
        resumed = fork_server.run(folder, "resume", f"runs/{name}")
        assert resumed.code == 0, resumed.text
        assert state_hash(folder / "runs" / name) == state_hash(undisturbed)
        assert log_of(folder / "runs" / name) == log_of(undisturbed)


def test_r3_a_finished_run_says_so_and_does_nothing(fork_server, folder, whole):
    before = {p: p.stat().st_mtime_ns for p in whole.rglob("*") if p.is_file()}
    for command in (("resume", "runs/whole"), ("train", "config.yaml", "run_name=whole")):
        outcome = fork_server.run(folder, *command)
        assert outcome.code == 0
        assert "is already finished; nothing to do" in outcome.text
    assert {p: p.stat().st_mtime_ns for p in whole.rglob("*") if p.is_file()} == before


def test_r3_from_an_earlier_checkpoint(fork_server, folder, whole):
    run = copy_of(whole, "back")
    outcome = fork_server.run(folder, "resume", "runs/back", "--from", "4")
    assert outcome.code == 0, outcome.text
    assert "Resuming after step 4" in outcome.text
    assert state_hash(run) == state_hash(whole)
    assert fork_server.run(folder, "resume", "runs/back", "--from", "3").code == 4


@pytest.mark.parametrize("kill_at", [1, 2, 3, 4])
def test_r3_a_kill_while_an_earlier_checkpoint_is_taken_up(fork_server, folder, whole, kill_at):
    """It may not look finished with half of its logs."""
    run = copy_of(whole, f"back-{kill_at}")
    outcome = fork_server.run(folder, "resume", run, "--from", "4", kill_at=kill_at, where="file")
    assert outcome.code == -9, outcome.text
    assert not (run / "result.json").exists() or log_of(run) == log_of(whole)
    assert fork_server.run(folder, "resume", run).code == 0
    assert state_hash(run) == state_hash(whole)
    assert log_of(run) == log_of(whole)


def test_r3_a_finished_run_of_other_data_is_another(fork_server, folder, whole):
    text = (folder / "prompts.jsonl").read_text()
    (folder / "others2.jsonl").write_text(text.replace("number 3:", "number 33:"))
    outcome = fork_server.run(folder, "train", "config.yaml", "run_name=whole", "prompts=others2.jsonl")
    assert (outcome.code, "is finished, with other data" in outcome.text) == (2, True), outcome.text


def test_r3_a_finished_run_goes_on_for_more_steps_only(fork_server, folder, whole):
    run = copy_of(whole, "longer")
    files = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    outcome = fork_server.run(folder, "resume", run, "learning_rate=0.5")
    assert outcome.code == 2
    assert "is finished, with other settings (learning_rate: 0.001 -> 0.5)" in outcome.text
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == files  # what made the run is not rewritten

    outcome = fork_server.run(folder, "resume", run, "steps=8", kill_at=2)  # stopped on the way, it is not finished
    assert outcome.code == -9
    outcome = fork_server.run(folder, "resume", run)
    assert outcome.code == 0, outcome.text
    assert [row["step"] for row in log_of(run)[0]] == list(range(1, 9))

    bare = copy_of(whole, "bare")
    shutil.rmtree(bare / "checkpoints")
    log = (bare / "metrics.jsonl").read_text()
    assert fork_server.run(folder, "resume", bare, "steps=8").code == 4
    assert (bare / "metrics.jsonl").read_text() == log


RECIPES = {
    "ppo": {},
    "rloo": {"recipe": "rloo", "responses_per_prompt": 2},
    "tether": {"recipe": "tether", "responses_per_prompt": 2, "reward_against": "start"},
    "reference": {"value_reads_reference": True},
}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_r4_every_field_of_the_state_is_used(recipe):
    """Each in turn as it was in a fresh trainer: the next step is refused, or another one."""

    prompts = [Prompt(text, reference=f"{text} yes") for text in PROMPTS]

    def step_of(trainer):
        return trainer.ppo_step(trainer.prompts_of_step(prompts, trainer.step))

    def next_step(trainer):
        results = step_of(trainer)
        return results["sa_pairs"]["action"].tolist(), fingerprint(trainer)

    def fingerprint(trainer):
        state = trainer.state()
        return {k: t.tolist() for k, t in state.tensors.items()}, json.dumps(state.values)

    changes = {"adaptive_kl_target": 0.5, "mini_batch_size": 4, "adaptive_kl_horizon": 10, "lora_dropout": 0.0}
    changes |= {"lora_layers": 1, "lora_target_modules": ["v_proj"]}  # few fields of each kind
    changes |= recipe
    trained = tiny_trainer(**changes)
    trained.generator.agree_on_invocation(prompts)
    for _ in range(2):
        step_of(trained)
    saved, fresh = trained.state(), tiny_trainer(**changes).state()
    expected = next_step(trained)

    def resumed(state):
        trainer = tiny_trainer(**changes)
        trainer.generator.agree_on_invocation(prompts)
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


def test_r5_other_data_and_another_model_are_refused(fork_server, folder):
    run = interrupted(fork_server, folder, "same")
    prompts = folder / "prompts.jsonl"
    before = prompts.read_text()
    prompts.write_text(before.replace("number 3:", "number 33:"))
    try:
        outcome = fork_server.run(folder, "resume", run)
        assert outcome.code == 2
        assert "data changed" in outcome.text
    finally:
        prompts.write_text(before)
    tiny_model(seed=5).save_pretrained(folder / "model")
    try:
        outcome = fork_server.run(folder, "resume", run)
        assert outcome.code == 2
        assert "base model" in outcome.text
    finally:
        tiny_model().save_pretrained(folder / "model")
    outcome = fork_server.run(folder, "train", "config.yaml", "run_name=same", "seed=7")
    assert outcome.code == 2
    assert "seed: 1 -> 7" in outcome.text
    config = run / "config.yaml"
    before = config.read_text()
    assert fork_server.run(folder, "resume", run, "learning_rate=0.5", "--from", "77").code == 4
    assert config.read_text() == before  # a refusal changes nothing
    config.write_text(before.replace("batch_size: 4", "batch_size: 2", 1))  # edited by hand: the checkpoint knows
    assert fork_server.run(folder, "resume", run).code == 2  # and so does the proof whose config it is
    outcome = fork_server.run(folder, "resume", run, "--trust")
    assert outcome.code == 2
    assert "batch_size: 4 -> 2" in outcome.text


@pytest.mark.parametrize("changed", ["data", "base model", "frozen adapters", "device"])
def test_r5_nothing_that_makes_the_run_may_change(changed):
    then = dict.fromkeys(("data", "base model", "frozen adapters", "versions", "threads", "device"), "same")
    assert changes(then, dict(then)) == []
    assert "threads: same then, 3 now" in changes(then, then | {"threads": 3})[0]
    with pytest.raises(InputError, match=f"{changed} changed since"):
        changes(then, then | {changed: "other"})


def test_r5_a_finished_run_that_goes_on_is_checked_first(fork_server, folder, whole):
    run = copy_of(whole, "further")
    for setting in ("eval_reward=sentimnt", "eval_reward=gone.py:f", "tracker=wandb"):
        assert fork_server.run(folder, "resume", run, "steps=8", setting).code == 2
        assert (run / "result.json").is_file()
        assert (run / "verdict.json").is_file()


def test_r5_data_and_folders_may_be_moved(fork_server, folder):
    run = interrupted(fork_server, folder, "moved")
    shutil.copy(folder / "prompts.jsonl", folder / "elsewhere.jsonl")
    assert fork_server.run(folder, "resume", run, "prompts=elsewhere.jsonl").code == 0


def test_r5_another_learning_rate_is_allowed_and_told(fork_server, folder):
    run = interrupted(fork_server, folder, "faster")
    outcome = fork_server.run(folder, "resume", run, "learning_rate=0.002")
    assert outcome.code == 0, outcome.text
    assert "learning_rate: 0.001 -> 0.002" in outcome.text


def test_r5_another_price_of_kl_is_charged_from_there_on(fork_server, folder):
    run = interrupted(fork_server, folder, "dearer")
    done = int(max((run / "checkpoints").glob("step-*")).name.removeprefix("step-"))
    drifted = [row["kl_coef"] for row in log_of(run)[0]]
    assert drifted[done - 1] != drifted[0]  # it has a target, and is on its way there
    outcome = fork_server.run(folder, "resume", run, "kl_coef=0.5")
    assert outcome.code == 0, outcome.text
    assert log_of(run)[0][done]["kl_coef"] == 0.5


def test_r5_a_mended_reward_is_allowed_and_told(fork_server, folder):
    run = interrupted(fork_server, folder, "mended")
    judge = folder / "judge.py"
    before = judge.read_text()
    judge.write_text(before.replace("/ 10", "* 10"))
    try:
        outcome = fork_server.run(folder, "resume", run)
    finally:
        judge.write_text(before)
    assert outcome.code == 0, outcome.text
    assert "Changed: what the reward's files hold." in outcome.text
    start, result = (json.loads((run / name).read_text()) for name in ("start.json", "result.json"))
    assert max(start["evaluation"]["reward"]) > 1  # measured anew: both sides of the verdict by the same reward
    assert result["before"]["reward"]["mean"] == pytest.approx(np.mean(start["evaluation"]["reward"]))


def test_r6_logs_survive_kills(fork_server, folder, whole):
    kills = [(n, where) for n in (2, 5, 7) for where in ("log", "torn", "save", "file")]
    hits = killed_and_resumed(fork_server, folder, "logged", kills)
    assert hits["torn"] == 3
    assert log_of(folder / "runs" / "logged") == log_of(whole)
    probes = [json.loads(line) for line in (folder / "runs" / "logged" / "probes.jsonl").read_text().splitlines()]
    assert sorted((p["step"], p["prompt"]) for p in probes) == sorted(
        (p["step"], p["prompt"]) for p in map(json.loads, (whole / "probes.jsonl").read_text().splitlines())
    )


def test_r5_a_copy_with_any_name_resumes(fork_server, folder):
    run = interrupted(fork_server, folder, "named")
    copy = shutil.copytree(run, folder / "runs" / "named (copy) \u00e4")
    outcome = fork_server.run(folder, "resume", copy)
    assert outcome.code == 0, outcome.text
    assert (copy / "result.json").is_file()
    assert not (run / "result.json").exists()
