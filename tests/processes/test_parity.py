"""One, two and three processes give the same responses and the same losses, whatever the split (worlds.py)."""

import json
import math
import os
import re
import subprocess
import sys

import pytest
import worlds

from burnish.processes import wire, world
from tiny import PROMPTS

EXACTLY = ("texts", "finished", "answers", "draws")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each world has found, by its size."""
    folder = tmp_path_factory.mktemp("worlds")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, worlds.__file__, folder], check=True, env=environment, timeout=600)
    told = {f"server {size}": json.loads((folder / f"server-{size}.json").read_text()) for size in (1, 2)}
    return told | {size: json.loads((folder / f"{size}.json").read_text()) for size in (1, 2, 3)}


def assert_same(here, there, where="", bound=1e-5):
    """To 1e-5 of the larger of the number and 1, losses to 1e-6."""
    if isinstance(here, dict):
        assert here.keys() == there.keys(), where
        for key in here:
            assert_same(here[key], there[key], f"{where} {key}", 1e-6 if key.endswith("loss") else bound)
    elif isinstance(here, list):
        assert len(here) == len(there), where
        for number, pair in enumerate(zip(here, there, strict=True)):
            assert_same(*pair, f"{where} {number}", bound)
    elif isinstance(here, float) and not math.isnan(here):
        assert there == pytest.approx(here, rel=bound, abs=bound), where
    else:
        assert here == there or (isinstance(here, float) and math.isnan(there)), where


@pytest.mark.parametrize(("name", "size"), [(n, 3) for n in worlds.PPO] + [(n, 2) for n in worlds.FEW])
def test_ppo_is_the_same(found, name, size):
    alone, shared = found[1][name], found[size][name]
    assert isinstance(alone, dict), alone
    for what in EXACTLY:
        assert shared[what] == alone[what]
    assert_same(alone, shared)


def test_the_cases_are_what_they_say(found):
    alone = found[1]
    updates = {name: [row["policy_updates"] for row in alone[name]["metrics"]] for name in worlds.PPO}
    assert updates["critic"] == [4, 8]  # two epochs of two mini-batches
    assert updates["early KL stop"][-1] < 16
    assert "value_loss" not in alone["groups without critic"]["metrics"][0]
    for name, (_, left_out) in worlds.LEFT_OUT.items():
        assert [row["left_out"] for row in alone[name]["metrics"]] == [len(left_out)] * 2
    ended = [flag for step in alone["critic"]["finished"] for flag in step]
    assert any(ended)
    assert not all(ended)


@pytest.mark.parametrize("stage", ["sft", "reward"])
def test_what_is_learned_from_people_is_the_same(found, stage):
    alone, shared = found[1][stage], found[3][stage]
    for row, expected in zip(shared["history"], alone["history"], strict=True):
        # where a loss is nearly 0, rounding is a larger part of its gradient
        assert row.pop("grad_norm") == pytest.approx(expected.pop("grad_norm"), rel=1e-4)
    assert_same(alone, shared)


def test_two_processes_get_from_a_server_what_one_gets(found):
    """Each response is asked for once, by one of them, and each version of the adapter is given to the server once."""
    alone, shared = found[1]["served"], found[2]["served"]
    assert isinstance(shared, dict), shared
    assert shared["texts"] == alone["texts"]
    assert_same(alone["losses"], shared["losses"])
    assert found["server 2"] == found["server 1"]
    assert len(found["server 1"]["asked"]) == 2 * len(PROMPTS) + 1
    assert found["server 1"]["loaded"] == 3


@pytest.mark.parametrize("name", worlds.SHARDED)
def test_ppo_on_a_sharded_base_is_the_same(found, name):
    """However many passes each process has to make: whoever has none helps to put the others' layers together."""
    alone, shared = found[1][name], found[2][f"sharded {name}"]
    assert isinstance(shared, dict), shared
    for what in EXACTLY:
        assert shared[what] == alone[what]
    assert_same(alone, shared)


def test_layers_that_wait_in_the_machines_memory_compute_the_same(found):
    alone, shared = found[1]["critic"], found[2]["offloaded critic"]
    assert isinstance(shared, dict), shared
    for what in EXACTLY:
        assert shared[what] == alone[what]
    assert_same(alone, shared)


@pytest.mark.parametrize("stage", ["sft", "reward"])
def test_what_is_learned_from_people_on_a_sharded_base_is_the_same(found, stage):
    alone, shared = found[1][stage], found[2][f"sharded {stage}"]
    assert [row["loss"] for row in shared["history"]] == pytest.approx([r["loss"] for r in alone["history"]], abs=1e-5)


def test_each_process_holds_its_part_of_a_sharded_base(found):
    told = found[2]["a sharded base"]
    for part in ("layers", "others", "report"):  # others: embeddings; only the last norm is whole
        assert told["alone"][part] == pytest.approx(2 * told["sharded"][part], rel=0.01)
    assert told["alone"]["identity"] == told["sharded"]["identity"]
    assert told["sharded"]["whole at rest"] == 0
    assert told["sharded"]["saved"] == told["alone"]["saved"]


@pytest.mark.parametrize("where", worlds.FAILURES)
def test_what_goes_wrong_on_a_sharded_base_ends_all_alike(found, where):
    assert found[2][f"sharded failing {where}"] == found[2][f"failing {where}"]


@pytest.mark.parametrize("where", worlds.FAILURES)
def test_what_goes_wrong_in_one_process_ends_all_alike(found, where):
    sentences = found[3][f"failing {where}"]["everywhere"]
    assert len(sentences) == 3
    assert len(set(sentences)) == 1
    expected = {
        "decoding": "MemoryError: allocate memory",
        "logits": r"DivergedError: the policy's logits are not finite \(response 6\)",
        "training": "ResourceError: there is not enough memory to train on a single sequence",
    }
    assert re.match(expected[where], sentences[0]), sentences[0]


def test_the_first_process_tells_what_the_others_warn_of(found):
    assert found[3]["warned"] == ["said by 0 of 3", "said by 1 of 3", "said by 2 of 3"]
    assert found[1]["warned"] == ["said by 0 of 1"]


@pytest.mark.parametrize(("count", "size", "sizes"), [(8, 3, [3, 3, 2]), (2, 3, [1, 1, 0]), (7, 1, [7])])
def test_shares_are_neighbours_of_nearly_one_size(monkeypatch, count, size, sizes):
    shares = []
    for rank in range(size):
        monkeypatch.setattr(wire, "here", wire.World(rank, size))
        shares.append(world.share(count))
    assert [len(own) for own in shares] == sizes
    assert [n for own in shares for n in own] == list(range(count))


def test_responses_to_one_prompt_stay_together(monkeypatch):
    monkeypatch.setattr(wire, "here", wire.World(1, 2))
    assert world.share_of_runs(list("aaabbcc")) == range(5, 7)  # of three prompts the second process has one
