"""`burnish serve` as its clients know it: the openai package, and requests that it would never send."""

import asyncio
import http.client
import json
import socket
import threading
import time
from contextlib import contextmanager

import openai
import pytest

from burnish.serving import engine as engine_module
from burnish.serving.app import application
from burnish.serving.engine import Engine, Limits
from burnish.serving.guard import LARGEST_BODY, WRONG_TOKENS_PER_MINUTE
from burnish.serving.server import Server
from burnish.web.access import Access
from talkers import GREEDY, served_run, tiny_run

TOKEN = "a-token-that-nobody-guesses"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return served_run(tiny_run(tmp_path_factory.mktemp("plain")))


@pytest.fixture(scope="module")
def chatty(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chatty")
    return served_run(tiny_run(folder, chat=True, name="chats", system_prompt="be brief"))


@contextmanager
def serving(served, limits=None, host="127.0.0.1", needs_token=False, grace=5):
    """In a thread of this process, on this machine; `host` is where it believes to listen."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    engine = Engine(served.speakers.setup.base, limits or Limits())
    server = Server(application(served, engine, Access(host, port, TOKEN), needs_token), engine, grace)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    server.port = port
    yield server
    server.should_exit = True
    thread.join(20)
    engine.join(20)


def client(server, token="none", **options):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=token, max_retries=0, **options)


@pytest.fixture(scope="module")
def texts(plain):
    with serving(plain) as server:
        yield server


@pytest.fixture(scope="module")
def chats(chatty):
    with serving(chatty) as server:
        yield server


@pytest.fixture(scope="module")
def long(plain):
    """A prompt with a long answer."""
    prompts = [f"number {n}:" for n in range(40)]
    answers = plain.speakers.answers("tuned", prompts, GREEDY, 0)
    return max(zip(prompts, answers, strict=True), key=lambda both: len(both[1]))[0]


@pytest.fixture
def ai(texts):
    return client(texts)


@pytest.fixture
def chat_ai(chats):
    return client(chats)


def raw(server, path, body=None, method="POST", **headers):
    """Sends just this."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return found


# ------------------------------------------------------------------------------------------------------- the answers


def test_both_models_are_listed_with_what_they_need(ai):
    tuned, start = ai.models.list().data
    assert [tuned.id, start.id] == ["talks", "talks:start"]
    assert (tuned.burnish["prompts_end_in"], start.burnish["prompts_end_in"]) == (":", None)
    assert (tuned.burnish["speaker"], start.burnish["speaker"]) == ("tuned", "base")
    assert tuned.burnish["usual"]["max_tokens"] == 24
    assert ai.models.retrieve("talks:start").id == "talks:start"
    with pytest.raises(openai.NotFoundError, match="there is no model 'talk'; there are talks and talks:start"):
        ai.models.retrieve("talk")


@pytest.mark.parametrize("scope", ["response", "sequence"])
def test_a_model_that_there_is_not_is_told_in_either_scope(tmp_path, scope):
    with serving(served_run(tiny_run(tmp_path, scope))) as server, pytest.raises(openai.NotFoundError):
        client(server).models.retrieve("talk")


def test_a_temperature_that_is_nearly_zero_takes_the_most_likely_token(ai):
    cold, zero = (ai.completions.create(model="talks", prompt="go:", temperature=t) for t in (1e-40, 0))
    assert cold.choices[0].text == zero.choices[0].text


def test_a_completion_is_what_burnish_generate_says(plain, ai):
    for model, speaker in (("talks", "tuned"), ("talks:start", "base")):
        answer = ai.completions.create(model=model, prompt="hello there:", temperature=0)
        assert answer.choices[0].text == plain.speakers.answers(speaker, ["hello there:"], GREEDY, 0)[0]
        assert (answer.model, answer.object) == (model, "text_completion")
        assert answer.usage.prompt_tokens == 12
        assert answer.usage.total_tokens == 12 + answer.usage.completion_tokens
        assert answer.choices[0].finish_reason in ("stop", "length")


def test_a_chat_goes_through_the_template_with_the_runs_system_prompt(chatty, chat_ai):
    answer = chat_ai.chat.completions.create(
        model="chats", messages=[{"role": "user", "content": "hi"}], temperature=0, max_completion_tokens=12
    )
    assert answer.choices[0].message.content == chatty.speakers.answers("tuned", ["hi"], GREEDY, 0, 12)[0]
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage.prompt_tokens == len("[system]be brief+[user]hi+[assistant]")
    turns = [("developer", "x"), ("user", "hi"), ("assistant", "yes"), ("user", "no")]
    parts = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in turns]
    answer = chat_ai.chat.completions.create(model="chats", messages=parts, temperature=0, max_tokens=3)
    assert answer.usage.prompt_tokens == len("[system]x+[user]hi+[assistant]yes+[user]no+[assistant]")


