"""Adapters and models as GGUF files: llama.cpp says what burnish says, or the files are not there."""

from importlib.util import find_spec

import pytest
from tiny_gguf import write_tiny_gguf

from burnish.errors import WrongExportError
from burnish.export import gguf_files
from burnish.stages import exporting
from runs_to_export import loaded_as_the_card_says, made, told_by, trained

needs_llama_cpp = pytest.mark.skipif(find_spec("xllamacpp") is None, reason="needs llama.cpp: pip install xllamacpp")


@needs_llama_cpp
@pytest.mark.parametrize("scope", ["sequence", "response"])
def test_an_adapter_says_in_llama_cpp_what_it_says_in_burnish(request, tmp_path, scope):
    found = made(request.getfixturevalue(f"{scope}_run"), "gguf", output=str(tmp_path / "gguf"))
    assert found.facts["compared"]["num_equal"] == 8
    assert {*found.as_dict()["files"]} == {"README.md", "adapter.gguf", "export.json"}
    assert not [*tmp_path.glob(".*")]  # nor is the base still there that it was tried on


@needs_llama_cpp
@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_adapter_and_model_of_other_families_say_in_llama_cpp_what_they_say_in_burnish(place, tmp_path, family):
    base = write_tiny_gguf(tmp_path / "base.gguf", family)
    run = trained(place, family, model_name=str(base), adapter_scope="sequence")
    for merged in (False, True):
        found = made(run, "gguf", output=str(tmp_path / f"gguf-{merged}"), merged=merged)
        assert found.facts["compared"]["num_equal"] == 8


@needs_llama_cpp
def test_an_activated_adapter_that_begins_a_token_early_is_found_out(response_run, tmp_path, monkeypatch):
    """All invocation tokens in the file make llama.cpp begin one before them."""
    monkeypatch.setattr(gguf_files, "named_invocation", lambda source: source.base.invocation)
    with pytest.raises(WrongExportError, match="this export is wrong, and was not kept"):
        made(response_run, "gguf", output=str(tmp_path / "gguf"))
    assert not [*tmp_path.iterdir()]


@needs_llama_cpp
@pytest.mark.parametrize(("gguf_type", "gap", "num_equal"), [("f32", 1e-4, 8), ("f16", 0.02, 8), ("q8_0", 0.5, 0)])
def test_a_merged_model_says_in_llama_cpp_what_the_adapter_says(sequence_run, tmp_path, gguf_type, gap, num_equal):
    """Gaps of 4e-6, 0.006 and 0.17 nats on average were measured: the next coarser numbers would be found out."""
    found = made(sequence_run, "gguf", output=str(tmp_path / "m"), merged=True, gguf_type=gguf_type)
    assert found.facts["compared"]["mean_gap"] < gap
    assert found.facts["compared"]["num_equal"] >= num_equal  # rounded to 8 bits, a random model goes other ways
    assert (tmp_path / "m" / f"model-{gguf_type}.gguf").is_file()


def test_without_llama_cpp_it_is_said_that_nothing_was_tried(sequence_run, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting.consumers, "has_llama_cpp", lambda: False)
    found = made(sequence_run, "gguf", output=str(tmp_path / "gguf"))
    assert found.facts["verified"] is False
    assert "pip install 'burnish[gguf]'" in found.facts["not_verified"]
    assert "Not tried: llama.cpp is not installed here" in (tmp_path / "gguf/README.md").read_text()


@pytest.mark.skipif(find_spec("torchao") is None, reason="needs torchao: pip install 'burnish[quantize]'")
def test_of_a_quantized_base_the_adapter_is_written_and_nothing_is_said_to_be_tried(place, tmp_path, monkeypatch):
    run = trained(place, "rounded", adapter_scope="sequence", quantize="int8")
    found = made(run, "gguf", output=str(tmp_path / "gguf"))
    assert found.facts["verified"] is False
    assert "is quantized, in a way that GGUF does not have" in found.facts["not_verified"]
    assert (tmp_path / "gguf/adapter.gguf").is_file()
    told = told_by(lambda: made(run, "gguf", output=str(tmp_path / "out"), with_base=True))
    assert "--with-base cannot be done for this run: the base that this adapter was trained on is quantized" in told
    for form, more in (("ollama", {}), ("merged", {}), ("gguf", {"merged": True})):
        told = told_by(lambda form=form, more=more: made(run, form, output=str(tmp_path / "out"), **more))
        assert told.startswith("the base of this run is quantized")
    adapter = made(run, "adapter", output=str(tmp_path / "adapter"))
    assert loaded_as_the_card_says(adapter.folder, place, monkeypatch)["base"].hf_quantizer is not None


