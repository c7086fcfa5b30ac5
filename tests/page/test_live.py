"""Server-sent events: whoever listens hears of every change, however many they are; one that is lost costs nothing."""

import json
import select
import socket
import time

import pytest

from burnish.config import TrainConfig
from burnish.page import app
from burnish.runs.run import Run
from served import served

LISTENERS = 200


@pytest.fixture
def run(tmp_path):
    made = Run.new(tmp_path / "runs", "run").begin(TrainConfig(prompts="p.txt"))
    made.log({"step": 1, "reward": 0.5})
    return made


class Listener:
    def __init__(self, port, path="/api/events/run"):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode())
        self.heard = b""

    def versions(self):
        """All that were told so far."""
        while select.select([self.socket], [], [], 0)[0] and (new := self.socket.recv(65536)):
            self.heard += new
        lines = self.heard.replace(b"\r\n", b"\n").split(b"\n")
        return [json.loads(line[6:])["version"] for line in lines if line.startswith(b"data: ")]

    @property
    def status(self):
        self.versions()
        return int(self.heard.split()[1]) if self.heard else 0


def until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def test_every_one_of_many_listeners_hears_of_a_change(run):
    with served(run.folder.parent) as page:
        listeners = [Listener(page.port) for _ in range(LISTENERS)]
        until(lambda: all(len(own.versions()) == 1 for own in listeners))
        first = listeners[0].versions()
        run.log({"step": 2, "reward": 0.7})
        until(lambda: all(len(own.versions()) == 2 for own in listeners))
        assert len({tuple(own.versions()) for own in listeners}) == 1
        assert listeners[0].versions()[0] == first[0] != listeners[0].versions()[1]
        assert page.ask("/api/run/run").json["step"] == 2  # others are still served
        for own in listeners:
            own.socket.close()


def test_a_new_run_is_heard_of_by_those_who_watch_them_all(run):
    with served(run.folder.parent) as page:
        listener = Listener(page.port, "/api/events")
        until(lambda: len(listener.versions()) == 1)
        Run.new(run.folder.parent, "second").begin(TrainConfig(prompts="p.txt"))
        until(lambda: len(listener.versions()) == 2)
        listener.socket.close()


def test_listeners_are_limited_and_one_that_left_makes_room(run, monkeypatch):
    monkeypatch.setattr(app, "MOST_LISTENERS", 2)
    monkeypatch.setattr(app, "LOOK_EVERY", 0.05)
    with served(run.folder.parent) as page:
        first, second = Listener(page.port), Listener(page.port)
        until(lambda: first.versions() and second.versions())
        assert page.ask("/api/events/run").status == 503
        first.socket.close()
        third = []

        def heard():
            third.append(Listener(page.port))
            until(lambda: third[-1].status)
            return third[-1].status == 200

        until(heard)
        assert page.ask("/api/events/none").status == 404
        for own in (second, *third):
            own.socket.close()


def test_after_a_server_was_lost_the_next_one_says_the_same(run):
    """A page that was open reconnects, and fetches what it missed only if something changed."""
    with served(run.folder.parent) as page:
        before = page.ask("/run/run").text.split('data-version="')[1].split('"')[0]
    with served(run.folder.parent) as page:
        listener = Listener(page.port)
        until(lambda: listener.versions())
        assert listener.versions() == [before]
        listener.socket.close()
