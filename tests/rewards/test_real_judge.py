"""A judge that is a real language model behind a real server: llama.cpp's, with the embedded model's own GGUF file.

A model of 135 million parameters judges badly. What is proved here is that burnish and the server understand each
other: what is asked, what is read off the answer, what is counted, and what happens when the server says no.
"""

import json
import math
import subprocess
import sys
import urllib.request
from importlib.util import find_spec

import pytest

from burnish import InputError, PPOTrainer
from burnish.base_setup.embedded import packaged_weights
from burnish.data import Prompt
from burnish.errors import RewardFailedError
from burnish.rewards.judge import JudgePart
from burnish.rewards.part import Workshop
from burnish.services import patience
from tiny import PROMPTS, tiny_config, tiny_model, tiny_tokenizer

pytestmark = pytest.mark.skipif(
    find_spec("xllamacpp") is None, reason="needs llama.cpp's server: pip install xllamacpp, one wheel of 34 MB"
)
SERVE = """
import sys
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.api_keys, params.port = sys.argv[1], [sys.argv[2]], 0
params.n_ctx, params.n_parallel, params.cpuparams.n_threads, params.warmup = 1024, 2, 1, False
server = xllamacpp.Server(params)
print("\\nlistens at", server.listening_address, flush=True)
sys.stdin.read()  # until the test lets go of it
"""
KEY = "sk-of-the-real-server"
GRADE = "{prompt}\n{response}\nIs this a good answer? Grade it from {lowest} to {highest}."
COMPARE = "{prompt}\nA: {a}\nB: {b}\nWhich answer is better, A or B?"
ASKED, ANSWERS = ["What is the capital of France?"] * 2, ["The capital of France is Paris.", "I like turtles."]
ONE_GRADE = {"temperature": 0, "grammar": "root ::= [1-9]"}  # llama.cpp's own field: nothing else can be said


@pytest.fixture(scope="module")
def url():
    command = [sys.executable, "-c", SERVE, str(packaged_weights()), KEY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        told = next((line.decode() for line in server.stdout if b"listens at" in line), None)
        assert told, "the server ended before it was ready"
        yield f"{told.split()[-1]}/v1"
        server.stdin.close()


@pytest.fixture
def judge_of(url, tmp_path, monkeypatch):
    """A judge, with what it is asked."""
    monkeypatch.setenv("REAL_JUDGE", KEY)

    def made(question=None, **keys):
        if question:
            (tmp_path / "question.txt").write_text(question)
            keys["template"] = str(tmp_path / "question.txt")
        keys = {"url": url, "model": "smol", "token_env": "REAL_JUDGE"} | keys
        return JudgePart(**keys).make(Workshop())

    return made


def said_by(url, text, **body):
    """What the server says when it is asked without burnish."""
    body = {"model": "smol", "messages": [{"role": "user", "content": text}], "temperature": 0} | body
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def filled(question, response, prompt=ASKED[0]):
    texts = {"{prompt}": prompt, "{response}": response, "{lowest}": "1", "{highest}": "9"}
    for name, text in texts.items():
        question = question.replace(name, text)
    return question


def test_a_grade_is_what_the_server_says_and_its_cost_is_counted(url, judge_of):
    judge = judge_of(GRADE, request=ONE_GRADE)
    scores = judge(ASKED, ANSWERS)
    said = [said_by(url, filled(GRADE, answer), **ONE_GRADE) for answer in ANSWERS]
    assert scores == [(int(own["choices"][0]["message"]["content"]) - 1) / 8 for own in said]
    assert judge.take_costs() == {"calls": 2, "tokens": sum(own["usage"]["total_tokens"] for own in said)}
    assert judge(ASKED, ANSWERS) == scores
    assert judge.take_costs() == {"calls": 0, "tokens": 0}  # nothing is asked twice


def test_grades_by_their_probability_are_those_of_the_server(url, judge_of, monkeypatch):
    """So small a judge begins with a grade in a few cases of a hundred, which is refused; but their mean is right."""
    for refused in judge_of(GRADE, score_from="logprobs")(ASKED, ANSWERS):
        assert "of 1, 2, 3, 4, 5, 6, 7, 8, 9 in only" in str(refused)
    monkeypatch.setattr("burnish.rewards.grades.LEAST_MASS", 1e-6)
    scores = judge_of(GRADE, score_from="logprobs")(ASKED, ANSWERS)
    for score, answer in zip(scores, ANSWERS, strict=True):
        own = said_by(url, filled(GRADE, answer), max_tokens=1, logprobs=True, top_logprobs=20)
        top = own["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        grades = [(int(one["token"]), math.exp(one["logprob"])) for one in top if one["token"] in set("123456789")]
        expected = sum(p * (grade - 1) / 8 for grade, p in grades) / sum(p for _, p in grades)
        assert score == pytest.approx(expected, abs=1e-3)


def test_a_comparison_is_asked_with_the_sides_swapped(judge_of):
    prompts = [Prompt(text, reference=ANSWERS[1]) for text in ASKED]
    judge = judge_of(COMPARE, against="reference", request={"temperature": 0, "grammar": "root ::= [AB]"})
    better, same = judge(prompts, ANSWERS)
    assert better in (0.0, 0.5, 1.0)
    assert same == 0.5  # against itself
    assert judge.take_costs()["calls"] == 3  # the two questions about the same two answers are one
    other = judge_of(COMPARE, against="reference", request={"temperature": 0, "grammar": "root ::= [AB]"})
    assert other([Prompt(ASKED[0], reference=ANSWERS[0])], [ANSWERS[1]]) == [1 - better]


def test_what_the_server_refuses_costs_its_response_alone_and_a_wrong_key_ends_the_run(url, judge_of, monkeypatch):
    long, short = judge_of(GRADE, request=ONE_GRADE)(["word " * 2000, ASKED[0]], ["So.", ANSWERS[0]])
    assert isinstance(long, RewardFailedError)
    assert "exceeds the available context size" in str(long)
    assert 0 <= short <= 1
    monkeypatch.setenv("REAL_JUDGE", "sk-of-somebody-else")
    with pytest.raises(InputError, match="401 Unauthorized") as error:
        judge_of(GRADE)(ASKED, ANSWERS)
    assert "somebody" not in str(error.value)
    monkeypatch.setattr(patience, "FIRST_WAIT", 0.01)
    nobody = judge_of(url="http://127.0.0.1:9/v1", retries=1)
    with pytest.raises(InputError, match="resume when it is back"):
        nobody(ASKED, ANSWERS)


def test_ppo_learns_from_it(judge_of, url):
    config = tiny_config(reward=[judge_of(GRADE, request=ONE_GRADE).part], batch_size=2, max_new_tokens=4, epochs=1)
    trainer = PPOTrainer(config, model=tiny_model(), tokenizer=tiny_tokenizer())
    step = trainer.ppo_step(PROMPTS[:2])
    answers = zip(step["generated_texts"], PROMPTS[:2], strict=True)
    said = [said_by(url, filled(GRADE, *answer), **ONE_GRADE) for answer in answers]
    assert step["rewards"] == pytest.approx([(int(own["choices"][0]["message"]["content"]) - 1) / 8 for own in said])
    assert step["reward_costs"]["judge calls"] >= 2
    assert step["reward_costs"]["judge tokens"] >= sum(own["usage"]["total_tokens"] for own in said)