# ------------------------------------------------------------------------------------------- with the base beside it


def card_of(found):
    return (found.folder / "README.md").read_text()


@needs_llama_cpp
@pytest.mark.parametrize(("gguf_type", "gap"), [("f32", 1e-4), ("f16", 0.02)])
def test_the_base_stays_beside_the_adapter_on_request_and_the_card_serves_both(sequence_run, tmp_path, gguf_type, gap):
    found = made(sequence_run, "gguf", output=str(tmp_path / "gguf"), with_base=True, gguf_type=gguf_type)
    base = f"base-{gguf_type}.gguf"
    assert {*found.as_dict()["files"]} == {"README.md", "adapter.gguf", base, "export.json"}
    assert found.facts["compared"]["mean_gap"] < gap
    assert found.facts["type"] == gguf_type
    card = card_of(found)
    assert f"llama-server -m {base} --lora adapter.gguf\n" in card
    assert f"llama-quantize {base} base-Q4_K_M.gguf Q4_K_M\n" in card
    assert "BASE.gguf" not in card


def test_the_card_of_an_adapter_alone_says_where_its_base_comes_from(sequence_run, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting.consumers, "has_llama_cpp", lambda: False)
    card = card_of(made(sequence_run, "gguf", output=str(tmp_path / "gguf")))
    assert "llama-server -m BASE.gguf --lora adapter.gguf\n" in card
    assert "BASE.gguf is the base model, base.gguf, as a GGUF file; `burnish export RUN --to gguf --with-base`" in card
    assert "llama-quantize" not in card  # there is nothing here that it could be used on


@needs_llama_cpp
def test_a_base_that_a_lora_was_folded_into_is_kept_with_it(place, sequence_run, tmp_path):
    """An adapter on the plain base would say something else, and be found out."""
    run = trained(place, "further", sft=str(sequence_run / "adapters/policy"))
    found = made(run, "gguf", output=str(tmp_path / "gguf"), with_base=True)
    assert found.facts["compared"]["num_equal"] == 8
    alone = card_of(made(run, "gguf", output=str(tmp_path / "alone")))
    assert "base.gguf, with the LoRA folded into it that training began with, as a GGUF file" in alone


def test_a_base_that_cannot_be_written_is_refused_with_the_reason(sequence_run, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "why_no_model", lambda source: "this model needs a script")
    told = told_by(lambda: made(sequence_run, "gguf", output=str(tmp_path / "gguf"), with_base=True))
    assert told == (
        "--with-base cannot be done for this run: this model needs a script. Leave it out to get the adapter alone"
    )
    assert not [*tmp_path.iterdir()]


# ----------------------------------------------------------------------------------------------------- in fewer bits


@pytest.mark.parametrize(
    ("gguf_type", "told"),
    [
        ("f16", "llama-quantize model-f16.gguf model-Q4_K_M.gguf Q4_K_M\n"),
        ("q8_0", "export again with `--type f16` and give that to llama.cpp's `llama-quantize`"),
    ],
)
def test_the_card_of_a_whole_model_says_how_it_gets_smaller(sequence_run, tmp_path, monkeypatch, gguf_type, told):
    monkeypatch.setattr(exporting.consumers, "has_llama_cpp", lambda: False)
    found = made(sequence_run, "gguf", output=str(tmp_path / "m"), merged=True, gguf_type=gguf_type)
    assert told in card_of(found)
    assert f"llama-server -m model-{gguf_type}.gguf\n" in card_of(found)


def test_the_card_of_a_modelfile_says_which_name_to_put_into_it(place, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting.consumers, "has_llama_cpp", lambda: False)
    run = trained(place, "untold", adapter_scope="sequence", chat_template=False, system_prompt=None)
    found = made(run, "ollama", output=str(tmp_path / "ollama"))
    assert "llama-quantize base.gguf base-Q4_K_M.gguf Q4_K_M\n" in card_of(found)
    assert "Put its name into the Modelfile first: `FROM ./base-Q4_K_M.gguf`." in card_of(found)
    assert (
        (found.folder / "Modelfile").read_text().startswith("FROM ./base.gguf\n")
    )  # which that line takes the place of
