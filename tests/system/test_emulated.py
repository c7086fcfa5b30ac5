"""burnish runs without what Windows and macOS lack: as_windows.py and as_macos.py switch it off."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from burnish.decoder import memory

QUIET = {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "100", "PYTHONUNBUFFERED": "1"}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    from tiny import tiny_model, tiny_tokenizer

    folder = tmp_path_factory.mktemp("work")
    tiny_model().save_pretrained(folder / "model")
    tiny_tokenizer().save_pretrained(folder / "model")
    (folder / "prompts.txt").write_text("".join(f"number {n}:\n" for n in range(12)))
    (folder / "judge.py").write_text("def short(prompts, responses):\n    return [-float(len(r)) for r in responses]\n")
    (folder / "config.yaml").write_text(
        "model_name: model\nprompts: prompts.txt\nreward: judge.py:short\nnum_eval_prompts: 4\nbatch_size: 4\n"
        "steps: 2\nepochs: 1\nmax_new_tokens: 5\nsave_every: 1\nmax_kl: null\n"
    )
    return folder


def emulated(system, folder, *arguments, code=0, typed=""):
    command = [sys.executable, str(Path(__file__).with_name(f"as_{system}.py")), *arguments]
    given = {"cwd": folder, "env": os.environ | QUIET, "input": typed}
    done = subprocess.run(command, **given, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def as_windows(folder, *arguments, **more):
    return emulated("windows", folder, *arguments, **more)


@contextmanager
def served(folder, *arguments):
    """The address that a command says it listens at, as Windows would have it."""
    command = [sys.executable, str(Path(__file__).with_name("as_windows.py")), *arguments]
    file = folder / "served.txt"
    with (
        open(file, "w") as said,
        subprocess.Popen(command, cwd=folder, env=os.environ | QUIET, stdout=said, stderr=said) as process,
    ):
        try:
            end = time.monotonic() + 120
            while not (found := re.search(r"http://\S+(?=\s)", file.read_text())):
                assert process.poll() is None, file.read_text()
                assert time.monotonic() < end
                time.sleep(0.1)
            yield found[0]
        finally:
            process.kill()


def asked(address, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        return answer.read().decode()


def test_a_run_trains_saves_and_resumes_without_what_windows_lacks(workplace):
    commands = ["train config.yaml run_name=one", "resume runs/one", "resume runs/one --from 1 steps=3"]
    commands += ["verify runs/one", "report runs/one", "runs"]
    said = as_windows(workplace, *" --then ".join(commands).split())
    for words in ("already finished", "Resuming after step 1 of 3", "3 steps, each once", "report.html", "outcome"):
        assert words in said
    names = [path.name for path in (workplace / "runs").rglob("*")]
    assert not [name for name in names if set(name) & set('<>:"\\|?*') or name.endswith((" ", "."))]


@pytest.fixture(scope="module")
def finished(workplace):
    as_windows(workplace, *"train config.yaml run_name=two steps=1".split())
    return workplace


def test_the_result_is_exported_and_talked_to_without_what_windows_lacks(finished):
    commands = "export runs/two --to adapter --prompt number: --then chat runs/two"
    said = as_windows(finished, *commands.split(), typed="9:\n")
    assert "Done" in said
    assert (finished / "runs/two/exports/adapter/adapter_model.safetensors").is_file()
    assert re.search(r"base:.*tuned:", said, re.DOTALL)


def test_servers_answer_without_what_windows_lacks(finished):
    with served(finished, "serve", "runs/two", "--port", "0") as address:
        asking = {"model": "two", "prompt": "number 3:", "max_tokens": 3, "temperature": 0}
        assert json.loads(asked(f"{address}/completions", asking))["usage"]["completion_tokens"] >= 1
    with served(finished, "--light", "page", "runs") as address:
        assert "two" in asked(address)


def test_a_folder_to_start_from_is_written_without_what_windows_lacks(tmp_path):
    said = as_windows(tmp_path, *"--light init blank mine".split())
    assert "Next: burnish train mine/config.yaml" in said
    assert (tmp_path / "mine" / "reward.py").is_file()


def test_a_run_trains_and_resumes_under_the_name_of_macos(workplace):
    commands = ["train config.yaml run_name=mac steps=1", "resume runs/mac steps=2", "verify runs/mac"]
    said = emulated("macos", workplace, *" --then ".join(commands).split())
    assert "2 steps, each once" in said
    assert json.loads((workplace / "runs/mac/result.json").read_text())["peak_memory_gb"] > 0


def test_each_system_tells_its_peak_of_memory_in_its_own_unit(monkeypatch):
    usage = SimpleNamespace(RUSAGE_SELF=0, getrusage=lambda _: SimpleNamespace(ru_maxrss=3 * 2**20))
    monkeypatch.setattr(memory, "if_there", lambda _: usage)
    for name, expected in (("darwin", 3 * 2**20), ("freebsd14", 3 * 2**30)):  # bytes; kilobytes
        monkeypatch.setattr(sys, "platform", name)
        assert memory.peak_bytes() == expected
    monkeypatch.setattr(memory, "if_there", lambda _: None)
    held = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=5, peak_wset=7))
    monkeypatch.setattr(memory.psutil, "Process", lambda: held)
    monkeypatch.setattr(sys, "platform", "win32")
    assert memory.peak_bytes() == 7


def test_what_only_linux_can_do_is_refused_in_a_sentence(workplace):
    rows = "".join(f'{{"prompt": "{n}", "reference": "assert True"}}\n' for n in range(12))
    (workplace / "code.jsonl").write_text(rows)
    command = ["--light", "train", "config.yaml", "prompts=code.jsonl", "reward=[{kind: code}]"]
    said = as_windows(workplace, *command, code=2)
    assert "kind: code confines what it runs with Linux's means" in said
