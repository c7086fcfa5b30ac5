"""The page against those who should not have it: other sites, other machines, other folders, hostile texts."""

import asyncio
import json
import os
import socket
from types import SimpleNamespace

import pytest
from starlette.datastructures import Headers

from burnish.config import TrainConfig
from burnish.page.access import HEADERS, LARGEST_BODY, Guard
from burnish.page.app import application
from burnish.page.library import Library
from burnish.runs.run import Run
from burnish.web import access as access_module
from burnish.web.access import Access, Rate
from served import served

EVIL = "evil.example"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A run, and beside the folder of runs a secret that no address may reach."""
    outside = tmp_path_factory.mktemp("outside")
    (outside / "config.yaml").write_text("stage: ppo\nsystem_prompt: the-secret\n")
    (outside / "metrics.jsonl").write_text('{"step": 1, "reward": 0.123456}\n')
    folder = outside / "runs"
    run = Run.new(folder, "first").begin(TrainConfig(prompts="p.txt", steps=3))
    run.log({"step": 1, "reward": 0.5, "seconds": 1.0})
    linked = Run.new(folder, "with-link").begin(TrainConfig(prompts="p.txt"))
    os.symlink(outside / "metrics.jsonl", linked.folder / "metrics.jsonl")
    os.symlink(outside, folder / "link-to-outside")
    return folder


@pytest.fixture(scope="module")
def here(root):
    with served(root) as found:
        yield found


@pytest.fixture(scope="module")
def beyond(root):
    with served(root, host="0.0.0.0") as found:
        yield found


def writes(served_page, **headers):
    """The smallest request that would change something: there is no such run, and the guard comes first."""
    return served_page.ask("/api/stop/none", "POST", b"", **headers)


# --------------------------------------------------------------------------------------------- names and origins


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST:1", "[::1]:80", "127.0.0.2:9"])
def test_this_machine_has_several_names_and_a_tunnel_any_port(here, host):
    assert here.ask("/", host=host).status == 200


@pytest.mark.parametrize(
    "host",
    [EVIL, f"{EVIL}:80", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1", "", "127.0.0.1@evil.example",
     "evil.example/127.0.0.1", "0.0.0.0", "[::1", "localhost:x"],
)  # fmt: skip
def test_a_name_that_another_dns_points_here_is_refused(here, host):
    assert here.ask("/", host=host).status in (400, 403)
    assert here.ask("/api/", host=host).status in (400, 403)


def test_a_request_without_a_name_is_refused(here):
    with socket.create_connection(("127.0.0.1", here.port)) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert connection.recv(100).split()[1] in (b"400", b"403")


def test_beyond_this_machine_numbers_and_its_own_name_are_answered_to():
    access = Access("0.0.0.0", 1)
    assert all(access.answers_to(host) for host in ("192.168.0.7:1", "[fe80::1]", "localhost", socket.gethostname()))
    assert not access.answers_to(EVIL)
    assert Access("page.lan", 1).answers_to("page.lan:1")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": f"http://{EVIL}"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "file://127.0.0.1"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
    ids=str,
)
def test_another_page_cannot_write_even_with_the_token(here, headers):
    assert writes(here, **here.bearer, **headers).status == 403


def test_our_own_page_and_a_program_can(here):
    own = {"origin": here.address, "sec_fetch_site": "same-origin"}
    assert writes(here, **here.bearer, **own).status == 404  # there is no such run
    assert writes(here, **here.bearer).status == 404


# ---------------------------------------------------------------------------------------------------------- the token


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": "Bearer "}, {"authorization": "Bearer wrong"}, {"cookie": "burnish=x"}, {"cookie": "\x01="}],
    ids=str,
)
def test_nothing_is_written_without_the_token(here, headers):
    assert writes(here, **headers).status in (400, 401)


def test_the_token_is_not_guessed_from_a_part_of_it(here):
    token = here.access.token
    assert len(token) >= 32
    for wrong in (token[:-1], token + "x", token.swapcase(), "é" + token):
        assert not here.access.is_token(wrong)
    assert Access().token != Access().token
    assert token not in repr(here.access)


def test_beyond_this_machine_reading_needs_it_too(beyond):
    for path in ("/", "/api/", "/static/style.css", "/api/events", "/nowhere"):
        assert beyond.ask(path).status == 401, path
        assert beyond.ask(path, host="192.168.0.7").status == 401, path
    assert beyond.ask("/api/", **beyond.bearer).status == 200
    assert beyond.ask("/api/", host=EVIL, **beyond.bearer).status == 403


def test_the_token_moves_from_the_address_into_a_cookie(beyond):
    answer = beyond.ask(f"/?text=a%20b&token={beyond.access.token}")
    assert (answer.status, answer.headers["location"]) == (303, "/?text=a+b")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert beyond.ask("/", cookie=cookie.split(";")[0]).status == 200
    assert beyond.ask("/?token=wrong").status == 401
    other = cookie.split(";")[0].replace(str(beyond.port), str(beyond.port + 1))
    assert beyond.ask("/", cookie=other).status == 401


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example", "///evil.example", "/%0d%0aSet-Cookie:x"])
def test_the_token_leads_nobody_elsewhere(here, path):
    answer = here.ask(f"{path}?token={here.access.token}")
    assert answer.status in (303, 400)
    location = answer.headers.get("location", "/")
    assert location.startswith("/")
    assert not location.startswith(("//", "/\\"))
    assert (
        "set-cookie:x" not in str(answer.headers).lower().replace(" ", "").split("'set-cookie'")[0].split("%0d%0a")[0]
    )


# ------------------------------------------------------------------------------------------------- sizes and rates


def test_what_is_too_long_is_refused(here):
    assert here.ask("/?text=" + "a" * 5000).status == 414
    assert writes(here, **here.bearer, content_length=str(LARGEST_BODY + 1)).status == 413
    assert writes(here, **here.bearer, content_length="-1").status in (400, 413)


def test_a_body_without_a_length_is_counted_as_it_comes(root):
    access = Access("127.0.0.1", 1)
    headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {access.token}".encode())]
    scope = {"type": "http", "method": "POST", "path": "/api/stop/first", "query_string": b"", "headers": headers}
    given, answered = [], []

    async def receive():
        given.append(1)
        return {"type": "http.request", "body": b"x" * 65536, "more_body": True}  # without end

    async def send(message):
        answered.append(message)

    asyncio.run(application(Library(root), access)(scope, receive, send))
    assert answered[0]["status"] == 413
    assert len(given) == LARGEST_BODY // 65536 + 1


def test_a_rate_allows_so_many_a_minute(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(access_module.time, "monotonic", lambda: now[0])
    rate = Rate(60)
    assert [rate.allows() for _ in range(61)] == [True] * 60 + [False]
    now[0] = 2.0
    assert [rate.allows() for _ in range(3)] == [True, True, False]


def test_those_without_the_token_are_soon_not_answered_and_those_with_it_still_are():
    guard = Guard(SimpleNamespace(), Access("127.0.0.1", 1, "right"))

    def status(token):
        headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {token}".encode())]
        scope = {"type": "http", "method": "POST", "path": "/api/x", "query_string": b"", "headers": headers}
        refusal = guard._refusal(scope)
        return refusal and refusal.status_code

    assert [status("wrong") for _ in range(31)] == [401] * 30 + [429]
    assert status("right") is None
    assert [status("right") for _ in range(240)][-1] == 429


# ------------------------------------------------------------------------------------------------------------- paths


@pytest.mark.parametrize(
    "name",
    ["..", "../", "first/..", "first/../..", "%2e%2e", "%2e%2e%2f", "..%2f..", "%252e%252e", "first%2f..%2f..", "/",
     "//", ".", "first/", "first/config.yaml", "/etc", "link-to-outside", "first%00", "..%5c", "%c0%ae%c0%ae", ""],
)  # fmt: skip
def test_only_names_of_runs_lead_to_runs(here, name):
    for path in (f"/api/events/{name}", f"/static/{name}", f"/static/../{name}", f"/{name}"):
        answer = here.ask(path) if "events" not in path else here.ask(path, "POST", b"", **here.bearer)
        assert "the-secret" not in answer.text
        assert "0.123456" not in answer.text
    assert set(Library(here.library.root).runs()) == {"first", "with-link"}


def test_static_files_are_ours_alone(here):
    assert here.ask("/static/style.css").status == 200
    for path in (
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static//etc/passwd",
        "/static/",
    ):
        assert here.ask(path).status in (400, 404, 405), path


def test_a_link_inside_a_run_is_not_followed(here):
    rows = {row["run"]: row for row in here.ask("/api/").json["runs"]}
    assert "is a symbolic link" in rows["with-link"]["outcome"]
    assert rows["with-link"]["points"] == []
    assert rows["first"]["last"] == 0.5


# -------------------------------------------------------------------------------------------------------- every answer


def test_every_answer_forbids_what_it_does_not_need(here):
    for path in ("/", "/api/", "/static/page.js", "/nowhere", "/api/nowhere"):
        answer = here.ask(path)
        for name, value in HEADERS.items():
            assert answer.headers[name.lower()] == value, path
    refused = here.ask("/", host=EVIL)
    assert refused.headers["content-security-policy"] == HEADERS["Content-Security-Policy"]
    policy = HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "access-control-allow-origin" not in here.ask("/api/", origin=f"http://{EVIL}").headers
    assert here.ask("/", "OPTIONS").status in (401, 405)


def test_errors_are_sentences(here):
    assert here.ask("/api/nowhere").json["error"]
    assert "<h1>This cannot be shown</h1>" in here.ask("/nowhere").text
    assert here.post("/api/stop/<b>none</b>").json == {"error": "there is no run '<b>none</b>' in runs"}
    not_json = here.ask("/api/stop/first", "POST", b"{", content_type="application/json", **here.bearer)
    assert not_json.status == 400


def test_headers_decide_the_same_in_any_case_of_letters():
    access = Access("127.0.0.1", 7, "right")
    assert access.has_token(Headers({"Authorization": "Bearer right"}))
    assert not access.comes_from_here(Headers({"HOST": "localhost", "ORIGIN": "http://localhost:7"}))
    assert json.dumps(access.cookie) == '"burnish-7"'
