"""The command line from end to end on a tiny model in a folder, as a user runs it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tiny import tiny_model, tiny_tokenizer

BURNISH = [str(Path(sys.executable).parent / "burnish")]


def run(*arguments, cwd, code=0):
    env = os.environ | {"COLUMNS": "100", "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    done = subprocess.run(
        [*BURNISH, *map(str, arguments)], cwd=cwd, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with a model, prompts, a reward function and a config."""
    folder = tmp_path_factory.mktemp("work")
    tiny_model().save_pretrained(folder / "model")
    tiny_tokenizer().save_pretrained(folder / "model")
    rows = [{"prompt": f"number {i}:"} for i in range(12)]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "judge.py").write_text("def short(prompts, responses):\n    return [-float(len(r)) for r in responses]\n")
    (folder / "config.yaml").write_text(
        "model_name: model\nprompts: prompts.jsonl\nreward: judge.py:short\nnum_eval_prompts: 4\n"
        "batch_size: 4\nsteps: 2\nepochs: 1\nmax_new_tokens: 5\n"
    )
    return folder


def test_train_then_generate(workplace):
    out = run("train", "config.yaml", "run_name=first", "learning_rate=0.05", cwd=workplace)
    for text in ("base", "policy", "value", "reward", "4 held-out prompts", "start", "most likely answers", "95 %"):
        assert text in out
    assert "each step makes 1 optimizer step of each model" in out
    assert re.findall(r"^step (\d/\d)  reward -\d", out, re.MULTILINE) == ["1/2", "2/2"]  # a line each
    folder = workplace / "runs" / "first"
    assert {p.name for p in folder.iterdir()} == {
        "config.yaml",
        "config.yaml.hmac",
        "metrics.jsonl",
        "samples.jsonl",
        "probes.jsonl",
        "adapters",
        "result.json",
        "verdict.json",
        "answers.json",
        "start.json",
        "checkpoints",
        "journal.jsonl",
        "log.txt",
        ".lock",
    }
    assert {p.name for p in (folder / "adapters").iterdir()} == {"policy", "value"}
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2
    assert json.loads((folder / "result.json").read_text())["before"]["reward"]["mean"] <= 0

    elsewhere = workplace / "elsewhere"  # the run is found from anywhere, and so is its model
    elsewhere.mkdir()
    out = run("generate", folder, "number 3:", cwd=elsewhere)
    lines = [line.replace("┃", "│").split("│")[1:3] for line in out.splitlines() if line[0] in "┃│"]
    heading, (base, tuned) = ([cell.strip() for cell in line] for line in lines)
    assert heading == ["base", "tuned"]
    assert base != tuned  # the most likely answers: only what was learned can tell them apart
    kept = json.loads((folder / "answers.json").read_text())["answers"]
    assert [set(row) for row in kept] == [{"prompt", "start", "tuned"}] * 4  # the base is the start


def test_a_mistake_leaves_no_run_folder_behind(fork_server, workplace):
    assert fork_server.run(workplace, "train", "config.yaml", "run_name=again", "lora_layers=99").code == 2
    assert not (workplace / "runs" / "again").exists()


def test_existing_run_is_refused(workplace):
    (workplace / "runs" / "taken").mkdir(parents=True)
    (workplace / "runs" / "taken" / "notes.txt").write_text("mine")
    assert "exists already" in run("train", "config.yaml", "run_name=taken", cwd=workplace, code=2)


