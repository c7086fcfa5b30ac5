"""`burnish serve` as a process: what docs/serving.md shows is run against it, and Ctrl-C ends it in order."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import openai
import pytest
import torch

from talkers import GREEDY, served_run, tiny_run

DOCS = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
TOKEN = "a-token-that-nobody-guesses"


def shown(language, word):
    """The block of the docs that has a word in it."""
    return next(code for code in re.findall(rf"```{language}\n(.*?)```", DOCS, re.DOTALL) if word in code)


class Process:
    """The command, in a fork of a process that has everything imported."""

    def __init__(self, fork_server, run, *options, **environment):
        self.fork_server = fork_server
        self.pid = fork_server.start(run.parent, "serve", run, "--port", "0", *options, environment=environment)
        out, err = fork_server._files[self.pid]
        end = time.monotonic() + 120
        while "Ctrl-C ends it." not in self._told(out):
            assert time.monotonic() < end, self._told(err)
            time.sleep(0.05)
        self.told = self._told(out)
        self.address = re.search(r"http://\S+/v1", self.told)[0]

    def _told(self, file):
        return file.read_text() if file.exists() else ""

    def end(self, number=signal.SIGINT):
        os.kill(self.pid, number)
        ended = self.fork_server.wait(self.pid)
        return ended.code, ended.err


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return tiny_run(tmp_path_factory.mktemp("served"), name="first", max_new_tokens=16)


def test_what_the_docs_show_of_chats_works_and_ctrl_c_ends_it(fork_server, tmp_path, capsys):
    run = tiny_run(tmp_path, name="first", chat=True, max_new_tokens=16)
    started = Process(fork_server, run)
    try:
        assert started.told.startswith("first (tuned) and first:start (base) answer at http://127.0.0.1:")
        snippet = shown("python", "OpenAI").replace("http://127.0.0.1:8000/v1", started.address)
        exec(compile(snippet, "docs/serving.md", "exec"), {})
        said = capsys.readouterr().out
        speakers = served_run(run).speakers
        expected = speakers.answers("tuned", ["My parrot swears. Why?"], GREEDY, 0)[0]
        assert f"first {expected} " in said
        assert f"first:start {speakers.answers('base', ['My parrot swears. Why?'], GREEDY, 0)[0]} " in said
        curl = shown("bash", "curl").replace("http://127.0.0.1:8000/v1", started.address)
        answer = json.loads(subprocess.run(["sh", "-c", curl], capture_output=True, text=True).stdout)
        assert answer["choices"][0]["message"]["content"] == expected
    finally:
        code, err = started.end()
    assert (code, err.splitlines()[-1], "Traceback" in err) == (130, "interrupted", False)


def test_what_the_docs_show_of_completions_works(fork_server, tmp_path, capsys):
    run = tiny_run(tmp_path, name="plain", max_new_tokens=16)
    started = Process(fork_server, run)
    try:
        assert "Prompts for plain must end in ':', as in training." in started.told
        client = openai.OpenAI(base_url=started.address, api_key="none")
        exec(compile(shown("python", "plain"), "docs/serving.md", "exec"), {"client": client})
        expected = served_run(run).speakers.answers("tuned", ["TITLE: My parrot swears\nTL;DR:"], GREEDY, 0)[0]
        assert capsys.readouterr().out == f"{expected}\n"
    finally:
        started.end()


def test_beyond_this_machine_it_has_a_token(fork_server, run):
    started = Process(fork_server, run, "--host", "0.0.0.0", "--token-env", "OWN_SECRET", OWN_SECRET=TOKEN)
    try:
        assert "Other machines can reach it." in started.told
        assert TOKEN not in started.told
        address = re.sub(r"//[^:]+:", "//127.0.0.1:", started.address)
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=address, api_key="another", max_retries=0).models.list()
        assert openai.OpenAI(base_url=address, api_key=TOKEN, max_retries=0).models.list().data
    finally:
        code, err = started.end(signal.SIGTERM)
    assert (code, "Traceback" in err) == (-signal.SIGTERM, False)


def test_beyond_this_machine_a_token_is_made_even_if_nobody_asks_for_one(fork_server, run):
    started = Process(fork_server, run, "--host", "0.0.0.0")
    try:
        token = re.search(r"The token, until it ends: (\S+)", started.told)[1]
        address = re.sub(r"//[^:]+:", "//127.0.0.1:", started.address)
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=address, api_key="none", max_retries=0).models.list()
        assert openai.OpenAI(base_url=address, api_key=token, max_retries=0).models.list().data
    finally:
        started.end()


def test_a_token_that_was_made_is_told_however_quiet_it_should_be(run, capsys):
    from rich.console import Console

    from burnish.serving.server import _print_start
    from burnish.web.access import Access
    from burnish.web.listening import listen

    access, listening = Access("0.0.0.0", 1), listen("127.0.0.1", (0,))
    _print_start(Console(quiet=True), served_run(run), access, listening, token_is_new=True)
    listening.close()
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"The token, until it ends: {access.token}\n")


def test_a_host_that_is_no_name_is_refused():
    from burnish.errors import InputError
    from burnish.web.listening import listen

    for host in ("127..0.0.1", "x" * 64 + ".example"):
        with pytest.raises(InputError, match="is not an address"):
            listen(host, (0,))


def test_a_token_that_is_none_and_a_port_that_is_taken_are_refused(run, monkeypatch):
    from rich.console import Console

    from burnish.errors import InputError
    from burnish.serving.engine import Limits
    from burnish.serving.server import Where, serve
    from burnish.web.listening import listen

    monkeypatch.setenv("SHORT", "12345")
    for variable, found in (("SHORT", "holds no token that is hard to guess"), ("UNSET", "is not set")):
        with pytest.raises(InputError, match=f"--token-env: {variable} {found}"):
            serve(Console(quiet=True), str(run), Where(token_env=variable), Limits(), False)
    taken = listen("127.0.0.1", (0,))
    taken.listen()
    with pytest.raises(InputError, match="choose another with --port"):
        serve(Console(quiet=True), str(run), Where(port=taken.getsockname()[1]), Limits(), False)
    taken.close()


def test_a_run_that_has_not_finished_is_refused_with_the_way_to_its_checkpoints(run, tmp_path):
    from rich.console import Console

    from burnish.errors import InputError
    from burnish.serving.chat import chat
    from burnish.serving.engine import Limits
    from burnish.serving.server import Where, serve

    half = tmp_path / "half"
    shutil.copytree(run, half)
    shutil.rmtree(half / "adapters" / "policy")
    for step in (2, 4):
        (half / "checkpoints" / f"step-{step:06d}").mkdir(parents=True)
    with pytest.raises(InputError, match=r"has not finished.* \(2, 4\): burnish generate .*half PROMPT --step 4$"):
        serve(Console(quiet=True), str(half), Where(port=0), Limits(), False)
    with pytest.raises(InputError, match=r"burnish resume .*half"):
        chat(Console(quiet=True), str(half), 0, False)


@pytest.mark.real_model
def test_the_embedded_model_answers_both_ways(tmp_path):
    """Six at once: each as it is alone, and greedy answers as transformers gives them."""
    from transformers import AutoModelForCausalLM

    from burnish import EMBEDDED_NAME, PPOConfig, PPOTrainer
    from burnish.base_setup.embedded import embedded_model_folder
    from burnish.rollout.sampling import Sampler
    from burnish.serving.answer import Question
    from burnish.serving.engine import Engine, Limits
    from talkers import together

    config = PPOConfig(model_name=EMBEDDED_NAME, chat_template=True, max_new_tokens=8, reward="tldr")
    PPOTrainer(config).save(tmp_path / "run")
    served = served_run(tmp_path / "run")
    engine = Engine(served.speakers.setup.base, Limits())
    asked = [[{"role": "user", "content": f"Name {n} animals."}] for n in range(2, 5)]
    model = AutoModelForCausalLM.from_pretrained(embedded_model_folder())
    tokenizer, told, questions = served.speakers.setup.base.tokenizer, [], []
    for messages in asked:
        ids = served.read_chat(None, messages)
        out = model.generate(input_ids=torch.tensor([ids]), do_sample=False, max_new_tokens=8)
        told.append(tokenizer.decode(out[0, len(ids) :], skip_special_tokens=True))
        questions.append(Question(None, ids, 8, GREEDY))
    drawn = [Question("policy", q.prompt, 8, Sampler(0.8, 50, 0.95), seed=3) for q in questions]
    alone = [together(engine, [own])[0] for own in drawn]
    assert together(engine, [*questions, *drawn]) == told + alone
    engine.close()
