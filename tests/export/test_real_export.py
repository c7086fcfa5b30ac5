"""The embedded model leaves burnish: its activated LoRA is taken by llama.cpp, and ollama is told how to talk to it."""

import json
from importlib.util import find_spec
from io import StringIO

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer, GraniteConfig

from burnish import EMBEDDED_NAME, PPOConfig, PPOTrainer
from burnish.base_setup.embedded import embedded_model_folder
from burnish.export.conversion import MODEL_SCRIPT, find_script
from burnish.stages.export import Wish, export

pytestmark = [
    pytest.mark.real_model,
    pytest.mark.skipif(find_spec("xllamacpp") is None, reason="needs llama.cpp: pip install xllamacpp"),
]
PROMPTS = ["Name a colour.", "My parrot swears at guests. Tell it in one sentence."]


def run_of(folder, **changes):
    """As if it had been trained: the adapter is moved by random numbers, so that it says something else."""
    settings = {"model_name": EMBEDDED_NAME, "chat_template": True, "max_new_tokens": 12, "lora_layers": 10}
    trainer = PPOTrainer(PPOConfig(**settings | {"reward": "tldr"} | changes))
    trainer.generator.agree_on_invocation(PROMPTS)
    generator = torch.Generator().manual_seed(0)
    for weight in trainer.policy.parameters():
        weight.data += 0.02 * torch.randn(weight.shape, generator=generator)
    trainer.save(folder)
    return folder


def made(run, form, output, **more):
    return export(Console(file=StringIO()), Wish(str(run), form, str(output), prompts=PROMPTS, **more)).facts


def test_an_activated_lora_of_the_embedded_model_answers_the_same_in_llama_cpp(tmp_path):
    facts = made(run_of(tmp_path / "run"), "gguf", tmp_path / "gguf")
    assert facts["adapter_scope"] == "response"
    assert facts["compared"]["num_equal"] == 2
    assert facts["compared"]["largest_gap"] < 0.01


def test_a_modelfile_has_the_template_the_settings_and_files_that_llama_cpp_takes(tmp_path):
    run = run_of(tmp_path / "run", adapter_scope="sequence", system_prompt="Be brief.", temperature=0.7, top_k=40)
    facts = made(run, "ollama", tmp_path / "ollama", gguf_type="q8_0")
    assert facts["compared"]["is_right"]
    assert facts["verified"] is False  # by ollama itself
    lines = (tmp_path / "ollama" / "Modelfile").read_text().splitlines()
    assert lines[:3] == [
        "FROM ./base.gguf",
        "ADAPTER ./adapter.gguf",
        'TEMPLATE """{{- range .Messages }}<|im_start|>{{ .Role }}',
    ]
    assert 'SYSTEM """Be brief."""' in lines
    assert {"PARAMETER temperature 0.7", "PARAMETER top_k 40", "PARAMETER num_predict 12"} <= {*lines}
    assert f"PARAMETER stop {json.dumps('<|im_end|>')}" in lines


@pytest.fixture(scope="module")
def granite(tmp_path_factory):
    """A family that burnish leaves to llama.cpp's scripts: two random layers, and a tokenizer that those know."""
    folder = tmp_path_factory.mktemp("granite")
    tokenizer = AutoTokenizer.from_pretrained(embedded_model_folder())
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    special = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": None, "pad_token_id": None}
    config = GraniteConfig(vocab_size=len(tokenizer), num_key_value_heads=2, max_position_embeddings=512, **sizes)
    config.update(special)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.skipif(find_script(MODEL_SCRIPT) is None, reason="needs llama.cpp's scripts: see docs/export.md")
@pytest.mark.parametrize(("scope", "more"), [("response", {}), ("sequence", {}), ("sequence", {"merged": True})])
def test_a_family_that_burnish_does_not_write_is_converted_by_llama_cpps_own_scripts(tmp_path, granite, scope, more):
    run = run_of(tmp_path / "run", model_name=granite, lora_layers="all", adapter_scope=scope)
    facts = made(run, "gguf", tmp_path / "gguf", **more)
    assert facts["compared"]["num_equal"] == 2
    assert facts["compared"]["largest_gap"] < 0.01
