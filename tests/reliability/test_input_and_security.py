"""Odd input ends in a sentence, nothing leaks, no network is needed (R14 to R18)."""

import json
import math
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import burnish
from burnish import InputError, PPOTrainer
from burnish.config import RewardModelConfig, SFTConfig, TrainConfig, load_config, load_train_config
from burnish.config.pipeline_config import load_pipeline_config
from burnish.ppo.samples import log_step
from burnish.runs.run import Run
from failures import (
    PIPELINE,
    copy_of,
    log_of,
    make_workplace,
    soak,
)
from tiny import PROMPTS, tiny_config, tiny_model, tiny_tokenizer, tiny_trainer


def test_r14_prompts_at_the_edges(fork_server, folder):
    (folder / "edges.txt").write_text(
        "\n".join(["number 1:", "x" * 240 + ":", "number 2:", ":", "a:", "b:", "c:", "d:"])
    )
    outcome = fork_server.run(
        folder, "train", "config.yaml", "run_name=edges", "prompts=edges.txt", "max_new_tokens=1", "num_eval_prompts=2"
    )
    assert outcome.code == 0, outcome.text
    rows = log_of(folder / "runs" / "edges")[0]
    assert all(row["finished"] < 1 for row in rows)  # cut off, and counted
    assert all(row[key] == row[key] for row in rows for key in row if isinstance(row[key], float))


@pytest.mark.parametrize(
    ("prompt", "message"), [("  ", "'prompt' is empty"), ("x" * 300, "has 300 tokens; with max_new_tokens 6 the model")]
)
def test_r14_prompts_beyond_the_edges(fork_server, folder, prompt, message):
    (folder / "beyond.jsonl").write_text("\n".join(json.dumps({"prompt": p}) for p in ("a:", "b:", prompt, "c:", "d:")))
    outcome = fork_server.run(
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


def test_r15_fewer_prompts_than_the_batch_are_refused(fork_server, folder):
    (folder / "few.txt").write_text("a:\nb:\nc:\n")
    outcome = fork_server.run(folder, "train", "config.yaml", "run_name=few", "prompts=few.txt", "num_eval_prompts=0")
    assert outcome.code == 2
    assert "there are 3 prompts to train on, fewer than batch_size 4" in outcome.text
    assert not (folder / "runs" / "few").exists()


def test_r15_all_bad_files_are_told_at_once(fork_server, folder):
    (folder / "one.jsonl").write_text("{bad\n")
    (folder / "two.jsonl").write_text('{"prompt": 3}\n')
    settings = ("prompts=one.jsonl", "eval_prompts=two.jsonl", "run_name=both-bad")
    outcome = fork_server.run(folder, "train", "config.yaml", *settings)
    assert outcome.code == 2
    assert "one.jsonl:1: not valid JSON" in outcome.text
    assert "two.jsonl:1: 'prompt' is of type int" in outcome.text


def test_r15_a_second_reward_and_a_tracker_are_checked_before_loading(fork_server, folder):
    for setting, message in (
        ("eval_reward=sentimental", "did you mean 'sentiment'"),
        ("tracker=wandb", "needs a package"),
    ):
        outcome = fork_server.run(
            folder, "train", "config.yaml", setting, "run_name=early", "model_name=/no/such/model"
        )
        assert outcome.code == 2
        assert message in outcome.text


def test_r15_every_missing_reference_is_told_before_loading(fork_server, folder):
    rows = [{"prompt": f"number {i}:", "reference": "7" if i % 2 else None} for i in range(14)]
    lines = [json.dumps({k: v for k, v in row.items() if v}) for row in rows]
    (folder / "some.jsonl").write_text("\n".join(lines))
    settings = ("prompts=some.jsonl", "run_name=early", "model_name=/no/such/model")
    outcome = fork_server.run(folder, "train", "config.yaml", "reward=rouge_l", *settings)
    assert outcome.code == 2
    assert "rouge_l needs a reference answer, and 7 prompts (" in outcome.text
    assert len(re.findall(r"some.jsonl:\d*[13579][,)]?", outcome.text)) == 3  # the first three, and the count
    (folder / "some.jsonl").write_text("\n".join(json.dumps(row | {"reference": "seven"}) for row in rows))
    outcome = fork_server.run(folder, "train", "config.yaml", "reward=exact_number", *settings)
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
def test_r15_data_files_that_cannot_be_used(fork_server, folder, content, message):
    (folder / "bad.jsonl").write_bytes(content)
    outcome = fork_server.run(folder, "train", "config.yaml", "run_name=bad", "prompts=bad.jsonl")
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
        ("prompts: a.txt\nlearning_rate: 1e-5\nlearning_rate: 2e-5\n", "is given twice"),
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
        pytest.param(
            ["train", "config.yaml", "steps=1", "model_name=embedded/SmolLM2-135M-Instruct", "lora_layers=2"],
            marks=pytest.mark.real_model,
        ),
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
        command = [sys.executable, "-m", "burnish", *arguments]
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
    monkeypatch.setattr("burnish.text.SHORTEST_SECRET", len(said))
    monkeypatch.setenv("JUDGE_TOKEN", said)
    run = Run.new(tmp_path, "run").begin(trainer.config)
    log_step(run, results, trainer.base.tokenizer, 2)
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
    command = [sys.executable, "-m", "burnish", "train", "config.yaml", "reward=leaky.py:f", "run_name=leaky"]
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


def test_mistakes_about_folders_and_damaged_logs_end_in_a_sentence(fork_server, folder, whole):
    (folder / "a-file").touch()
    outcome = fork_server.run(folder, "train", "config.yaml", "run_dir=a-file", "run_name=x")
    assert (outcome.code, "cannot write to the run folder" in outcome.text) == (2, True), outcome.text
    run = copy_of(whole, "binary-log")
    (run / "metrics.jsonl").write_bytes(b"\xff\xfe\n")
    assert fork_server.run(folder, "verify", run).code == 4
    run = copy_of(whole, "short-log")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([*lines[:2], *lines[3:]]) + "\n")
    outcome = fork_server.run(folder, "verify", run)
    assert (outcome.code, "does not hold every step once" in outcome.text) == (4, True)
    (run / "config.yaml").write_text((run / "config.yaml").read_text() + "learning_rate: 3\n")
    outcome = fork_server.run(folder, "resume", run)
    assert (outcome.code, "is given twice" in outcome.text) == (2, True)
    assert fork_server.run(folder, "report", whole, "--output", "/no/where.html").code == 2
    listed = fork_server.run(folder, "runs")
    assert listed.code == 0
    assert "whole" in listed.text


def test_a_run_name_stays_inside_its_folder(tmp_path):
    for name in ("../x", "/etc/x", "a/b", ".hidden", "x" * 65, ""):
        (tmp_path / "c.yaml").write_text(yaml.safe_dump({"prompts": "a.txt", "run_name": name}))
        with pytest.raises(InputError, match="run_name"):
            load_train_config(tmp_path / "c.yaml")
