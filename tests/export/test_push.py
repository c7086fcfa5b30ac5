"""An export goes to the hub as it is, for its owner alone unless asked for otherwise; nothing else of a run goes."""

import json
import os
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from stand_in_hub import TOKEN, stand_in_hub

from burnish.errors import InputError
from burnish.stages.export import push_export

WEIGHTS = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def hub():
    with stand_in_hub() as hub:
        yield hub


@pytest.fixture
def run(tmp_path):
    """A run folder with an export in it, and with something that must not leave the machine."""
    folder = tmp_path / "run"
    exported = folder / "exports" / "adapter"
    exported.mkdir(parents=True)
    (folder / "config.yaml").write_text("stage: ppo\nprompts: private.txt\n")
    (folder / "samples.jsonl").write_text('{"prompt": "private"}\n')
    (exported / "README.md").write_text("---\nlicense: mit\n---\n\n# A card\n")
    (exported / "export.json").write_text('{"form": "adapter", "verified": true}')
    (exported / "adapter_model.safetensors").write_bytes(WEIGHTS)
    return folder


def push(hub, *arguments, token=TOKEN):
    known = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment = known | {"HF_ENDPOINT": hub.address, "HF_HUB_DISABLE_XET": "1", "HF_HOME": "/nonexistent"}
    environment |= {"HF_TOKEN": token} if token else {}
    if "push" not in arguments:  # options of all commands stand before it
        arguments = ("push", *arguments)
    command = [sys.executable, "-m", "burnish", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


def test_all_files_of_an_export_and_none_of_the_run_arrive(hub, run):
    ended = push(hub, run, "me/private-one", "--json")
    assert ended.returncode == 0, ended.stderr
    kept = hub.repos["me/private-one"]
    assert kept["private"] is True
    assert {*kept["files"]} == {"README.md", "export.json", "adapter_model.safetensors"}
    assert kept["files"]["adapter_model.safetensors"] == WEIGHTS
    assert "POST /me/private-one.git/info/lfs/objects/batch" in hub.calls  # weights go as a large file
    told = json.loads(ended.stdout)
    assert told["sent"] is True
    assert told["commit"].startswith(f"{hub.address}/me/private-one/commit/")
    assert told["files"]["adapter_model.safetensors"] == len(WEIGHTS)
    again = push(hub, run / "exports" / "adapter", "me/private-one")  # the folder itself, to one that is there
    assert again.returncode == 0, again.stderr


def test_public_is_asked_for(hub, run):
    assert push(hub, run, "me/public-one", "--public").returncode == 0
    assert hub.repos["me/public-one"]["private"] is False
    (run / "exports" / "adapter" / "later.txt").write_text("later")
    ended = push(hub, run, "me/public-one")  # not asked for this time, and it is there already
    assert ended.returncode == 2
    assert "give --public" in ended.stderr
    assert "later.txt" not in hub.repos["me/public-one"]["files"]


def test_a_private_repository_is_not_called_public(hub, run):
    assert push(hub, run, "me/kept-private").returncode == 0
    (run / "exports" / "adapter" / "later.txt").write_text("later")
    ended = push(hub, run, "me/kept-private", "--public")
    assert ended.returncode == 2
    assert "me/kept-private is private on the hub" in ended.stderr
    assert "later.txt" not in hub.repos["me/kept-private"]["files"]


@pytest.mark.parametrize(
    ("form", "told"),
    [("gguf-merged", "--to gguf --merged"), ("adaptr", "there is no form 'adaptr'; did you mean 'adapter'?")],
)
def test_a_form_that_is_not_there_comes_with_the_way_to_it(run, form, told):
    with pytest.raises(InputError, match=re.escape(told)):
        push_export(Console(file=StringIO()), str(run), "me/none", form, public=False, dry_run=True)


def test_a_dry_run_lists_and_sends_nothing(hub, run):
    before = len(hub.calls)
    ended = push(hub, run, "me/dry", "--dry-run", token=None)
    assert ended.returncode == 0, ended.stderr
    assert "adapter_model.safetensors  10 kB" in ended.stdout
    assert "for you alone to see" in ended.stdout
    assert len(hub.calls) == before


def test_quiet_and_json_say_one_document_and_nothing_else(hub, run, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", str(run))  # as if a secret had got into a path
    ended = push(hub, "--quiet", "push", run, "me/dry", "--dry-run", "--json")
    assert json.loads(ended.stdout)["folder"] == "[SOME_API_KEY]/exports/adapter"
    assert ended.stderr == ""


@pytest.mark.parametrize(
    ("name", "change", "token", "told"),
    [
        ("me/refused", None, "hf_another-token-entirely", "hf auth login"),
        ("a b", None, TOKEN, "is no name on the hub"),
        ("name", None, TOKEN, "'name' has no owner; give the name of a repository, such as you/name"),
        ("me/none", "exports/adapter/export.json", TOKEN, "is no export"),
        ("me/none", "exports", TOKEN, "make it first: burnish export"),
        ("me/damaged", {"verified": True}, TOKEN, "names no form of an export"),
        ("me/damaged", ["adapter"], TOKEN, "names no form of an export"),
    ],
)
def test_what_cannot_be_pushed_is_told_in_one_sentence(hub, run, name, change, token, told):
    if isinstance(change, str):
        (run / change).rename(run / "away")
    elif change:
        (run / "exports/adapter/export.json").write_text(json.dumps(change))
    ended = push(hub, run, name, token=token)
    assert ended.returncode == 2
    assert told in " ".join(ended.stderr.split())
    assert "Traceback" not in ended.stderr
    assert token not in ended.stderr + ended.stdout


def test_a_secret_in_a_file_is_not_sent(hub, run, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "sk-much-too-secret")
    settings = run / "exports/adapter/burnish.json"
    settings.write_text('{"system_prompt": "Be brief. sk-much-too-secret"}')
    before = len(hub.calls)
    ended = push(hub, run, "me/secret")
    assert (ended.returncode, len(hub.calls)) == (2, before)
    assert "burnish.json holds the value of an environment variable" in " ".join(ended.stderr.split())
    assert "sk-much" not in ended.stderr + ended.stdout


def test_a_link_in_an_export_is_refused(hub, run):
    secret = Path(run).parent / "secret.txt"
    secret.write_text("secret")
    (run / "exports" / "adapter" / "notes.txt").symlink_to(secret)
    ended = push(hub, run, "me/linked")
    assert ended.returncode == 2
    assert "symbolic link" in ended.stderr


def test_a_hub_that_is_away_loses_nothing(hub, run):
    gone = type("Gone", (), {"address": "http://127.0.0.1:9"})
    ended = push(gone, run, "me/away")
    assert ended.returncode == 6
    assert "nothing is lost" in ended.stderr
