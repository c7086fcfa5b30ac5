"""Finished runs of a tiny model, in both scopes: what every form of export begins with."""

import json

import pytest
from tiny_gguf import write_tiny_gguf

from runs_to_export import trained

WORDS = "fox dog cat cow hen owl bee ant elk emu yak eel".split()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A tiny base as a GGUF file, which every form can be made from, and prompts."""
    folder = tmp_path_factory.mktemp("exports")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BURNISH_CACHE", str(folder / "cache"))
        write_tiny_gguf(folder / "base.gguf")
        rows = [json.dumps({"prompt": f"the {a} and the {b}"}) for a in WORDS for b in WORDS[:4]]
        (folder / "prompts.jsonl").write_text("\n".join(rows))
        yield folder


@pytest.fixture(scope="module")
def sequence_run(place):
    return trained(place, "sequence", adapter_scope="sequence")


@pytest.fixture(scope="module")
def response_run(place):
    return trained(place, "response")