def test_streams_say_the_same_piece_by_piece(ai, chat_ai, long):
    given = {"model": "talks", "prompt": long, "temperature": 0}
    whole = ai.completions.create(**given)
    chunks = list(ai.completions.create(**given, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].text for c in chunks[:-1]) == whole.choices[0].text
    assert len(chunks) > 5
    assert [c.choices[0].finish_reason for c in chunks[:-1]][-1] == whole.choices[0].finish_reason
    assert (chunks[-1].choices, chunks[-1].usage) == ([], whole.usage)
    assert len({c.id for c in chunks}) == 1

    given = {"model": "chats:start", "messages": [{"role": "user", "content": "hi"}], "seed": 1, "temperature": 0.8}
    whole = chat_ai.chat.completions.create(**given)
    chunks = list(chat_ai.chat.completions.create(**given, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert all(c.usage is None for c in chunks)


def test_a_stream_ends_as_clients_expect(texts):
    body = json.dumps({"model": "talks", "prompt": "go:", "stream": True, "max_tokens": 2})
    status, headers, answer = raw(texts, "/v1/completions", body)
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert answer.endswith(b"data: [DONE]\n\n")


def test_log_probabilities_are_the_models_own(plain, ai, chat_ai):
    answer = ai.completions.create(model="talks", prompt="go:", temperature=0, max_tokens=8, logprobs=3)
    told = answer.choices[0].logprobs
    assert len(told.tokens) == len(told.token_logprobs) == len(told.text_offset) == answer.usage.completion_tokens
    for own, likeliest in zip(told.token_logprobs, told.top_logprobs, strict=True):
        assert len(likeliest) <= 3  # two tokens may be one and the same text
        assert own == max(likeliest.values())
    hot = ai.completions.create(
        model="talks", prompt="go:", temperature=1.7, seed=2, max_tokens=1, logprobs=0, extra_body={"top_k": 3}
    )
    first = hot.choices[0].logprobs
    cold = ai.completions.create(model="talks", prompt="go:", temperature=0, max_tokens=1, logprobs=5)
    if first.tokens[0] in cold.choices[0].logprobs.top_logprobs[0]:
        assert first.token_logprobs[0] == pytest.approx(cold.choices[0].logprobs.top_logprobs[0][first.tokens[0]])
    assert first.top_logprobs == [{}]

    messages = [{"role": "user", "content": "hi"}]
    given = {"model": "chats", "messages": messages, "temperature": 0, "max_tokens": 5, "logprobs": True}
    answer = chat_ai.chat.completions.create(**given, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    for token in content:
        assert [token.token, token.logprob] == [token.top_logprobs[0].token, token.top_logprobs[0].logprob]
        assert token.bytes is None or bytes(token.bytes).decode() == token.token
    streamed = chat_ai.chat.completions.create(**given, top_logprobs=2, stream=True)
    pieces = [t for c in streamed for t in (c.choices[0].logprobs.content if c.choices[0].logprobs else [])]
    assert pieces == content


def test_stop_strings_end_an_answer_before_them(ai, long):
    given = {"model": "talks", "prompt": long, "temperature": 0}
    text = ai.completions.create(**given).choices[0].text
    stop = text[6:9]
    expected = text[: text.find(stop)]
    answer = ai.completions.create(**given, stop=[stop, "nowhere"], logprobs=1)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (expected, "stop")
    assert all(offset < len(expected) for offset in answer.choices[0].logprobs.text_offset)
    chunks = list(ai.completions.create(**given, stop=stop, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == expected
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_several_prompts_and_several_answers_come_in_order(plain, ai):
    answer = ai.completions.create(model="talks", prompt=["a:", "go:"], n=2, temperature=0, max_tokens=5)
    a, go = plain.speakers.answers("tuned", ["a:", "go:"], GREEDY, 0, 5)
    assert [c.text for c in answer.choices] == [a, a, go, go]
    assert [c.index for c in answer.choices] == [0, 1, 2, 3]
    ids = plain.speakers.setup.base.tokenizer("go:")["input_ids"]
    assert ai.completions.create(model="talks", prompt=ids, temperature=0, max_tokens=5).choices[0].text == go
    assert answer.usage.prompt_tokens == 5


def test_sixteen_clients_at_once_get_what_each_would_get_alone(texts):
    asked = [
        {"model": ("talks", "talks:start")[n % 2], "prompt": f"{'x' * n} number {n}:", "seed": n, "max_tokens": 6 + n}
        | ({"temperature": 0} if n % 3 == 0 else {"temperature": 0.7 + n / 20})
        for n in range(16)
    ]
    ai = client(texts)
    alone = [ai.completions.create(**own).choices[0].text for own in asked]

    async def all_of():
        many = openai.AsyncOpenAI(base_url=ai.base_url, api_key="none", max_retries=0)
        answers = await asyncio.gather(*(many.completions.create(**own) for own in asked))
        await many.close()
        return [answer.choices[0].text for answer in answers]

    assert asyncio.run(all_of()) == alone


# ------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("given", "param", "message"),
    [
        ({"temperature": -1}, "temperature", "temperature is -1; it must be a number from 0 to 1000"),
        ({"temperature": 10**400}, "temperature", "temperature is 1000"),
        ({"extra_body": {"top_k": 10**400}}, "top_k", "it must be a whole number from 0 to 1e+06"),
        ({"top_p": 0}, "top_p", "top_p is 0, which keeps no token"),
        ({"n": 17}, "n", "17 answers are asked for; 16 are the most at a time"),
        ({"prompt": ["no colon"] * 17}, "prompt", "17 prompts are asked; 16 are the most at a time"),
        ({"n": True}, "n", "n is True; it must be a whole number"),
        ({"seed": "x"}, "seed", "seed is 'x'"),
        ({"stop": ["a"] * 5}, "stop", "stop has 5 texts; 4 are the most"),
        ({"stop": [""]}, "stop", "stop must be texts"),
        ({"logprobs": 6}, "logprobs", "logprobs is 6"),
        ({"max_tokens": 1000}, "prompt", "the prompt has 3 tokens and the answer up to 1000; the model's context is"),
        ({"prompt": "x" * 300 + ":"}, "prompt", "the prompt has 301 tokens and the answer at least 1"),
        ({"prompt": "no colon"}, "prompt", "the prompt must end in ':', as in training"),
        ({"prompt": ""}, "prompt", "prompt has no tokens"),
        ({"prompt": [999]}, "prompt", "prompt has a token that is none of the model's, 0 to 257"),
        ({"prompt": None}, "prompt", "prompt must be a text or a list of token numbers"),
        ({"echo": True}, "echo", "echo is not supported here; leave it out"),
        ({"frequency_penalty": 0.5}, "frequency_penalty", "frequency_penalty is not supported here"),
        ({"logit_bias": {"50": 1}}, "logit_bias", "logit_bias is not supported here"),
        ({"extra_body": {"top-k": 5}}, "top-k", "there is no parameter 'top-k'; did you mean 'top_k'?"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream_options needs stream: true"),
    ],
)
def test_what_would_be_answered_otherwise_is_refused(ai, given, param, message):
    with pytest.raises(openai.BadRequestError) as refused:
        ai.completions.create(**{"model": "talks", "prompt": "go:"} | given)
    assert message in refused.value.body["message"]
    assert (refused.value.body["param"], refused.value.body["type"]) == (param, "invalid_request_error")


def test_what_changes_nothing_is_taken(ai):
    given = {"frequency_penalty": 0, "logit_bias": {}, "user": "me", "echo": False, "n": None}
    assert ai.completions.create(model="talks", prompt="go:", **given).choices


def test_chats_that_cannot_be_read_are_refused(ai, chat_ai):
    hi = [{"role": "user", "content": "hi"}]
    with pytest.raises(openai.BadRequestError, match="this run has no chat template"):
        ai.chat.completions.create(model="talks", messages=hi)
    with pytest.raises(openai.BadRequestError, match="ask /v1/chat/completions, whose template does"):
        chat_ai.completions.create(model="chats", prompt="hi")
    assert chat_ai.completions.create(model="chats:start", prompt="hi", max_tokens=2).choices
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    roles = [[{"role": role, "content": "x"}] for role in ("tool", ["user"], {}, 1, None)]
    empty = [{"role": "user", "content": [{"type": "text", "text": None}]}]
    wrong = [
        (image, "must be text"),
        (empty, "must be text"),
        ([], "least"),
        *((messages, "needs a role") for messages in roles),
    ]
    for messages, why in wrong:
        with pytest.raises(openai.BadRequestError, match=why):
            chat_ai.chat.completions.create(model="chats", messages=messages)
    with pytest.raises(openai.BadRequestError, match="top_logprobs needs logprobs: true"):
        chat_ai.chat.completions.create(model="chats", messages=hi, top_logprobs=2)
    with pytest.raises(openai.BadRequestError, match="tools is not supported here"):
        chat_ai.chat.completions.create(model="chats", messages=hi, tools=[{"type": "function"}])


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"model": 1}', b"[" * 100_000, b'"\\ud800"'])
def test_a_body_that_is_no_request_is_told_so(texts, body):
    status, _, answer = raw(texts, "/v1/completions", body)
    assert (status, json.loads(answer)["error"]["type"]) == (400, "invalid_request_error")


def test_errors_have_one_shape_everywhere(texts):
    for path, method, status in (("/v1/nothing", "GET", 404), ("/v1/completions", "GET", 405)):
        found, _, answer = raw(texts, path, method=method)
        assert (found, set(json.loads(answer)["error"])) == (status, {"message", "type", "param", "code"})


# ----------------------------------------------------------------------------------------------------- who may ask


def test_a_token_is_needed_where_one_is_set(plain):
    with serving(plain, needs_token=True) as server:
        with pytest.raises(openai.AuthenticationError, match="this needs the token"):
            client(server).models.list()
        assert len(client(server, TOKEN).models.list().data) == 2
        assert raw(server, "/health", method="GET")[0] == 200


def test_tokens_cannot_be_tried_out_by_the_thousand(plain):
    with serving(plain, needs_token=True) as server:
        found = [raw(server, "/v1/models", method="GET")[0] for _ in range(WRONG_TOKENS_PER_MINUTE + 2)]
        assert found == [401] * WRONG_TOKENS_PER_MINUTE + [429] * 2
        assert len(client(server, TOKEN).models.list().data) == 2  # whoever has it is let in


def test_other_names_and_other_pages_are_refused(texts):
    assert raw(texts, "/v1/models", method="GET", Host="evil.example")[0] == 403
    for origin in ("http://evil.example", "http://[", "http://[x]", "null", ""):
        assert raw(texts, "/v1/completions", b"{}", Origin=origin)[0] == 403
    assert raw(texts, "/v1/completions", b"{}", Sec_Fetch_Site="cross-site")[0] == 403
    assert raw(texts, "/v1/models", method="GET", Host="localhost:1234")[0] == 200


def test_a_large_body_is_refused(texts):
    status, _, answer = raw(texts, "/v1/completions", b" " * (LARGEST_BODY + 1))
    assert (status, f"more than {LARGEST_BODY} bytes" in json.loads(answer)["error"]["message"]) == (413, True)
    pieces = (b" " * 100_000 for _ in range(21))
    connection = http.client.HTTPConnection("127.0.0.1", texts.port, timeout=30)
    connection.request("POST", "/v1/completions", pieces, {"Transfer-Encoding": "chunked"}, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()


# --------------------------------------------------------------------------------------------- limits, and the end


@pytest.fixture
def slow(monkeypatch, long):
    """A listener that takes its time: a tiny model would be done before anything could happen to it."""
    before = engine_module.Batch.step
    monkeypatch.setattr(engine_module.Batch, "step", lambda batch: (time.sleep(0.03), before(batch))[1])
    return {"model": "talks", "prompt": long, "temperature": 0, "max_tokens": 200}


def until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


def test_too_many_requests_are_told_to_come_back(plain, slow):
    with serving(plain, Limits(max_requests=1)) as server:
        ai = client(server)
        stream = ai.completions.create(**slow, stream=True)
        next(iter(stream))
        with pytest.raises(openai.RateLimitError, match="1 requests are answered or wait") as refused:
            client(server).completions.create(**slow)
        assert refused.value.response.headers["retry-after"] == "1"
        stream.close()
        until(lambda: server.engine.num_requests == 0)
        assert client(server).completions.create(**slow | {"max_tokens": 1}).choices


@pytest.mark.parametrize("streamed", [True, False])
def test_who_hangs_up_is_not_answered_any_more(plain, slow, streamed):
    with serving(plain) as server:
        body = json.dumps(slow | {"stream": streamed}).encode()
        with socket.create_connection(("127.0.0.1", server.port)) as caller:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            caller.sendall(head.encode() + body)
            until(lambda: server.engine._jobs and server.engine._jobs[0].answers[0].num_tokens > 2)
            job = server.engine._jobs[0]
        until(lambda: server.engine.num_requests == 0)
        assert (job.answers[0].finish, job.answers[0].num_tokens < 150) == ("gone", True)


def test_time_that_is_over_is_an_error_in_both_ways(plain, slow):
    with serving(plain, Limits(seconds=0.3)) as server:
        ai = client(server)
        with pytest.raises(openai.InternalServerError, match=r"not answered within 0\.3 seconds"):
            ai.completions.create(**slow)
        with pytest.raises(openai.APIError, match=r"not answered within 0\.3 seconds"):
            list(ai.completions.create(**slow, stream=True))


@pytest.mark.parametrize(("grace", "ends_whole"), [(20, True), (0, False)])
def test_stopping_lets_answers_end_or_tells_their_clients(plain, slow, grace, ends_whole):
    slow = slow | {"max_tokens": 30}
    with serving(plain, grace=grace) as server:
        ai = client(server)
        stream = iter(ai.completions.create(**slow, stream=True))
        chunks = [next(stream)]
        server.should_exit = True
        if ends_whole:
            chunks += list(stream)
            assert chunks[-1].choices[0].finish_reason in ("stop", "length")
        else:
            with pytest.raises(openai.APIError, match="the server is ending"):
                list(stream)
    assert not server.engine.is_open


def test_health_is_told(texts):
    status, _, answer = raw(texts, "/health", method="GET")
    assert (status, json.loads(answer)) == (200, {"status": "ok"})
