"""Rewards made of parts: rules with options, services, people, and their weighted sum."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psutil
import pytest
from rich.console import Console

from burnish import InputError, RewardComputer, TrainConfig
from burnish.data import Prompt
from burnish.errors import RewardFailedError
from burnish.ppo.reward_computer import WeightedReward
from burnish.rewards.http import HttpReward
from burnish.rewards.human import HumanReward, paused
from burnish.rewards.isolated import IsolatedFunction
from burnish.rewards.parts import labels_of
from burnish.rewards.rule import RulePart
from burnish.rewards.rules import rule
from burnish.services import service as service_module
from burnish.show import terminal
from tiny import PROMPTS, tiny_config, tiny_model, tiny_tokenizer, tiny_trainer

# ------------------------------------------------------------------------------------------------------------ rules


@pytest.mark.parametrize(
    ("name", "options", "response", "score"),
    [
        ("length_band", {"low": 2, "high": 4}, "one two three", 1.0),
        ("length_band", {"low": 2, "high": 4}, "one", 0.5),  # halfway from 0 to 2 words
        ("length_band", {"low": 2, "high": 4}, "a b c d e f", 0.5),  # halfway from 4 to 8 words
        ("length_band", {"low": 2, "high": 4}, "", 0.0),
        ("repetition", {}, "a b a b a b", -3 / 5),  # pairs ab ba ab ba ab: two different of five
        ("repetition", {}, "all words differ here", 0.0),
        ("regex", {"pattern": r"\bNo\b"}, "No, thanks", 1.0),
        ("regex", {"pattern": r"\bNo\b"}, "Nobody", 0.0),
        ("json_valid", {}, '{"a": [1, 2]}', 1.0),
        ("json_valid", {}, '{"a": [1, 2}', 0.0),
        ("json_valid", {"keys": ["a", "b"]}, '{"a": 1, "b": 2, "c": 3}', 1.0),
        ("json_valid", {"keys": ["a", "b"]}, '{"a": 1}', 0.0),
        ("json_valid", {"keys": ["a"]}, "[1]", 0.0),
        ("json_valid", {}, "[" * 100_000, 0.0),
    ],
)
def test_rules_by_hand(name, options, response, score):
    assert rule(name, options)(["p"], [response]) == [pytest.approx(score)]


def test_rules_that_compare_with_a_reference():
    prompt = Prompt("What is 6 x 7?", "file:1", reference="It is 42")
    assert rule("exact_number")([prompt] * 3, ["So 6 x 7 = 42.", "43", "no idea"]) == [1.0, 0.0, 0.0]
    assert rule("exact_number")([Prompt("p", reference="1,250.50")], ["about 1250.5"]) == [1.0]
    assert rule("exact_number")([Prompt("p", reference="5")] * 3, ["2-5", "it is -5", "5."]) == [1.0, 0.0, 1.0]
    assert rule("exact_number")([Prompt("p", reference="0.5"), Prompt("p", reference="-3")], [".5", "x = -3"]) == [1, 1]
    assert rule("rouge_l")([prompt], ["It is 42"]) == [1.0]
    assert rule("rouge_l")([Prompt("p", reference="Кот спит")], ["кот спит"]) == [1.0]
    with pytest.raises(InputError, match="rouge_l needs a reference answer, and the prompt 'bare' has none"):
        rule("rouge_l")(["bare"], ["x"])
    twice = [Prompt("2+2?", "file:1"), Prompt("2+2?", "file:2", reference="4")]  # the second must not hide the first
    with pytest.raises(InputError, match="file:1 has none"):
        rule("rouge_l")(twice, ["4", "4"])
    with pytest.raises(InputError, match="file:9 has a reference without a number"):
        rule("exact_number")([Prompt("p", "file:9", reference="none")], ["x"])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("length", {}, "did you mean 'length_band'"),
        ("length_band", {"lo": 3}, "has no option 'lo'; it takes low, high; did you mean 'low'"),
        ("repetition", {"x": 1}, "it takes none"),
    ],
)
def test_rules_that_cannot_be(name, options, message):
    with pytest.raises(InputError, match=message):
        rule(name, options)


@pytest.mark.parametrize(
    ("name", "options"), [("length_band", {"low": 9, "high": 2}), ("regex", {"pattern": "("}), ("regex", {})]
)
def test_options_that_cannot_be(name, options):
    with pytest.raises(InputError, match=name):
        rule(name, options or None)(["p"], ["r"])


# --------------------------------------------------------------------------------------------------------- services


class _Service(BaseHTTPRequestHandler):
    """Behaves as its path says."""

    def do_POST(self):
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        getattr(self, self.path.strip("/"))(sent)

    def answer(self, body, status=200, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def good(self, sent):
        rewards = [len(p) + len(r) for p, r in zip(sent["prompts"], sent["responses"], strict=True)]
        self.answer(json.dumps({"rewards": rewards}).encode())

    def slow(self, sent):
        time.sleep(2)
        self.good(sent)

    def drip(self, sent):
        """Never silent for long, never done."""
        self.send_response(200)
        self.end_headers()
        try:
            for _ in range(100):
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.1)
        except OSError:
            pass

    def drip_head(self, sent):
        """A header that never ends."""
        self._drip(b"HTTP/1.0 200 OK\r\nX-Long: ")

    def drip_chunk(self, sent):
        self._drip(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;")

    def _drip(self, start):
        try:
            self.wfile.write(start)
            for _ in range(100):
                self.wfile.write(b"a")
                time.sleep(0.1)
        except OSError:
            pass

    def guarded(self, sent):
        if self.headers["Authorization"] == "Bearer open-sesame":
            self.good(sent)
        else:
            self.answer(b"", 401)

    def cut(self, sent):
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b'{"rewards": [1, 2]}')

    def huge(self, sent):
        self.send_response(200)
        self.end_headers()
        try:
            for _ in range(200):
                self.wfile.write(b" " * 100_000)
        except OSError:
            pass

    def redirecting(self, sent):
        self.answer(b"", 302, Location="/good")

    def broken(self, sent):
        self.answer(b"", 500)

    def text(self, sent):
        self.answer(b"seven")

    def wrong(self, sent):
        self.answer(b'{"scores": [1]}')

    def words(self, sent):
        self.answer(json.dumps({"rewards": ["good"] * len(sent["responses"])}).encode())

    def few(self, sent):
        self.answer(b'{"rewards": [1]}')

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def service():
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_a_service_scores(service):
    computer = RewardComputer(HttpReward(f"{service}/good"))
    assert computer.compute_rewards(["ab", "c"], ["x", "yz"]) == [3.0, 3.0]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("slow", "failed: timed out|took more than"),
        ("drip", "took more than 0.5 s"),
        ("drip_head", "took more than 0.5 s"),
        ("drip_chunk", "took more than 0.5 s"),
        ("cut", "failed: IncompleteRead|hung up in the middle"),
        ("huge", "more than 1 MB"),
        ("redirecting", r"answered 302 .*redirects are not followed"),
        ("broken", "answered 500"),
        ("text", "did not answer in JSON"),
        ("wrong", r'must answer \{"rewards"'),
        ("words", "response 0 is 'good', not a number"),
    ],
)
def test_services_that_misbehave(service, monkeypatch, path, message):
    monkeypatch.setattr(HttpReward, "retry_seconds", 0.0)
    monkeypatch.setattr(service_module, "MAX_ANSWER_BYTES", 2**20)
    started = time.monotonic()
    with pytest.raises(InputError, match=message):
        RewardComputer(HttpReward(f"{service}/{path}", seconds=0.5)).compute_rewards(["a", "b"], ["x", "y"])
    assert time.monotonic() - started < 5


def test_a_service_that_cannot_answer_for_all_is_asked_for_each(service, monkeypatch):
    monkeypatch.setattr(HttpReward, "retry_seconds", 0.0)
    assert RewardComputer(HttpReward(f"{service}/few")).compute_rewards(["a", "b"], ["x", "y"]) == [1.0, 1.0]


def test_a_service_that_is_not_there():
    with pytest.raises(InputError, match=r"failed: .*refused"):
        HttpReward("http://127.0.0.1:9", seconds=1)(["p"], ["r"])


@pytest.mark.parametrize("address", ["169.254.169.254", "::ffff:169.254.169.254", "fe80::1%eth0"])
def test_link_local_addresses_are_refused(monkeypatch, address):
    class Socket:
        getpeername = staticmethod(lambda: (address, 80))
        settimeout = close = staticmethod(lambda *_: None)

    def connect(connection):
        connection.sock = Socket()

    monkeypatch.setattr(service_module.http.client.HTTPConnection, "connect", connect)
    with pytest.raises(InputError, match="link-local"):
        HttpReward("http://judge")(["p"], ["r"])


def test_a_token_comes_from_the_environment(service, monkeypatch):
    with pytest.raises(InputError, match="needs its token in the environment variable JUDGE_TOKEN"):
        HttpReward(f"{service}/guarded", token_env="JUDGE_TOKEN")
    monkeypatch.setenv("JUDGE_TOKEN", "open\nsesame")
    with pytest.raises(InputError, match="needs its token"):
        HttpReward(f"{service}/guarded", token_env="JUDGE_TOKEN")
    monkeypatch.setenv("JUDGE_TOKEN", "open-sesame\n")  # as `$(cat file)` would not leave it, but others do
    assert HttpReward(f"{service}/guarded", token_env="JUDGE_TOKEN")(["p"], ["r"]) == [2]
    with pytest.raises(InputError, match="answered 401"):
        HttpReward(f"{service}/guarded")(["p"], ["r"])


@pytest.mark.parametrize(
    "url",
    [
        "https://me:hunter2@judge/x", "https://judge/x?api_key=hunter2", "http://me:hunter2@judge:99999/x",
        "ftp://me:hunter2@judge/x", "https://judge/x?size=3&sig=hunter2",
    ],
)  # fmt: skip
def test_secrets_have_no_place_in_an_address(url):
    with pytest.raises(InputError, match="token_env: MY_TOKEN") as caught:
        tiny_config(reward=[{"kind": "http", "url": url}])
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("query", ["max_tokens=64", "tokenizer=x", "author=me", "keywords=a"])
def test_harmless_parameters_are_allowed(query):
    tiny_config(reward=[{"kind": "http", "url": f"https://judge/x?{query}"}])


# ----------------------------------------------------------------------------------------------------------- people


def test_people_are_asked_once_and_their_answers_kept(tmp_path):
    file = tmp_path / "scores.jsonl"
    file.write_text(json.dumps({"prompt": "p", "response": "known", "score": 2}) + "\n")
    asked = []

    def ask(prompt, response):
        asked.append(response)
        return "no number" if len(asked) == 1 else "4.5"

    reward = HumanReward(file, ask)
    assert reward(["p", "p", "p"], ["known", "new", "new"]) == [2.0, 4.5, 4.5]
    assert asked == ["new", "new"]  # once more because the first answer was no number
    assert HumanReward(file, None)(["p"], ["new"]) == [4.5]
    with pytest.raises(InputError, match="1 responses have no score"):
        HumanReward(file, None)(["p"], ["unseen"])
    (tmp_path / "empty.jsonl").touch()
    assert HumanReward(tmp_path / "empty.jsonl", lambda p, r: "1")(["p"], ["r"]) == [1.0]


def test_a_file_that_a_person_wrote_keeps_its_last_line(tmp_path):
    file = tmp_path / "scores.jsonl"
    file.write_text('{"prompt": "p", "response": "r", "score": 1}')  # and no line feed
    HumanReward(file, lambda prompt, response: "2")(["p"], ["other"])
    assert HumanReward(file, None).scores == {("p", "r"): 1.0, ("p", "other"): 2.0}
    with pytest.raises(InputError, match="path: String should match pattern"):
        TrainConfig(prompts="p.txt", reward=[{"kind": "human", "path": "scores.csv"}])


def test_nothing_moves_while_a_person_is_asked():
    console = Console(file=io.StringIO(), force_terminal=True)
    with terminal.StepProgress(console, 3) as progress, terminal.busy(Console(quiet=True), "waiting"):
        assert progress._progress.live.is_started
        with paused():
            assert not progress._progress.live.is_started
        assert progress._progress.live.is_started
    assert not progress._progress.live.is_started
    with paused():
        pass
    assert not progress._progress.live.is_started


# ---------------------------------------------------------------------------------------------------------- the mix


def constant(value):
    return lambda prompts, responses: [value] * len(responses)


def test_parts_are_weighted_and_logged_apart():
    computer = RewardComputer([WeightedReward("a", constant(2.0), 0.5), WeightedReward("b", constant(3.0), -1.0)])
    rewards = computer.compute_rewards(["p", "q"], ["r", "s"])
    assert rewards == [-2.0, -2.0]  # 0.5 * 2 - 3
    assert rewards.part_means == {"a": 2.0, "b": 3.0}
    assert rewards.parts == {"a": [2.0, 2.0], "b": [3.0, 3.0]}
    assert rewards.at([1]).parts == {"a": [2.0], "b": [3.0]}
    assert computer.name == "0.5 a + -1 b"


def test_a_part_may_score_tokens_and_the_others_join_at_the_last():
    def per_token(prompts, responses, tokens):
        return [[1.0] * len(t) for t in tokens]

    computer = RewardComputer([WeightedReward("tokens", per_token, 0.5), WeightedReward("whole", constant(3.0), 2.0)])
    rewards = computer.compute_rewards(["p"], ["one two three"])
    assert rewards == [[0.5, 0.5, 6.5]]
    assert rewards.part_means == {"tokens": 3.0, "whole": 3.0}
    assert rewards.parts == {"tokens": [3.0], "whole": [3.0]}  # summed over the tokens


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (lambda t: [[] for _ in t], "response 0 is an empty list"),
        (lambda t: [10**400 for _ in t], "response 0 is inf"),
        (lambda t: [1e39 for _ in t], r"response 0 is 1e\+39; a reward must stay below"),
    ],
)
def test_scores_that_cannot_be(scores, message):
    with (
        pytest.raises(InputError, match=f"more than half of the responses could not be scored: .*{message}"),
        pytest.warns(UserWarning, match="left out"),
    ):
        RewardComputer(lambda prompts, responses, tokens: scores(tokens)).compute_rewards(["p", "q"], ["r", "s"])


def test_parts_must_agree_on_the_number_of_tokens():
    parts = [WeightedReward(n, lambda p, r, tokens, n=n: [[1.0] * len(n)] * len(r)) for n in ("a", "ab")]
    with pytest.raises(InputError, match="different numbers of rewards"):
        RewardComputer(parts).compute_rewards(["p"], ["one two"])


class _Picky:
    """Not a plain function, and it fails for one response."""

    def __call__(self, prompts, responses):
        if "bad" in responses:
            raise ValueError("\x1b[31mcannot\u202e")
        return [1.0] * len(responses)


def test_anything_callable_is_asked_for_each_response_alone():
    computer = RewardComputer(_Picky())
    with pytest.warns(UserWarning, match=r"response 1 is left out of this step: .*ValueError: \[31mcannot \("):
        rewards = computer.compute_rewards(["a", "b", "c"], ["x", "bad", "y"])
    assert rewards == [1.0, None, 1.0]
    assert rewards.num_left_out == 1


def test_a_reward_that_always_fails_is_given_up_after_half():
    calls = []

    def failing(prompts, responses):
        calls.append(len(responses))
        raise ValueError

    with pytest.raises(InputError, match="more than half"):
        RewardComputer(failing).compute_rewards(["p"] * 8, ["r"] * 8)
    assert calls == [8, 8, *[1] * 5]  # asked, asked again, then alone until more than half have failed


def test_a_config_mixes_rules(tmp_path):
    (tmp_path / "mine.py").write_text("def length(prompts, responses):\n    return [len(r) for r in responses]\n")
    config = tiny_config(
        reward=[
            {"kind": "rule", "name": "length_band", "options": {"low": 1, "high": 2}, "weight": 2},
            {"kind": "python", "function": f"{tmp_path / 'mine.py'}:length", "weight": 0.1},
            {"kind": "rule", "name": "length_band"},
        ]
    )
    from burnish import PPOTrainer

    trainer = PPOTrainer(config, None, tiny_model(), tiny_tokenizer())
    results = trainer.ppo_step(PROMPTS)
    assert list(results["reward_parts"]) == ["length_band", "length", "length_band_2"]
    parts = results["reward_parts"]
    expected = 2 * parts["length_band"] + 0.1 * parts["length"] + parts["length_band_2"]
    assert results["reward"] == pytest.approx(expected, rel=1e-5)


def test_names_of_parts_are_unique():
    names = ["model", "http", "model", "model"]
    assert labels_of([RulePart(name=n) for n in names]) == ["model", "http", "model_2", "model_3"]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"kind": "modl", "path": "x"}, "reward, part 1: kind is one of model, ensemble, rule, .*got 'modl'"),
        ({"kind": "http", "url": "ftp://x"}, "reward, part 1: url: 'ftp://x' is no address such as https://host/path"),
        ({"kind": "http", "url": "http:///nowhere"}, "reward, part 1: url: .*is no address such as"),
        ({"kind": "http", "url": "http://[::1/x"}, "reward, part 1: url: .*is not an address"),
        ({"kind": "rule", "name": "tldr", "wieght": 2}, "reward, part 1: unknown key 'wieght'"),
        ({"kind": "python", "function": "mine"}, "reward, part 1: function: "),
    ],
)
def test_parts_that_cannot_be_are_refused(part, message):
    with pytest.raises(InputError, match=message):
        tiny_config(reward=[part])


def test_a_single_word_is_still_a_reward():
    assert tiny_trainer(reward=None).config.reward_parts[0].name == "tldr"


# ------------------------------------------------------------------------------------- functions, in their own process


def _function(tmp_path, body, seconds=60.0, before=""):
    """`f` of a file with this body."""
    (tmp_path / "own.py").write_text(f"import os, re, sys, time\n{before}\ndef f(prompts, responses):\n    {body}\n")
    return IsolatedFunction(f"{tmp_path}/own.py:f", seconds)


def test_a_worker_that_holds_the_interpreter_ends_with_its_killed_trainer(tmp_path):
    runaway = "open('pid', 'w').write(str(os.getpid())); re.match(r'(a+)+$', 'a' * 40 + 'b')"
    _function(tmp_path, runaway)
    script = "from burnish.rewards.isolated import IsolatedFunction as F; F('own.py:f')(['p'], ['r'])"
    trainer = subprocess.Popen([sys.executable, "-P", "-c", script], cwd=tmp_path)
    deadline = time.monotonic() + 60
    while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    worker = psutil.Process(int((tmp_path / "pid").read_text()))
    try:
        time.sleep(0.5)  # now it is inside the expression, where no other thread runs
        trainer.kill()
        trainer.wait()
        worker.wait(timeout=10)
    finally:
        if worker.is_running():
            worker.kill()
    assert not worker.is_running()


def test_a_worker_whose_trainer_is_gone_before_it_is_up_ends_at_once(tmp_path):
    _function(tmp_path, "return [1.0]", before="time.sleep(1000)")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    command = [sys.executable, "-P", "-m", "burnish.rewards.worker", f"{tmp_path}/own.py:f", str(gone.pid)]
    assert subprocess.run(command, timeout=60).returncode == 1


def test_a_function_outlives_the_thread_that_first_called_it(tmp_path):
    function = _function(tmp_path, "return [1.0] * len(responses)")
    first = threading.Thread(target=function, args=(["p"], ["r"]))
    first.start()
    first.join()
    time.sleep(0.5)  # Linux ends a process with the thread that started it
    assert function(["p", "q"], ["r", "s"]) == [1.0, 1.0]


@pytest.mark.parametrize(
    "body",
    [
        "os.closerange(0, 100); time.sleep(1000)",  # the answer never comes, and the pipe is closed
        "os.closerange(3, 100); time.sleep(1000)",
    ],
)
def test_the_time_limit_holds_though_the_worker_closed_its_pipe(tmp_path, body):
    function = _function(tmp_path, body, seconds=1.0)
    function.start()
    started = time.monotonic()
    with pytest.raises(RewardFailedError, match="took more than 1 s"):
        function(["p"], ["r"])
    assert time.monotonic() - started < 20


def test_the_time_limit_holds_while_the_question_is_written(tmp_path):
    function = _function(tmp_path, "return [1.0] * len(responses)", seconds=1.0)
    worker = function.start()._worker
    os.kill(worker.pid, signal.SIGSTOP)  # it reads nothing, so a question larger than a pipe is never taken
    started = time.monotonic()
    with pytest.raises(RewardFailedError, match="took more than 1 s"):
        function(["p"], ["r" * 10_000_000])
    assert time.monotonic() - started < 20
    assert function(["p"], ["r" * 10_000_000]) == [1.0]  # a large one as such is no trouble


def test_a_function_may_close_or_read_its_standard_input(tmp_path):
    function = _function(tmp_path, "found = sys.stdin.read(); os.close(0); return [len(found)] * len(responses)")
    worker = function.start()._worker
    assert function(["p"], ["r"]) == [0]
    with pytest.raises(RewardFailedError, match=r"ValueError|OSError"):  # its own trouble, told as such
        function(["p"], ["r"])
    assert function._worker is worker


@pytest.mark.parametrize("ending", ["sys.exit(SECRET)", "raise KeyboardInterrupt(SECRET)", "raise ValueError(SECRET)"])
@pytest.mark.parametrize("when", ["while the file is run", "while the function is called"])
def test_however_a_reward_ends_it_is_told_without_secrets(tmp_path, monkeypatch, capfd, ending, when):
    secret = "sk-'planted\"\\n<&>\u00e9"
    monkeypatch.setenv("JUDGE_API_KEY", secret)
    ending = ending.replace("SECRET", "os.environ['JUDGE_API_KEY']")
    first, then = (ending, "return [1.0]") if when == "while the file is run" else ("", ending)
    with pytest.raises(InputError, match=r"(SystemExit|KeyboardInterrupt|ValueError): \[JUDGE_API_KEY\]") as caught:
        _function(tmp_path, then, before=first)(["p"], ["r"])
    assert secret not in str(caught.value)
    shown = capfd.readouterr()
    assert "planted" not in shown.out + shown.err


def test_an_error_that_cannot_say_what_it_is_costs_only_its_call(tmp_path):
    mute = "class Mute(Exception):\n    def __str__(self): raise self\n"
    function = _function(tmp_path, "raise Mute", before=mute)
    with pytest.raises(RewardFailedError, match="failed with Mute"):
        function(["p"], ["r"])


def test_what_a_function_prints_never_stops_it(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    function = _function(tmp_path, "print('\u2192 \u4e2d'); return [1.0]")
    assert function(["p"], ["r"]) == [1.0]
    assert "\\u2192" in capfd.readouterr().err  # at once, while the worker still waits for the next question


def test_a_function_that_python_knows_no_arguments_of_is_called_without_tokens(tmp_path):
    (tmp_path / "own.py").write_text("from builtins import map as f\n")
    function = IsolatedFunction(f"{tmp_path}/own.py:f")
    assert not function.takes_tokens


def test_a_function_that_gives_the_wrong_number_of_values_is_told_so():
    def first_only(prompts, responses):
        return [1.0]

    with pytest.warns(UserWarning, match="first_only returned 1 values for 3 responses; it needs one each; it is"):
        assert RewardComputer(first_only).compute_rewards(["a", "b", "c"], ["x", "y", "z"]) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(("weight", "told"), [(1e308, "is inf; a reward must be finite"), (1e15, "must stay below 1e")])
def test_a_weight_that_makes_a_sum_too_large_is_refused_by_response(weight, told):
    trainer = tiny_trainer()
    same = constant(9.0)
    trainer.reward_computer = RewardComputer([WeightedReward(name, same, weight) for name in ("a", "b")])
    with pytest.raises(InputError, match=rf"the reward of response 0 .*{told}"):
        trainer.ppo_step(PROMPTS[:3])
