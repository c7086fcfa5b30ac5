"""What the page asks the process that computes, and what it says when that dies, hangs or is busy."""

import json
import socket
import subprocess
import sys
import time

import pytest

from burnish.config import TrainConfig
from burnish.data import load_preferences
from burnish.page import computing as computing_module
from burnish.page.computing import Computing
from burnish.runs.run import Run
from served import served

WORKER = """
import json, os, sys, time
for line in sys.stdin:
    asked = json.loads(line)
    if asked["prompt"] == "die":
        sys.exit("the last words")
    if asked["prompt"] == "silent":
        time.sleep(60)
    if asked["prompt"] == "killed":
        os.kill(os.getpid(), 9)
    for n in range(3):
        print(json.dumps({"answer": sys.argv[1], "text": "x" * n, "asked": asked, "pid": os.getpid()}), flush=True)
        time.sleep(0.5 if asked["prompt"] == "slow" else 0)
    print(json.dumps({"end": True}), flush=True)
"""


@pytest.fixture
def computing():
    made = Computing((sys.executable, "-c", WORKER))
    yield made
    made.end()


def asked(computing, prompt, folder="here"):
    return list(computing.ask(folder, {"prompt": prompt}))


def test_it_is_started_once_and_answers_in_pieces(computing):
    first, second = asked(computing, "a"), asked(computing, "b")
    assert first[0] == {"doing": "loading the models"}
    assert [own["text"] for own in second] == ["", "x", "xx"]
    assert {own["pid"] for own in first[1:]} == {own["pid"] for own in second}


def test_another_run_takes_its_place(computing):
    first, second = asked(computing, "a"), asked(computing, "a", "there")
    assert second[0] == {"doing": "loading the models"}
    assert second[1]["answer"] == "there"
    assert second[1]["pid"] != first[1]["pid"]


@pytest.mark.parametrize(
    ("prompt", "why"),
    [("die", "with code 1: the last words"), ("killed", "it was killed, or there was not enough memory")],
)
def test_a_death_is_told_and_the_next_question_starts_it_anew(computing, prompt, why):
    *_, last = asked(computing, prompt)
    assert last == {"error": f"the process that computes has ended ({why}); ask again to start it anew"}
    assert asked(computing, "a")[-1]["text"] == "xx"


def test_one_asks_at_a_time_and_who_stops_listening_ends_it(computing):
    slow = computing.ask("here", {"prompt": "slow"})
    next(slow)
    pid = next(slow)["pid"]
    assert asked(computing, "a") == [{"error": "it is still answering somebody else; wait for that, or stop it there"}]
    slow.close()
    assert asked(computing, "a")[1]["pid"] != pid


def test_it_is_ended_when_nobody_asks(computing, monkeypatch):
    monkeypatch.setattr(computing_module, "IDLE", 0.1)
    monkeypatch.setattr(computing_module, "LOOK_EVERY", 0.05)
    asked(computing, "a")
    process = computing._process
    assert process.wait(5) == -9
    end = time.monotonic() + 5
    while computing._process is not None and time.monotonic() < end:
        time.sleep(0.02)
    assert computing._process is None


@pytest.fixture
def page(tmp_path):
    Run.new(tmp_path, "first").begin(TrainConfig(prompts="p.txt", temperature=0.7))
    with served(tmp_path) as found:
        found.library.computing._command = (sys.executable, "-c", WORKER)
        yield found


def test_an_answer_comes_as_lines_of_json(page, tmp_path):
    answer = page.post("/api/chat/first", {"prompt": "<b>", "temperature": 0, "top_k": 7, "seed": 3})
    assert answer.headers["content-type"] == "application/x-ndjson"
    told = [json.loads(line) for line in answer.text.splitlines()]
    assert [own.get("text") for own in told] == [None, "", "x", "xx"]
    assert told[1]["asked"] == {"do": "answer", "prompt": "<b>", "temperature": 0.0, "top_k": 7, "seed": 3}
    scored = page.post("/api/chat/first", {"do": "score", "prompt": "p", "response": "r"}).text.splitlines()
    assert json.loads(scored[0])["asked"] == {"do": "score", "prompt": "p", "response": "r", "reference": ""}
    shown = page.ask("/api/chat/first").json
    assert (shown["sampling"]["temperature"], shown["is_chat"], shown["speakers"]) == (0.7, False, ["start"])
    assert "Nothing is learned yet" in page.ask("/chat/first").text
    (tmp_path / "first" / "checkpoints" / "step-000040").mkdir(parents=True)
    assert page.ask("/api/chat/first").json["speakers"] == ["start", "step 40"]  # it goes on
    (tmp_path / "first" / "adapters" / "policy").mkdir(parents=True)
    assert page.ask("/api/chat/first").json["speakers"] == ["start", "step 40", "tuned"]
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    going_on = {"prompt": "p", "who": ["step 40", "start"], "messages": json.dumps(said)}
    told = json.loads(page.post("/api/chat/first", going_on).text.splitlines()[-1])
    assert told["asked"] == {"do": "answer", "prompt": "p", "who": ["step 40", "start"], "messages": said}


