"""A real vLLM loads what `burnish export` wrote, and answers as burnish does."""

import json
from io import StringIO

import pytest
from rich.console import Console

from burnish.config.rollout_config import ServedRollout
from burnish.export.same_answers import compare
from burnish.export.source import Answer
from burnish.rollout.server import Adapter, Request, Server
from burnish.runs.run import Run
from burnish.stages.export import Wish
from burnish.stages.exporting import load_source
from runs_to_export import made, trained
from vllm_server import is_installed

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not is_installed(), reason="vLLM is not installed; `make test-engines` installs it"),
]


@pytest.fixture(scope="module")
def place(folder, tmp_path_factory):
    """Prompts, and room for runs on the model that is served."""
    place = tmp_path_factory.mktemp("exports")
    rows = [json.dumps({"prompt": f"the {animal} and the {n}"}) for animal in ("fox", "owl", "eel") for n in range(12)]
    (place / "prompts.jsonl").write_text("\n".join(rows))
    return place


def answers_of(server, source, adapter):
    """The most likely tokens, with their log-probabilities at temperature 1."""
    config = ServedRollout(engine="vllm", url=server.url, model=server.model)
    asked, size = Server(server.url, config), source.base.head.shape[0]
    try:
        requests = [Request(ids, source.most_tokens, 0.0, source.base.stop_ids, 0, size) for ids in source.encoded]
        said = [asked.respond(request, server.model, adapter) for request in requests]
    finally:
        asked.leave()
    return [Answer(response.tokens, response.logprobs) for response in said]


@pytest.mark.parametrize(("scope", "form"), [("sequence", "adapter"), ("response", "lora")])
def test_vllm_answers_with_an_export_as_burnish_does(server, folder, place, tmp_path, monkeypatch, scope, form):
    """How near an ordinary LoRA has come to the trained model is another question: here it is compared with itself."""
    monkeypatch.setattr("burnish.stages.distilling.SHARE_LEFT", 100.0)
    run = trained(place, form, model_name=str(folder), adapter_scope=scope)
    few = {"updates": 2} if form == "lora" else {}
    exported = made(run, form, output=str(tmp_path / form), **few).folder
    named = {"lora": str(exported)} if form == "lora" else {}
    adapter = exported if form == "lora" else run / "adapters/policy"
    source = load_source(Console(file=StringIO()), Wish(str(run), "adapter", **named), Run.open(run), adapter)
    own, base = source.answers(), answers_of(server, source, None)
    found = compare(source, own, answers_of(server, source, Adapter(form, exported)), "vLLM", ("float32",))
    print(found.sentence)
    assert found.is_right
    assert found.num_equal == 8
    assert not compare(source, own, base, "vLLM's base", ("float32",)).is_right  # the adapter says something else
