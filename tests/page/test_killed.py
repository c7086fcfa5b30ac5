"""A server that is killed while hundreds read and several write: whatever it said to have kept is kept, and the next
one goes on from there.
"""

import http.client
import json
import re
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

from burnish.config import TrainConfig
from burnish.data import load_preferences
from burnish.evaluation.said import Said
from burnish.runs.run import Run

READERS, WRITERS, PAIRS, ENOUGH = 200, 4, 500, 12
LOST = (OSError, http.client.HTTPException, ValueError)


@contextmanager
def page_process(folder):
    """Its process, port and token."""
    command = [sys.executable, "-m", "burnish", "page", str(folder / "runs"), "--judge", str(folder / "answers.jsonl")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    told = ""
    while not (found := re.search(r"http://127\.0\.0\.1:(\d+)/\?token=(\S+)", told)):
        line = process.stdout.readline()
        assert line, told
        told += line
    try:
        yield process, int(found[1]), found[2]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def asked(port, path, token=None, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        sent = json.dumps(body) if body else None
        connection.request(
            "POST" if body else "GET", path, sent, headers | ({"Content-Type": "application/json"} if body else {})
        )
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def judge_one(port, token, judge):
    """Which pair the page says to have kept; the left answer is always better."""
    shown = asked(port, f"/api/judge?judge={judge}")
    question = shown["question"]
    if question is None:
        return None
    form = {"judge": judge, "said": shown["said"], "better": "left", "pair": question["pair"]}
    kept = asked(port, "/api/judge", token, form | {"left": question["left"]["answer"]})
    assert kept == {"kept": True}
    return question["pair"]


def test_a_killed_server_loses_nothing_that_it_said_to_have_kept(tmp_path):
    run = Run.new(tmp_path / "runs", "first").begin(TrainConfig(prompts="p.txt"))
    for step in range(1, 30):
        run.log({"step": step, "reward": 0.5})
    rows = [{"prompt": f"p {n}", "answers": [f"a {n}", f"b {n}"]} for n in range(PAIRS)]
    (tmp_path / "answers.jsonl").write_text("\n".join(map(json.dumps, rows)))
    kept = {f"judge-{n}": [] for n in range(WRITERS)}
    read, is_over = [], threading.Event()

    def write(port, token, judge):
        while not is_over.is_set():
            try:
                if (pair := judge_one(port, token, judge)) is None:
                    return
                kept[judge].append(pair)
            except LOST:
                return

    def look(port, number):
        path = ("/api/", "/api/run/first", "/api/judge")[number % 3]
        while not is_over.is_set():
            try:
                read.append((number, "error" in asked(port, path)))
            except LOST:
                return
            is_over.wait(1)  # so that all have their turn

    with page_process(tmp_path) as (process, port, token):
        jobs = [threading.Thread(target=look, args=(port, n), daemon=True) for n in range(READERS)]
        jobs += [threading.Thread(target=write, args=(port, token, judge), daemon=True) for judge in kept]
        for job in jobs:
            job.start()
        end = time.monotonic() + 120
        while len({n for n, _ in read}) < READERS or sum(map(len, kept.values())) < ENOUGH:
            assert time.monotonic() < end, (len({n for n, _ in read}), kept)
            time.sleep(0.02)
        process.kill()
        is_over.set()
        for job in jobs:
            job.join(30)
    assert not any(is_error for _, is_error in read)  # everybody was served
    _nothing_is_lost(tmp_path, kept)
    with page_process(tmp_path) as (process, port, token):
        for judge in kept:
            kept[judge].append(judge_one(port, token, judge))
    _nothing_is_lost(tmp_path, kept)
    assert len(run.read_lines("metrics.jsonl")) == 29


def _nothing_is_lost(folder, kept):
    said = Said(folder, "answers-")
    rows = said.rows()
    assert (folder / "answers-choices.jsonl").read_bytes().count(b"\n") == len(rows)  # no line is torn
    for judge, pairs in kept.items():
        own = [row for row in rows if row["judge"] == judge]
        assert len(pairs) <= len(own) <= len(pairs) + 1  # one may have been kept when the answer was lost
    learned = load_preferences(folder / "answers-preferences.jsonl").records
    fresh = [row for row in rows if not row.get("again")]
    assert len(fresh) - WRITERS <= len(learned) <= len(fresh)
