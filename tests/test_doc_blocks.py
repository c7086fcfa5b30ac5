"""Every block of Python and bash in README and docs runs, or says why it does not."""

import json
import re
import shutil
import sys
import threading
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typer.main import get_command

from burnish.cli.commands import app
from doc_blocks import ALL, ROOT, Terminal, burnish_calls
from tiny import tiny_model, tiny_tokenizer

sys.path.insert(0, str(ROOT / "docs"))
from make_notebooks import NOTEBOOKS, execute

RUNNABLE = [block for block in ALL if block.why_not is None and block.language != "yaml"]
LEFT = {
    "README.md": ["runs/brief/adapters/policy/adapter_model.safetensors", "runs/first/verdict.json"],
    "docs/feedback.md": ["runs/feedback/ppo/report.html", "runs/my-reward/result.json"],
    "docs/models.md": ["runs/further/adapters/policy/adapter_model.safetensors"],
    "docs/tutorial.md": ["runs/first/report.html"],
}
"""What some pages promise to leave behind."""
LAST_PRINTED_BELOW = {"docs/models.md": 1e-4}
"""The last number that Python prints there: how far from 1 the first ratio is on a base with a LoRA merged into it."""


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    """A cache in which the embedded model is a tiny one: as many layers as the configs adapt, and room for a post."""
    cache = tmp_path_factory.mktemp("cache")
    folder = cache / "SmolLM2-135M-Instruct-0.1.2"
    tiny_model(layers=10, context=4096).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return cache


@pytest.fixture(scope="module")
def terminal(tmp_path_factory, fork_server, stand_in):
    made = Terminal(tmp_path_factory.mktemp("terminal"), fork_server, {"BURNISH_CACHE": str(stand_in)})
    yield made
    made.close()


class Judge(BaseHTTPRequestHandler):
    """Finds everything good."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        answer = {"choices": [{"message": {"role": "assistant", "content": "8"}}], "usage": {"total_tokens": 3}}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def judge():
    """Where the judge of the docs really is."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Judge)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("page", sorted({block.page for block in RUNNABLE}))
def test_the_code_of_a_page_runs(page, terminal, judge, stand_in, tmp_path, monkeypatch, capsys):
    """In order, in one folder and one namespace. The YAML before a command is its config.yaml."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BURNISH_CACHE", str(stand_in))
    shutil.copytree(ROOT / "configs", "configs")
    namespace = {}
    for block in (block for block in ALL if block.page == page and block.why_not is None):
        if block.language == "yaml":
            (tmp_path / "config.yaml").write_text(block.code)
        elif block.language == "python":
            exec(compile(block.code, block.place, "exec"), namespace)
        else:
            ended = terminal.run(block.code.replace("127.0.0.1:8000", judge), tmp_path)
            assert ended.returncode == 0, f"{block.place}\n{ended.stdout}\n{ended.stderr}"
    for file in LEFT.get(page, []):
        assert (tmp_path / file).exists(), file
    if page in LAST_PRINTED_BELOW:
        assert float(capsys.readouterr().out.split()[-1]) < LAST_PRINTED_BELOW[page]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs(notebook, stand_in, tmp_path, monkeypatch):
    """From its first cell to its last, in a kernel of its own. What it says of real answers is kept from a real run."""
    pytest.importorskip("nbclient")
    monkeypatch.setenv("BURNISH_CACHE", str(stand_in))
    execute(notebook, tmp_path)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_shows_what_it_printed_and_nothing_of_the_machine(notebook):
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    assert sum(bool(cell["outputs"]) for cell in cells) >= len(cells) / 2
    assert not any(output["output_type"] == "error" for cell in cells for output in cell["outputs"])
    assert not re.search(r"/(home|root|tmp|work|Users)/", json.dumps(cells))


def test_what_is_not_run_says_why():
    tests = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("*.py"))
    for block in (block for block in ALL if block.why_not is not None):
        how, _, reason = block.why_not.partition(": ")
        if how == "tested":
            assert f'"{reason}"' in tests, f"{block.place}: no test asks for it"
            continue
        assert len(reason.split()) >= 4, f"{block.place}: {reason}"
        for file in re.findall(r"(?:tests|docs)/[\w/.]+\w", reason):
            assert (ROOT / file).exists(), f"{block.place} names {file}"


def test_no_code_hides_behind_another_name():
    """A block that is told apart from these languages is data or output, and nobody types it."""
    for page in {block.page for block in ALL}:
        languages = set(re.findall(r"^```(\S+)$", (ROOT / page).read_text(), re.MULTILINE))
        assert languages <= {"python", "bash", "yaml", "json", "text"}, page


@pytest.mark.parametrize("block", [b for b in ALL if b.language == "bash"], ids=lambda block: block.place)
def test_commands_and_options_exist(block):
    """Of what is not run too."""
    commands = get_command(app).commands
    for words in filter(None, burnish_calls(block.code)):
        assert words[0] in commands, f"{block.place}: burnish {words[0]}"
        known = {flag for param in commands[words[0]].params for flag in param.opts}
        assert {word for word in words if word.startswith("--")} <= known, f"{block.place}: {words}"


def test_every_benchmark_that_is_named_is_there():
    for block in ALL:
        for script in re.findall(r"benchmarks/\w+\.py", block.code):
            assert (ROOT / script).exists(), f"{block.place}: {script}"


def test_tokens_are_computed_by_hand_as_by_the_code():
    """The arithmetic of docs/token_by_token.md: each line gives the number behind it, and it stands in the table."""
    page = (ROOT / "docs" / "token_by_token.md").read_text()
    table = page.split("<!-- results")[1].split("<!-- end -->")[0]
    lines = re.findall(r"^(.*?)\s+# (-?\d\.\d{4}), \"(.*?)\"", page, re.MULTILINE)
    assert len(lines) >= 15
    for expression, said, token in lines:
        namespace = {}
        exec("from math import exp", namespace)
        assert abs(eval(expression, namespace) - float(said)) <= 1e-4, expression
        if "exp" not in expression:
            name = escape(token.strip()).replace("|", "&#124;")
            row = next(line for line in table.splitlines() if line.startswith(f"| <code>{name}</code>"))
            assert any(abs(float(c) - float(said)) <= 1.1e-4 for c in re.findall(r"-?\d\.\d{4}", row)), (token, said)


def test_the_table_of_tokens_follows_from_its_first_columns():
    """KL, reward, TD error, advantage and return, computed in plain Python from log-probabilities, score and values."""
    found = json.loads((ROOT / "benchmarks" / "results" / "token_by_token.json").read_text())
    rows, gamma, lam = found["rows"], found["gamma"], found["lam"]
    value_after = advantage = returned = 0.0
    for last, row in zip([True, *[False] * len(rows)], reversed(rows), strict=False):
        kl = row["logprob_policy"] - row["logprob_ref"]
        reward = -found["kl_coef"] * kl + found["score"] * last
        td_error = reward + gamma * value_after - row["value"]
        advantage = td_error + gamma * lam * advantage
        returned = reward + gamma * returned
        value_after = row["value"]
        expected = {"kl": kl, "reward": reward, "td_error": td_error, "advantage": advantage, "return": returned}
        assert {key: row[key] for key in expected} == pytest.approx(expected, abs=5e-6)
