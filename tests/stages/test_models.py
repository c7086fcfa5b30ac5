"""`burnish models`: what will happen with a model, before its weights are loaded."""

import re
from dataclasses import asdict

import pytest
import torch
from rich.console import Console
from transformers import LlamaConfig, T5Config

from burnish import InputError, PPOConfig, SharedBase
from burnish.base_setup.lora_setup import lora_config
from burnish.ppo.step_memory import sizes_of
from burnish.stages.models import describe, of_few_layers, sizes_from_few
from families import family_model


def said(folder):
    console = Console(record=True, width=200, file=open("/dev/null", "w"))  # noqa: SIM115
    describe(console, str(folder))
    return console.export_text()


@pytest.mark.parametrize(
    ("family", "shared"),
    [
        ("gemma3_text", "prompt and trunk, in both scopes"),
        ("gpt2", "prompt, in both scopes"),
        ("lfm2", "prompt, in both scopes"),
        ("mamba", "nothing, so it is slower"),
    ],
)
def test_family_size_and_what_is_shared(family, shared, tmp_path):
    model = family_model(family)
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()  # nothing of it is read
    text = said(tmp_path)
    assert f"family          {family}" in text
    assert f"work shared     {shared}" in text
    assert "million in 4 layers" in text


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "gpt2", "lfm2"])
def test_a_few_layers_tell_what_all_of_them_need(family):
    """Against the same formula's sizes of the whole model, loaded and with its adapters."""
    model, config = family_model(family), PPOConfig()
    predicted = sizes_from_few(config, of_few_layers(model.config), "response", 4).in_numbers(
        model.config.vocab_size, 4
    )
    base = SharedBase(model, None, config.adapter_scope)
    base.add_adapter("policy", lora_config(config, base.decoder.layers, family))
    for name, size in asdict(sizes_of(base)).items():
        assert getattr(predicted, name) == pytest.approx(size, rel=0.1), name


def test_the_peak_of_a_step_is_told_before_anything_is_loaded(tmp_path, monkeypatch):
    LlamaConfig(hidden_size=512, intermediate_size=1024, num_hidden_layers=8, vocab_size=32_000).save_pretrained(
        tmp_path
    )
    monkeypatch.setattr("burnish.stages.models.held_bytes", lambda: 10**9)
    told = re.search(r"a PPO step      (\d+) MB at its peak, predicted for the defaults: 32 responses", said(tmp_path))
    # libraries 954 MB, base 205 MB (53.7 million numbers), 1,024 MB of prompts and 512 MB of activations with holes
    assert 954 + 205 + 1.2 * (1024 + 512) < int(told[1]) < 4500


def test_its_size_is_that_of_its_config(tmp_path):
    LlamaConfig(hidden_size=512, intermediate_size=1024, num_hidden_layers=3, vocab_size=32_000).save_pretrained(
        tmp_path
    )
    # embedding and head 2 x 32,000 x 512; a layer 4 x 512 x 512 (32 heads) + 3 x 512 x 1024: 40.6 million in all
    text = said(tmp_path)
    assert "parameters      41 million in 3 layers" in text
    assert "base in memory  155 MB as float32" in text


def test_as_many_experts_as_a_token_goes_to_are_looked_at(tmp_path):
    config = family_model("qwen3_moe").config
    config.num_experts, config.num_experts_per_tok = 16, 8
    config.save_pretrained(tmp_path)
    assert "work shared     prompt and trunk" in said(tmp_path)


def test_what_is_no_causal_language_model_is_refused(tmp_path):
    T5Config().save_pretrained(tmp_path)
    with pytest.raises(InputError, match="is no causal language model"):
        said(tmp_path)


def test_experts_that_peft_cannot_reach_are_listed(tmp_path):
    family_model("gpt_oss").config.save_pretrained(tmp_path)
    text = said(tmp_path)
    assert "adapters on     q_proj, k_proj, v_proj, o_proj" in text
    assert "not adapted     experts.gate_up_proj, experts.down_proj (peft cannot reach them)" in text


def test_a_long_model_is_looked_at_through_a_few_layers(tmp_path, monkeypatch):
    config = family_model("olmo3").config
    config.num_hidden_layers, config.layer_types = 40, ["sliding_attention"] * 3 + ["full_attention"] * 37
    config.save_pretrained(tmp_path)
    built = []
    monkeypatch.setattr("burnish.stages.models.decoder_of", lambda model: built.append(model) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        said(tmp_path)
    assert len(built[0].model.layers) == 4  # as many as it takes to see both kinds
    assert next(built[0].parameters()).device == torch.device("cpu")


def test_a_folder_that_is_not_there_is_refused():
    with pytest.raises(InputError, match="looks like a folder, but there is none"):
        describe(Console(), "./nowhere")
