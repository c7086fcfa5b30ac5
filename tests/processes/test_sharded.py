"""A base that processes share: what is refused, and what becomes of a run. Same results: test_parity.py."""

import pytest
import torch
from test_together import LOST, ended, start, train

from burnish import InputError
from burnish.decoder import sharded
from burnish.errors import ConfigError
from burnish.processes import wire
from failures import log_of, make_workplace
from tiny import tiny_config, tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_workplace(tmp_path_factory.mktemp("sharded"))


def test_a_sharded_run_is_killed_and_resumed_by_one_process(fork_server, folder):
    """Which holds the whole base then, and says so. The log is that of a run that was never sharded."""
    first, second = ended(
        fork_server,
        start(fork_server, folder, *train("sharded", "shard=true"), kill=(1, {"kill_at": 9, "where": "log"})),
    )
    assert (first.code, second.code) == (7, -9), first.text + second.text
    assert first.text.count(LOST) == 1
    assert "Traceback" not in first.text
    resumed = fork_server.run(folder, *train("sharded", "shard=true"))
    assert resumed.code == 0, resumed.text
    assert "shard: true changes nothing here: one process holds the whole base." in resumed.text
    assert "processes: 2 then, 1 now" in resumed.text
    assert fork_server.run(folder, *train("alone")).code == 0
    rows, expected = (log_of(folder / "runs" / name)[0] for name in ("sharded", "alone"))
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    for row, other in zip(rows, expected, strict=True):
        for name in ("policy_loss", "value_loss", "kl", "reward"):
            assert row[name] == pytest.approx(other[name], abs=1e-5), name


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"shard": True, "quantize": "int8"}, "shard does not go with quantize"),
        ({"shard_offload": True}, "shard_offload is about the parts of a sharded base; set shard: true"),
    ],
)
def test_what_does_not_go_together_is_refused(settings, told):
    with pytest.raises(ConfigError, match=told):
        tiny_config(**settings)


def test_a_base_that_is_stored_in_fewer_bits_is_refused(monkeypatch):
    monkeypatch.setattr(sharded, "storages_in", lambda model: ["nf4"])
    model = tiny_model()
    with pytest.raises(InputError, match=r"stored in fewer bits, which FSDP cannot cut"):
        sharded.shard(model, model.model.layers, torch.device("cpu"), offload=False)


def test_weights_that_several_layers_share_stay_whole():
    model = tiny_model(layers=3)
    layers = model.model.layers
    layers[2].mlp.up_proj.weight = layers[0].mlp.up_proj.weight
    assert sharded._used_elsewhere(model, layers) >= {layers[0].mlp.up_proj.weight, model.lm_head.weight}
    assert layers[1].mlp.up_proj.weight not in sharded._used_elsewhere(model, layers)


class Stub:
    """A piece that remembers what was done with it."""

    def __init__(self):
        self.done = []

    def bring(self):
        self.done.append("bring")

    def drop(self):
        self.done.append("drop")


def test_whoever_waits_helps_with_what_others_need(monkeypatch):
    """Another process asks for piece 1, then for piece 0; then it has something to send as well."""
    pieces = [Stub(), Stub()]
    monkeypatch.setattr(wire, "_pieces", [])
    monkeypatch.setattr(wire, "_held", [])
    numbers = [wire.spread(piece) for piece in pieces]
    assert numbers == [0, 1]
    said = iter([1, 0, wire.WAITING])
    monkeypatch.setattr(wire, "_from_all", lambda own: [own, torch.tensor([next(said)])])
    wire.fetch(0)
    assert [piece.done for piece in pieces] == [["bring"], ["bring", "drop"]]  # ours stays, theirs does not
    wire.meet()
    assert [piece.done for piece in pieces] == [["bring", "drop", "bring", "drop"], ["bring", "drop"]]


@pytest.mark.parametrize(("offload", "name"), [(True, "CPUOffloadPolicy"), (False, "OffloadPolicy")])
def test_layers_wait_in_the_machines_memory_only_if_asked_to(monkeypatch, offload, name):
    """On a CPU the numbers are the same, so that nothing else would tell."""
    given = []
    monkeypatch.setattr("torch.distributed.device_mesh.init_device_mesh", lambda *_: None)
    monkeypatch.setattr(sharded, "LayerPiece", lambda *_, **how: given.append(how["offload_policy"]))
    monkeypatch.setattr(sharded, "_watch", lambda *_: None)
    monkeypatch.setattr(sharded, "give_back_at_once", lambda: None)  # it would last
    model = tiny_model()
    sharded.shard(model, model.model.layers, torch.device("cpu"), offload)
    assert [type(policy).__name__ for policy in given] == [name] * 3  # two layers, embeddings with the head


def test_the_largest_piece_that_is_put_together_counts_for_memory(monkeypatch):
    monkeypatch.setattr(sharded, "is_sharded", lambda weight: True)
    model = tiny_model()
    assert sharded.largest_piece(model) == 0
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    head.weight = embeddings.weight
    embeddings.spread = head.spread = (0, None)
    assert sharded.largest_piece(model) == embeddings.weight.nbytes  # shared: once
    layer = model.model.layers[0]
    layer.spread = (1, None)
    of_layer = sum(weight.nbytes for weight in layer.parameters())
    assert sharded.largest_piece(model) == max(of_layer, embeddings.weight.nbytes)
