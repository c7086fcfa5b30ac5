"""A language model behind an API as a judge, asked over a real connection."""

import json
import math
import os
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml
from rich.console import Console

from burnish import InputError, PPOTrainer, RewardComputer, TrainConfig
from burnish.config.files import load_config
from burnish.data import Prompt
from burnish.errors import RewardFailedError
from burnish.rewards.judge import ApiJudge, JudgePart
from burnish.rewards.part import Workshop
from burnish.services import patience
from burnish.stages.reward_test import show_reward
from burnish.stages.trusted import reward_deeds
from failures import ForkServer, make_workplace
from tiny import PROMPTS, tiny_config, tiny_model, tiny_tokenizer

KEY = "sk-very-secret-0123"


class Api(ThreadingHTTPServer):
    """Answers as `say` does, after the answers in `first`; remembers what it was asked."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.reset()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def reset(self):
        self.first, self.say, self.delay = [], lambda text: "5", 0.0
        self.asked, self.bodies, self.keys = [], [], []
        self.now = self.most = 0
        self.lock = threading.Lock()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server, text = self.server, body["messages"][0]["content"]
        with server.lock:
            server.asked.append(text)
            server.bodies.append(body)
            server.keys.append(self.headers["Authorization"])
            server.now += 1
            server.most = max(server.most, server.now)
            status, answer, headers = server.first.pop(0) if server.first else (200, server.say(text), {})
        time.sleep(server.delay)
        if status == 200 and not isinstance(answer, bytes):
            choice = answer if isinstance(answer, dict) else {"message": {"content": answer}}
            answer = json.dumps({"choices": [choice], "usage": {"total_tokens": 100}}).encode()
        answer = answer if isinstance(answer, bytes) else answer.encode()
        with server.lock:
            server.now -= 1
        try:
            self.send_response(status if self.path == "/v1/chat/completions" else 404)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)
        except OSError:
            pass  # it did not wait

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def server():
    server = Api()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def api(server, monkeypatch):
    monkeypatch.setattr(patience, "FIRST_WAIT", 0.01)
    server.reset()
    return server


def judge_of(api, **keys) -> ApiJudge:
    return JudgePart(url=api.url, model="wise", **keys).make(Workshop())


# ------------------------------------------------------------------------------------------------------------- scores


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("7", 0.75),
        ("Grade: 7", 0.75),
        ("It has 2 flaws, so 3.", 0.25),
        ("7/9", 0.75),
        ("8 out of 9.", 7 / 8),
        ("It gets 1/2 of the facts right. Grade: 8", 7 / 8),
        ("I had 3 in mind. 8 / 9.0", 7 / 8),
        ("1", 0.0),
    ],
)
def test_a_grade_is_a_share_of_its_scale(api, answer, score):
    api.say = lambda text: answer
    assert judge_of(api)(["Why?"], ["So."]) == [pytest.approx(score)]  # (grade - 1) / (9 - 1)


@pytest.mark.parametrize("answer", ["good", "10", "0", "-3", "", "99"])
def test_what_is_no_grade_is_no_score(api, answer):
    api.say = lambda text: answer
    (failure,) = judge_of(api)(["Why?"], ["So."])
    assert isinstance(failure, RewardFailedError)
    assert "without a grade from 1 to 9" in str(failure)


def logprobs(**probabilities):
    top = [{"token": token, "logprob": math.log(p)} for token, p in probabilities.items()]
    return {"message": {"content": ""}, "logprobs": {"content": [{"top_logprobs": top}]}}


def test_grades_may_be_weighed_by_their_probability(api):
    api.say = lambda text: logprobs(**{"7": 0.5, " 9": 0.25, "I": 0.25})
    # worth 6/8 and 1, and what is no grade does not count
    expected = (0.5 * 0.75 + 0.25 * 1.0) / 0.75
    assert judge_of(api, score_from="logprobs")(["Why?"], ["So."]) == [pytest.approx(expected)]
    assert api.bodies[0] | {"messages": None} == {
        "model": "wise", "messages": None, "max_tokens": 1, "logprobs": True, "top_logprobs": 20, "temperature": 0,
    }  # fmt: skip


def test_a_judge_that_would_say_something_else_gives_no_score(api):
    api.say = lambda text: logprobs(I=0.6, **{"7": 0.4})
    (failure,) = judge_of(api, score_from="logprobs")(["Why?"], ["So."])
    assert "of 1, 2, 3, 4, 5, 6, 7, 8, 9 in only 40% of cases, and most likely with 'I'" in str(failure)


def better_is_longer(text):
    a, b = text.split("<answer_a>")[1].split("</answer_a>")[0], text.split("<answer_b>")[1].split("</answer_b>")[0]
    return "A" if len(a) > len(b) else "B"


def test_comparisons_swap_the_sides(api):
    prompts = [Prompt("Why?", reference="Because of it.")] * 2
    responses = ["Because of all that and more.", "So."]
    api.say = better_is_longer
    assert judge_of(api, against="reference")(prompts, responses) == [1.0, 0.0]
    assert len(api.asked) == 4
    api.say = lambda text: "**A**"  # whoever comes first
    assert judge_of(api, against="reference")(prompts, responses) == [0.5, 0.5]
    api.say = lambda text: "B is better than A"
    assert "neither A nor B" in str(judge_of(api, against="reference")(prompts, responses)[0])
    api.say = lambda text: logprobs(A=0.8, B=0.1) if "<answer_a>\nSo." in text else logprobs(A=0.25, B=0.75)
    scores = judge_of(api, against="reference", score_from="logprobs")(prompts[:1], ["So."])
    assert scores == [pytest.approx((0.8 / 0.9 + 0.75) / 2)]


def test_what_stands_in_an_answer_is_not_filled_in(api):
    judge_of(api)(["Say {response}"], ["{highest} of {nothing} {prompt}"])
    assert "Say {response}" in api.asked[0]
    assert "{highest} of {nothing} {prompt}" in api.asked[0]
    assert "from 1 (useless) to 9 (it" in api.asked[0]


def test_a_request_has_the_fields_that_its_api_knows(api):
    judge_of(api, request={"seed": 3, "max_tokens": None, "max_completion_tokens": 9})(["Why?"], ["So."])
    assert api.bodies[0].keys() == {"model", "messages", "seed", "max_completion_tokens"}


def test_a_template_of_ones_own(api, tmp_path):
    (tmp_path / "mine.txt").write_text("{prompt} | {response} | {reference} | {lowest}-{highest}")
    (tmp_path / "config.yaml").write_text(
        f"prompts: p.txt\nreward:\n- {{kind: judge, url: '{api.url}', model: m, template: mine.txt, highest: 5}}\n"
    )
    (part,) = load_config(TrainConfig, tmp_path / "config.yaml").reward_parts
    assert part.template == str(tmp_path / "mine.txt")
    assert part.files() == [tmp_path / "mine.txt"]
    assert part.make(Workshop())([Prompt("Why?", reference="It")], ["So."]) == [1.0]
    assert api.asked == ["Why? | So. | It | 1-5"]
    with pytest.raises(InputError, match=r"needs a reference answer, and the prompt .* has none"):
        part.check_prompts([Prompt("Why?")])
    (tmp_path / "mine.txt").write_text("{prompt}")
    with pytest.raises(InputError, match=r"lacks \{response\}"):
        part.check(Workshop())
    with pytest.raises(InputError, match="cannot be read"):
        JudgePart(url=api.url, model="m", template=str(tmp_path / "none.txt")).check(Workshop())


# ------------------------------------------------------------------------------------------------- a service's bad days


def test_a_busy_service_is_asked_again_when_it_says(api):
    api.first = [(429, "slow down", {"Retry-After": "0.3"}), (503, "", {}), (408, "", {})]
    started = time.monotonic()
    judge = judge_of(api)
    assert judge(["Why?"], ["So."]) == [0.5]
    assert 0.3 <= time.monotonic() - started < 3
    assert len(api.asked) == 4
    assert judge.take_costs() == {"calls": 1, "tokens": 100}


def test_waits_double_and_have_a_limit(api, monkeypatch):
    monkeypatch.setattr(patience, "FIRST_WAIT", 1.0)
    judge = judge_of(api, retries=8)
    api.first = [(500, "", {})] * 7 + [(429, "", {"Retry-After": "Wed, 21 Oct 2099 07:28:00 GMT"})]
    waits = []
    monkeypatch.setattr(patience.Patience, "_wait", lambda self, seconds: waits.append(seconds))
    assert judge(["Why?"], ["So."]) == [0.5]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_service_that_stays_away_ends_the_run_after_its_retries(api):
    api.first = [(500, "on fire", {})] * 100
    with pytest.raises(InputError, match=r"answered 500 .*on fire, and so it did when asked 2 times more") as caught:
        judge_of(api, retries=2, at_once=1)(["Why?"] * 9, [f"So {n}." for n in range(9)])
    assert not isinstance(caught.value, RewardFailedError)  # which would be asked for each response alone
    assert len(api.asked) == 3


def test_one_error_ends_all_questions(api):
    """Those that wait for their next try too."""
    api.first = [(429, "", {"Retry-After": "30"})] * 2 + [(401, "no", {})]
    started = time.monotonic()
    with pytest.raises(InputError, match="answered 401"):
        judge_of(api, at_once=3)(["Why?"] * 60, [f"So {n}." for n in range(60)])
    assert time.monotonic() - started < 15
    assert len(api.asked) == 3


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_question_that_is_refused_costs_its_response_alone(api, status):
    judge = judge_of(api, at_once=1)
    api.first = [(200, "5", {}), (status, "too long", {})]
    before, refused, after = judge(["Why?"] * 3, ["So.", "So " * 99, "Thus."])
    assert [before, after] == [0.5, 0.5]
    assert isinstance(refused, RewardFailedError)
    assert f"answered {status}" in str(refused)
    assert len(api.asked) == 3  # asking again would not help


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_service_that_refuses_every_question_ends_the_run(api, status):
    api.first = [(status, "no", {})] * 9
    with pytest.raises(InputError, match=f"answered {status}") as caught:
        judge_of(api, at_once=1)(["Why?"] * 3, ["a", "b", "c"])
    assert not isinstance(caught.value, RewardFailedError)
    assert len(api.asked) == 1


def test_nobody_there():
    with pytest.raises(InputError, match=r"refused.*asked 1 times more"):
        JudgePart(url="http://127.0.0.1:9/v1", model="m", retries=1).make(Workshop())(["p"], ["r"])


def test_a_slow_service_is_not_waited_for(api):
    api.delay = 1.0
    started = time.monotonic()
    with pytest.raises(InputError, match=r"took more than 0\.2 s|timed out"):
        judge_of(api, timeout=0.2, retries=1)(["Why?"], ["So."])
    assert time.monotonic() - started < 3


@pytest.mark.parametrize(
    "malformed", [b"{}", b"[]", b"7", b'{"choices": []}', b'{"choices": [{"message": null}]}', b"oops", b""]
)
@pytest.mark.parametrize("score_from", ["answer", "logprobs"])
def test_a_malformed_answer_costs_its_response_alone(api, malformed, score_from):
    usual = logprobs(**{"5": 1.0})
    api.say = lambda text: malformed if "bad" in text else usual | {"message": {"content": "5"}}
    computer = RewardComputer(judge_of(api, score_from=score_from))
    with pytest.warns(UserWarning, match="response 1 is left out of this step: the (judge|reward service)"):
        assert computer.compute_rewards(["p"] * 3, ["one", "bad", "two"]) == [0.5, None, 0.5]
    assert Counter(api.asked).most_common()[-1][1] == 1  # who was judged is not asked about again


def test_so_many_questions_at_once_and_no_more(api):
    api.delay = 0.05
    judge_of(api, at_once=3)(["Why?"] * 12, [f"So {n}." for n in range(12)])
    assert api.most == 3


# --------------------------------------------------------------------------------------------------------- answers kept


def test_nothing_is_asked_twice(api, tmp_path):
    file = tmp_path / "judgements.jsonl"
    api.say = lambda text: str(1 + len(text) % 8)
    first = judge_of(api)
    first.keep_answers(file)
    scores = first(["Why?"] * 3, ["So.", "So.", "A secret tale"])
    assert len(api.asked) == 2
    assert first(["Why?"], ["So."]) == scores[:1]
    file.write_bytes(file.read_bytes() + b'{"question": "ab')  # killed in the middle of a line
    again = judge_of(api)
    again.keep_answers(file)
    assert again(["Why?"] * 3, ["So.", "So.", "A secret tale"]) == scores
    assert again.take_costs() == {"calls": 0, "tokens": 0}
    assert len(api.asked) == 2
    again(["Why?"], ["Something new"])
    third = judge_of(api)
    third.keep_answers(file)
    third(["Why?"], ["Something new"])
    assert len(api.asked) == 3
    assert "secret tale" not in file.read_text()


@pytest.mark.parametrize("change", [{"model": "wiser"}, {"highest": 5}, {"request": {"temperature": 1}}, {"url": "/"}])
def test_another_question_is_asked(api, tmp_path, change):
    for keys in ({}, change):
        part = JudgePart(**{"url": api.url, "model": "wise"} | keys | ({"url": api.url + "/"} if "url" in keys else {}))
        judge = part.make(Workshop())
        judge.keep_answers(tmp_path / "judgements.jsonl")
        judge(["Why?"], ["So."])
    assert len(api.asked) == (1 if "url" in change else 2)  # a slash at the end is the same place


# -------------------------------------------------------------------------------------------------------------- secrets


def test_the_key_comes_from_the_environment_and_goes_nowhere_else(api, monkeypatch):
    monkeypatch.delenv("MY_JUDGE", raising=False)
    with pytest.raises(InputError, match="needs its token in the environment variable MY_JUDGE"):
        judge_of(api, token_env="MY_JUDGE")
    monkeypatch.setenv("MY_JUDGE", KEY)
    judge = judge_of(api, token_env="MY_JUDGE")
    judge(["Why?"], ["So."])
    assert api.keys == [f"Bearer {KEY}"]
    api.first = [(401, f"wrong key: {KEY}", {})]
    with pytest.raises(InputError, match=r"answered 401 .*wrong key: \[MY_JUDGE\]") as caught:
        judge(["Why?"], ["Other"])
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"url": "https://me:hunter2@judge/v1"}, "token_env"),
        ({"request": {"api_key": "hunter2"}}, "token_env"),
        ({"request": {"messages": []}}, "burnish's own"),
        ({"lowest": 5, "highest": 5}, "no scale"),
        ({"score_from": "logprobs", "highest": 10}, "one digit"),
    ],
)
def test_configs_that_cannot_be(keys, message):
    with pytest.raises(InputError, match=message) as caught:
        tiny_config(reward=[{"kind": "judge", "url": "https://judge/v1", "model": "m"} | keys])
    assert "hunter2" not in str(caught.value)


def test_a_stranger_has_to_ask_for_it(api):
    parts = [{"kind": "judge", "url": api.url, "model": "m", "token_env": "MY_JUDGE", "template": "/etc/hosts"}]
    deeds = list(reward_deeds(TrainConfig(prompts="p.txt", eval_reward=parts)))
    assert deeds[0] == f"send prompts and answers to {api.url}, with the key in your environment variable MY_JUDGE"
    assert deeds[1].startswith("read /etc/hosts")


# --------------------------------------------------------------------------------------------------- its place in a run


def test_a_step_compares_with_what_the_start_model_would_have_said(api):
    part = {"kind": "judge", "url": api.url, "model": "m", "against": "start"}
    trainer = PPOTrainer(tiny_config(reward=[part]), None, tiny_model(), tiny_tokenizer())
    api.say = lambda text: "A"
    expected = trainer._start_answers(PROMPTS)
    results = trainer.ppo_step(PROMPTS)
    for prompt, start, text in zip(PROMPTS, expected, results["generated_texts"], strict=True):
        sides = [
            f"<answer_a>\n{a}\n</answer_a>\n\n<answer_b>\n{b}\n</answer_b>" for a, b in ((text, start), (start, text))
        ]
        assert all(any(side in asked and prompt in asked for asked in api.asked) for side in sides)
    assert results["reward"] == 0.5
    assert results["reward_costs"] == {"judge calls": len(api.asked), "judge tokens": 100 * len(api.asked)}
    number = len(api.asked)
    trainer.policy.parameters()[0].data += 1.0  # the policy moves on, the start does not
    assert trainer._start_answers(PROMPTS) == expected
    trainer.ppo_step(PROMPTS)
    assert len(api.asked) <= number + 16


def test_reward_test_asks_it(api, capsys):
    config = TrainConfig(prompts="p.txt", reward=[{"kind": "judge", "url": api.url, "model": "m"}])
    show_reward(Console(width=100), config, "Why?", "So.")
    assert "0.500" in capsys.readouterr().out


@pytest.fixture
def with_key(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_JUDGE", KEY)
    server = ForkServer(tmp_path / "scratch")
    yield server
    server.close()


def test_a_killed_run_resumes_without_asking_again_and_tells_nobody_its_key(api, with_key, tmp_path):
    folder = make_workplace(tmp_path / "work")
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    settings["reward"] = [{"kind": "judge", "url": api.url, "model": "m", "token_env": "MY_JUDGE"}]
    settings["eval_reward"] = [
        {"kind": "judge", "url": api.url, "model": "other", "token_env": "MY_JUDGE", "against": "start"}
    ]
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    api.say = lambda text: better_is_longer(text) if "<answer_a>" in text else str(1 + sum(map(ord, text)) % 9)
    killed = with_key.run(folder, "train", "config.yaml", "run_name=killed", kill_at=2, where="save")
    assert killed.code == -9
    before, api.asked = set(api.asked), []
    assert len(before) > 10
    resumed = with_key.run(folder, "train", "config.yaml", "run_name=killed")
    assert resumed.code == 0, resumed.text
    tried = {text for text in api.asked if "A first answer." in text or "And a second one." in text}
    assert not before & set(api.asked) - tried
    assert max(Counter(text for text in api.asked if text not in tried).values()) == 1
    rows = [json.loads(line) for line in (folder / "runs/killed/metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["reward_costs"]["judge tokens"] == 100 * rows[-1]["reward_costs"]["judge calls"]
    whole = with_key.run(folder, "train", "config.yaml", "run_name=whole")
    assert whole.code == 0, whole.text
    same = [json.loads(line)["reward"] for line in (folder / "runs/whole/metrics.jsonl").read_text().splitlines()]
    assert [row["reward"] for row in rows] == same
    verdict = json.loads((folder / "runs/killed/verdict.json").read_text())
    assert all(0 <= score <= 1 for score in verdict["evaluations"]["tuned"]["second_reward"])
    api.first = [(403, f"not with {KEY}", {})] * 99
    refused = with_key.run(folder, "train", "config.yaml", "run_name=refused")
    assert refused.code == 2
    assert "[MY_JUDGE]" in refused.text
    written = [p.read_bytes() for p in folder.rglob("*") if p.is_file()]
    assert not [content for content in written if KEY.encode() in content]
    assert KEY not in killed.text + resumed.text + whole.text + refused.text
    assert os.environ["MY_JUDGE"] == KEY