def test_prompts_without_a_shared_ending_are_announced(fork_server, workplace):
    (workplace / "mixed.txt").write_text("first one\nsecond two\nthird three\nfour\n")
    settings = ["prompts=mixed.txt", "num_eval_prompts=0", "run_name=mixed", "steps=1"]
    out = fork_server.run(workplace, "train", "config.yaml", *settings).text
    assert "share no ending" in out
    assert "burnish generate" in out
    assert "PeftModel" not in out
    assert fork_server.run(workplace, "generate", "runs/mixed", "anything").code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "missing.yaml"], "cannot read the config missing.yaml"),
        (["train", "config.yaml", "stps=3"], "did you mean 'steps'"),
        (["train", "config.yaml", "steps=0", "kl_coef=-1"], "2 errors in config.yaml and its overrides"),
        (["train", "config.yaml", "prompts=missing.jsonl"], "missing.jsonl: No such file"),
        (["train", "config.yaml", "prompts=bad.jsonl"], "bad.jsonl:1: not valid JSON"),
        (["train", "config.yaml", "prompts=blank.jsonl"], "blank.jsonl:1: 'prompt' is empty"),
        (["train", "config.yaml", "prompts=long.txt"], "long.txt:1 has 300 tokens"),
        (["train", "config.yaml", "eval_prompts=prompts.jsonl"], "held-out prompts must not be trained on"),
        (["train", "config.yaml", "model_name=no/such-model"], "cannot load the model 'no/such-model'"),
        (["train", "config.yaml", "model_name=empty"], "cannot load the model"),
        (["train", "config.yaml", "reward=judge.py:shrt"], "did you mean 'short'"),
        (["train", "config.yaml", "reward=judge2.py:nan"], "response 0 is nan"),
        (["train", "config.yaml", "device=abacus"], "device 'abacus' cannot be used"),
        (["generate", "nowhere", "x"], "there is no folder nowhere"),
        (["generate", "model", "x"], "is not a run folder"),
        (["train", "config.yaml", "--steps", "4"], "without dashes"),
        (["train", "config.yaml", "model_name=./nowhere"], "looks like a folder, but there is none"),
        (["generate", "runs/first", "  "], "prompt 0 is empty"),
        (["config", "stps"], "did you mean 'steps'"),
        (["demo", "--task", "tldrr"], "did you mean 'tldr'"),
    ],
)
def test_mistakes_end_in_a_sentence_and_exit_code_2(fork_server, workplace, arguments, message):
    (workplace / "bad.jsonl").write_text("{bad\n")
    (workplace / "blank.jsonl").write_text('{"prompt": " "}\n')
    (workplace / "long.txt").write_text("x" * 300 + "\nshort\n" + "\n".join(f"p{i}" for i in range(9)))
    (workplace / "empty").mkdir(exist_ok=True)
    (workplace / "judge2.py").write_text("def nan(p, r):\n    return [float('nan')] * len(r)\n")
    if arguments[0] == "generate" and not (workplace / "runs" / "first").exists():
        assert fork_server.run(workplace, "train", "config.yaml", "run_name=first").code == 0
    outcome = fork_server.run(workplace, *arguments)
    assert outcome.code == 2
    assert "Traceback" not in outcome.err
    assert message in outcome.text


def test_help_and_env_read_well(workplace):
    out = run("--help", cwd=workplace)
    for command in (
        "demo",
        "sft",
        "reward",
        "train",
        "pipeline",
        "eval",
        "report",
        "runs",
        "generate",
        "config",
        "env",
    ):
        assert command in out
        assert "Usage" in run(command, "--help", cwd=workplace)
    assert "torch" in run("env", cwd=workplace)
    assert run("--version", cwd=workplace).startswith("burnish 0.")
    assert "kl_coef" in run("config", cwd=workplace)
    assert "nat" in run("config", "kl_coef", cwd=workplace)
    assert set(re.findall(r"^(\w+)  ", run("config", "grad", cwd=workplace), re.MULTILINE)) == {"max_grad_norm"}
    assert {"kl_coef", "target_kl_stop"} <= set(
        re.findall(r"^(\w+)  ", run("config", "KL", cwd=workplace), re.MULTILINE)
    )


def test_main_py_is_the_demo():
    main = Path(__file__).parents[2] / "main.py"
    out = subprocess.run([sys.executable, main, "--help"], capture_output=True, text=True, check=True).stdout
    assert "main.py demo" in out
    assert "--task" in out


def test_interrupting_keeps_what_was_learned(fork_server, workplace):
    command = [*BURNISH, "train", "config.yaml", "run_name=stopped", "steps=100000"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command,
        cwd=workplace,
        env=env,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    try:
        folder = workplace / "runs" / "stopped"
        deadline = time.monotonic() + 120
        while not (folder / "metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Resume with: burnish resume runs/stopped" in errors
    assert "Traceback" not in errors
    assert {p.name for p in (folder / "adapters").iterdir()} == {"policy", "value"}
    assert fork_server.run(workplace, "generate", "runs/stopped", "number 3:").code == 0
