"""Trackers behind stand-ins for their libraries: what they are told, and that a run which goes on stays the same."""

import sys
from types import SimpleNamespace

import pytest

from burnish import InputError
from burnish.runs.run import Run
from burnish.show.trackers import check_tracker, open_tracker
from tiny import tiny_config


@pytest.fixture
def run(tmp_path):
    return Run.new(tmp_path, "mine").begin(tiny_config())


@pytest.fixture
def library(monkeypatch):
    """Remembers what it is told under any name it is given."""
    calls = []

    def provide(name, **replaced):
        parts = {n: lambda *a, _n=n, **k: calls.append((_n, a, k)) for n in ("init", "log", "finish")}
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**(parts | replaced), __spec__=object()))
        return calls

    return provide


STEP = {"step": 4, "reward": 0.5, "kl": 1.0, "prompts": ["not a number"]}
STEP |= {"reward_parts": {"rule": 0.25}, "reward_costs": {"judge calls": 8}}


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_hosted_trackers_get_numbers_steps_and_one_identity(run, library, name):
    calls = library(name)
    for _ in range(2):  # begun, and gone on with
        tracker = open_tracker(name, run, 3)
        tracker.log(STEP)
        tracker.close()
    kinds = [kind for kind, _, _ in calls]
    assert kinds == ["init", "log", "finish"] * 2
    first, second = (k for kind, _, k in calls if kind == "init")
    assert first == second  # also wandb's id
    assert (first["name"], first["resume"], "id" in first) == ("mine", "allow", name == "wandb")
    assert first["config"]["model_name"] == "tiny"
    _, (numbers,), options = calls[1]
    parts = {"reward_parts/rule": 0.25, "reward_costs/judge calls": 8.0}
    assert numbers == {"step": 4.0, "reward": 0.5, "kl": 1.0} | parts
    assert options == {"step": 4}


def test_hosted_trackers_get_no_secrets(tmp_path, library, monkeypatch):
    calls = library("wandb")
    monkeypatch.setenv("JUDGE_API_KEY", "open-sesame")
    chatty = tiny_config(chat_template=True, system_prompt="Say open-sesame.")
    open_tracker("wandb", Run.new(tmp_path, "chatty").begin(chatty))
    assert calls[0][2]["config"]["system_prompt"] == "Say [JUDGE_API_KEY]."


def test_a_tracker_that_does_not_start_ends_in_a_sentence(run, library):
    def no_key(**_):
        raise RuntimeError("no API key")

    library("wandb", init=no_key)
    with pytest.raises(InputError, match="wandb does not start: no API key"):
        open_tracker("wandb", run)


def test_tensorboard_forgets_the_steps_that_are_made_again(run, library, monkeypatch):
    written = []

    class Writer:
        def __init__(self, folder, purge_step):
            written.append((folder, purge_step))

        def add_scalar(self, name, value, step):
            written.append((name, value, step))

        def close(self):
            written.append("closed")

    library("tensorboard")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))
    tracker = open_tracker("tensorboard", run, 3)
    tracker.log(STEP)
    tracker.close()
    assert written[0] == (str(run.folder / "tensorboard"), 4)
    assert ("reward_parts/rule", 0.25, 4) in written
    assert written[-1] == "closed"


def test_a_package_that_is_not_there_is_named():
    check_tracker(None)
    with pytest.raises(InputError, match="get it with: pip install trackio"):
        check_tracker("trackio")