def test_a_silent_process_ends_when_its_listener_goes_away(page):
    computing = page.library.computing
    body = json.dumps({"prompt": "silent"}).encode()
    with socket.create_connection(("127.0.0.1", page.port)) as listener:
        head = f"POST /api/chat/first HTTP/1.1\r\nHost: localhost\r\nAuthorization: {page.bearer['Authorization']}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        listener.sendall(head.encode() + body)
        while computing._process is None:
            time.sleep(0.01)
        process = computing._process
        busy = page.post("/api/chat/first", {"prompt": "a"}).text  # and its going away ends nobody else's
        assert "still answering somebody else" in busy
        assert process.poll() is None
    assert process.wait(5) == -9
    end = time.monotonic() + 5
    while computing._busy.locked() and time.monotonic() < end:
        time.sleep(0.01)
    assert json.loads(page.post("/api/chat/first", {"prompt": "a"}).text.splitlines()[-1])["text"] == "xx"


@pytest.mark.parametrize(
    ("form", "status", "message"),
    [
        ({"prompt": " "}, 422, "prompt has 1 characters; it needs 1 to 100000, and not blank"),
        ({"prompt": "p", "top_p": 2}, 422, "top_p is '2'; it is a number from 0.001 to 1"),
        ({"prompt": "p", "temperature": "nan"}, 422, "temperature is 'nan'"),
        ({"prompt": "p", "do": "score"}, 422, "response has 0 characters"),
        ({"prompt": "p", "who": ["start", "step 7"]}, 422, "who is asked are two of: start; not 'start, step 7'"),
        ({"prompt": "p", "who": ["start", "start"]}, 422, "who is asked are two of"),
        ({"prompt": "p", "who": "../x"}, 422, "who is asked are two of"),
        ({"prompt": "p", "messages": "{"}, 422, "messages are no JSON"),
        ({"prompt": "p", "messages": [{"role": "user", "content": "x"}]}, 422, "messages end with the last answer"),
        ({"prompt": "p", "messages": [{"role": "root", "content": "x"}]}, 422, "has the role 'root'"),
    ],
)
def test_what_cannot_be_asked_is_refused(page, form, status, message):
    answer = page.post("/api/chat/first", form)
    assert (answer.status, message in answer.json["error"]) == (status, True)
    assert page.library.computing._process is None


def test_computing_needs_the_token_and_a_run_that_is_there(page):
    assert page.ask("/api/chat/first", "POST", b"prompt=p").status == 401
    assert page.ask("/api/prefer/first", "POST", b"prompt=p").status == 401
    assert page.post("/api/chat/gone", {"prompt": "p"}).status == 404
    assert "disabled" in page.ask("/chat/first").text


def test_the_better_answer_becomes_a_preference(page, tmp_path):
    form = {"prompt": "p", "first": "a", "second": "b", "better": "second", "from": ["base", "tuned"], "judge": "ann"}
    assert page.post("/api/prefer/first", form).json == {"kept": True}
    (row,) = load_preferences(tmp_path / "first" / "preferences.jsonl").records
    assert (row.prompt, row.chosen, row.rejected) == ("p", "b", "a")
    same = page.post("/api/prefer/first", form | {"second": "a "})
    assert (same.status, "both answers are the same" in same.json["error"]) == (422, True)
    assert page.post("/api/prefer/first", form | {"better": "tuned"}).status == 422
    said = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    assert page.post("/api/prefer/first", form | {"messages": said}).json == {"kept": True}
    row = load_preferences(tmp_path / "first" / "preferences.jsonl").records[1]
    assert row.prompt.messages == [*said, {"role": "user", "content": "p"}]


def test_the_page_itself_never_imports_torch():
    heavy = ("torch", "transformers", "numpy")
    script = f"import sys, burnish.page.server; print([name for name in {heavy!r} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.stdout.strip() == "[]", ended.stderr
