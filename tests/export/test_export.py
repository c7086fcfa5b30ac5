"""An export says what the run says, by the word of the tool that loads it; or it is not there."""

import json
from io import StringIO

import pytest
from rich.console import Console

from burnish.stages.export import Wish, export


def made(run, form, **more):
    return export(Console(file=StringIO(), width=200), Wish(str(run), form, **more))


@pytest.mark.parametrize("scope", ["sequence", "response"])
def test_an_adapter_says_in_peft_what_it_says_in_burnish(request, tmp_path, scope):
    run = request.getfixturevalue(f"{scope}_run")
    found = made(run, "adapter", output=str(tmp_path / "adapter"))
    assert found.facts["compared"]["num_equal"] == 8
    assert found.facts["compared"]["largest_gap"] < 1e-3


def test_a_merged_model_says_in_transformers_what_the_adapter_says(sequence_run, tmp_path):
    found = made(sequence_run, "merged", output=str(tmp_path / "merged"))
    assert found.facts["compared"]["num_equal"] == 8
    settings = json.loads((tmp_path / "merged/generation_config.json").read_text())
    assert settings["temperature"] == 1.0
