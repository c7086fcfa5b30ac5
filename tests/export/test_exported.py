"""The folder of an export, and the programs that are asked about it: all or nothing, and a sentence when it fails."""

import json
import math
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from burnish.errors import InputError, ResourceError, WrongExportError
from burnish.export import consumers, conversion
from burnish.export.card import without_home
from burnish.export.exported import write_facts, written_whole
from burnish.page import start
from burnish.page.computing import Computing
from burnish.system.modules import OWN_PYTHON


def test_of_two_exports_to_one_place_the_first_is_kept_whole_and_the_second_is_refused(tmp_path):
    place = tmp_path / "adapter"

    def overtaken():
        with written_whole(place) as late:
            (late / "late.txt").write_text("late")
            with written_whole(place) as early:
                (early / "early.txt").write_text("early")
            assert (late / "late.txt").is_file()

    with pytest.raises(InputError, match="exists already"):
        overtaken()
    assert [file.name for file in place.iterdir()] == ["early.txt"]
    assert [*tmp_path.iterdir()] == [place]


def test_an_export_can_be_read_by_whom_a_new_folder_can(tmp_path):
    (tmp_path / "plain").mkdir()
    with written_whole(tmp_path / "made"):
        pass
    assert (tmp_path / "made").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_the_facts_are_json_for_every_reader(tmp_path):
    write_facts(tmp_path, {"form": "lora", "history": [(0, math.nan), (10, 0.5)], "largest_gap": math.inf})
    told = json.loads((tmp_path / "export.json").read_text(), parse_constant=pytest.fail)
    assert told == {"form": "lora", "history": [[0, None], [10, 0.5]], "largest_gap": None}


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


def test_llama_cpp_is_asked_directly_whatever_proxy_is_set():
    """In a process of its own: proxies are looked up when it begins."""
    known = {key: value for key, value in os.environ.items() if key.lower() != "no_proxy"}
    with answering() as address:
        ask = f"from burnish.export import llama_cpp; print(llama_cpp._next({address!r}, [1, 2]))"
        environment = known | {"http_proxy": "http://127.0.0.1:9"}
        ended = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, env=environment)
    assert ended.stdout.strip() == "{'tokens': [7]}", ended.stderr


def test_nothing_of_the_folder_one_is_in_is_run(tmp_path, monkeypatch):
    """A run that somebody sent may have modules of Python's names beside it."""
    (tmp_path / "json.py").write_text("from pathlib import Path; Path('ran').touch()\nfrom nothing import it\n")
    monkeypatch.chdir(tmp_path)
    source = SimpleNamespace(encoded=[[1, 2]], most_tokens=4, base=SimpleNamespace(stop_ids=[0]))
    with pytest.raises(WrongExportError):
        consumers.from_llama_cpp(source, tmp_path / "none.gguf")
    assert not (tmp_path / "ran").exists()
    assert Computing()._command[:2] == start.COMMAND[:2] == OWN_PYTHON  # the page's, which take longer to start


def test_a_llama_cpp_that_takes_for_ever_is_told_with_the_limit(monkeypatch):
    source = SimpleNamespace(encoded=[[1, 2]], most_tokens=4, base=SimpleNamespace(stop_ids=[0]))
    monkeypatch.setattr(consumers, "LONGEST", 0.01)
    with pytest.raises(ResourceError, match=r"has not answered 1 prompt within 0\.01 seconds"):
        consumers.from_llama_cpp(source, Path("base.gguf"))


def test_a_script_that_takes_for_ever_is_told_with_the_limit(tmp_path, monkeypatch):
    (tmp_path / conversion.MODEL_SCRIPT).write_text("import time; time.sleep(60)")
    monkeypatch.setenv(conversion.WHERE, str(tmp_path))
    monkeypatch.setattr(conversion, "LONGEST", 0.01)
    with pytest.raises(ResourceError, match=r"was not done after 0\.01 seconds"):
        conversion._convert(conversion.MODEL_SCRIPT, [], tmp_path / "model.gguf")


def test_what_a_script_says_in_another_encoding_is_still_told(tmp_path, monkeypatch):
    script = "import sys; sys.stderr.buffer.write(b'no caf\\xe9 here'); sys.exit(1)"
    (tmp_path / conversion.MODEL_SCRIPT).write_text(script)
    monkeypatch.setenv(conversion.WHERE, str(tmp_path))
    with pytest.raises(InputError, match="cannot convert this model: no caf\ufffd here"):
        conversion._convert(conversion.MODEL_SCRIPT, [], tmp_path / "model.gguf")


def test_a_package_that_a_script_lacks_is_named_with_the_command_that_gets_it(tmp_path, monkeypatch):
    (tmp_path / conversion.MODEL_SCRIPT).write_text("import no_such_package.part")
    monkeypatch.setenv(conversion.WHERE, str(tmp_path))
    with pytest.raises(InputError, match=r"needs a package that is not here: pip install no_such_package$"):
        conversion._convert(conversion.MODEL_SCRIPT, [], tmp_path / "model.gguf")


# --------------------------------------------------------------------------------------------------------- the card


@pytest.mark.parametrize(
    ("home", "told"),
    [
        ("/home/ann", "~/data and/or ~, not /home/anna/x or /mnt/home/ann"),
        ("/", "/home/ann/data and/or /home/ann, not /home/anna/x or /mnt/home/ann"),
    ],
)
def test_a_card_hides_the_home_folder_and_no_other_slash(monkeypatch, home, told):
    monkeypatch.setattr(Path, "home", lambda: Path(home))
    assert without_home("/home/ann/data and/or /home/ann, not /home/anna/x or /mnt/home/ann") == told


def test_a_card_is_written_for_a_user_without_a_home(monkeypatch):
    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    assert without_home("/home/ann/data") == "/home/ann/data"
