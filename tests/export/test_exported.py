"""The folder of an export, and the programs that are asked about it: all or nothing, and a sentence when it fails."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from burnish.errors import InputError
from burnish.export import llama_cpp
from burnish.export.exported import written_whole


def test_of_two_exports_to_one_place_the_first_is_kept_whole_and_the_second_is_refused(tmp_path):
    place = tmp_path / "adapter"
    with pytest.raises(InputError, match="exists already"), written_whole(place) as late:
        (late / "late.txt").write_text("late")
        with written_whole(place) as early:
            (early / "early.txt").write_text("early")
        assert (late / "late.txt").is_file()
    assert [file.name for file in place.iterdir()] == ["early.txt"]
    assert [*tmp_path.iterdir()] == [place]


def test_an_export_can_be_read_by_whom_a_new_folder_can(tmp_path):
    (tmp_path / "plain").mkdir()
    with written_whole(tmp_path / "made"):
        pass
    assert (tmp_path / "made").stat().st_mode == (tmp_path / "plain").stat().st_mode


# ------------------------------------------------------------------------------------------------------- llama.cpp


@contextmanager
def answering():
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            text = json.dumps({"tokens": [7]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def test_llama_cpp_is_asked_directly_whatever_proxy_is_set(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with answering() as address:
        assert llama_cpp._next(address, [1, 2]) == {"tokens": [7]}
