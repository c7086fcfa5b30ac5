"""Where a base model comes from: a GGUF file that is converted once, a version on the hub."""

import gguf
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from burnish import InputError, PPOConfig, PPOTrainer
from burnish.base_setup import base_setup, sources
from burnish.base_setup import gguf as gguf_files
from burnish.base_setup.base_setup import load_encoder, load_model, load_tokenizer
from burnish.stages.trusted import model_deeds
from tiny import PROMPTS, count_vowels, tiny_config, tiny_model, tiny_tokenizer

NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def paired(weight, heads):
    """Queries and keys as llama.cpp has them: the two numbers that are rotated together stand side by side."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(file, model, parts=None):
    """A tiny Llama with a byte-level tokenizer, as llama.cpp writes one."""
    config = model.config
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    vocabulary = tiny_tokenizer().get_vocab()
    tokens = [*sorted(vocabulary, key=vocabulary.__getitem__), "aa"]
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in ("<eos>", "<pad>") else 1 for token in tokens])
    writer.add_token_merges(["a a"])
    writer.add_eos_token_id(256)
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    own = {
        "token_embd.weight": weights["model.embed_tokens.weight"],
        "output_norm.weight": weights["model.norm.weight"],
    }
    for layer in range(config.num_hidden_layers if parts is None else parts):
        for theirs, ours in NAMES.items():
            weight = weights[f"model.layers.{layer}.{theirs}.weight"]
            heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(ours)
            own[f"blk.{layer}.{ours}.weight"] = paired(weight, heads) if heads else weight
    for name, weight in own.items():
        writer.add_tensor(name, weight.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))


def llama(**more):
    return tiny_model(vocab_size=259, **more)


def of_file(file, **changes):
    return tiny_config(model_name=str(file), **changes)


# ---------------------------------------------------------------------------------------------------------- GGUF


def test_a_gguf_file_is_the_model_that_was_written_into_it_and_trains(tmp_path):
    original = llama()
    file = write_gguf(tmp_path / "tiny.gguf", original)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "x"}')  # of something else that lies beside it
    trainer = PPOTrainer(of_file(file), count_vowels)
    loaded = load_model(of_file(file)).state_dict()
    for name, weight in original.state_dict().items():
        torch.testing.assert_close(loaded[name], weight, rtol=0, atol=0)
    letters = tiny_tokenizer()("hello")["input_ids"]
    assert trainer.setup.encoder.encode(["hello", "hello aa"]) == [
        letters,
        [*letters, tiny_tokenizer()(" ")["input_ids"][0], 258],
    ]
    assert trainer.base.stop_ids == [256]
    assert trainer.base.identity.name == str(file)
    assert trainer.ppo_step(PROMPTS)["first_ratio_error"] < 1e-4


def test_it_is_converted_once_and_again_when_it_has_changed(tmp_path, monkeypatch):
    monkeypatch.setattr("burnish.base_setup.kept_fingerprints.SETTLED_SECONDS", -1e9)
    file = write_gguf(tmp_path / "tiny.gguf", llama())
    converted, convert = [], gguf_files._convert
    monkeypatch.setattr(gguf_files, "_convert", lambda *given: (converted.append(1), convert(*given)))
    read = []
    digest = gguf_files.hashlib.file_digest
    monkeypatch.setattr(gguf_files.hashlib, "file_digest", lambda *given: (read.append(1), digest(*given))[1])
    first, again = (load_model(of_file(file)).state_dict() for _ in range(2))
    assert (len(converted), len(read)) == (1, 1)  # nor is the file itself read again
    write_gguf(file, llama(seed=5))
    other = load_model(of_file(file)).state_dict()
    assert (len(converted), len(read)) == (2, 2)
    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(first[name], again[name])
    assert not torch.equal(first[name], other[name])


def test_a_gguf_file_that_cannot_be_read_is_refused_with_the_way_out(tmp_path):
    file = write_gguf(tmp_path / "tiny.gguf", llama())
    whole = file.read_bytes()
    refused = {
        "missing.gguf": (None, r"there is no file .*missing.gguf; .*hf download"),
        "text.gguf": (b"not a model", r"text.gguf is no GGUF file, whatever its name says"),
        "cut.gguf": (
            whole[: len(whole) // 2],
            r"transformers cannot read .*cut.gguf \(.*Get the file again, or",
        ),
        "head.gguf": (whole[:40], r"transformers cannot read .*head.gguf"),
        "folder.gguf": (None, r"cannot read .*folder.gguf: Is a directory"),
    }
    (tmp_path / "folder.gguf").mkdir()
    for name, (content, sentence) in refused.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=sentence):
            load_tokenizer(of_file(tmp_path / name))
    part = write_gguf(tmp_path / "part.gguf", llama(), parts=1)
    with pytest.raises(InputError, match=r"part.gguf lacks 9 of the model's tensors \(.*llama-gguf-split --merge"):
        load_tokenizer(of_file(part))
    assert not list((tmp_path / "cache").rglob("model.safetensors"))  # nothing half done stays behind


# ------------------------------------------------------------------------------------------------------ revision


def test_the_revision_goes_to_everything_that_is_loaded(tmp_path, monkeypatch):
    llama().save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    asked = []
    for kind in (AutoConfig, AutoTokenizer, AutoModelForCausalLM):

        def fetch(source, kind=kind, load=kind.from_pretrained, revision=None, **options):
            asked.append((kind.__name__, source, revision))
            return load(str(tmp_path / "model"), **options)

        monkeypatch.setattr(kind, "from_pretrained", fetch)
    looked_for = []
    monkeypatch.setattr(
        base_setup.huggingface_hub, "try_to_load_from_cache", lambda *given, **more: looked_for.append((given, more))
    )
    config = of_file("someone/model", revision="v2")
    trainer = PPOTrainer(config, count_vowels, encoder=load_encoder(config))
    kinds = ("AutoTokenizer", "AutoConfig", "AutoModelForCausalLM")
    by_name = [call for call in asked if call[1] == "someone/model"]  # a tokenizer asks its folder for the config too
    assert list(dict.fromkeys(by_name)) == [(kind, "someone/model", "v2") for kind in kinds]
    assert {(given, more["revision"]) for given, more in looked_for} == {(("someone/model", "config.json"), "v2")}
    assert trainer.base.identity.name == "someone/model@v2"
    assert trainer.base.peft_model.peft_config["policy"].revision == "v2"  # peft fetches the same base
    assert list(model_deeds(config)) == ["ask the model hub for someone/model@v2"]


@pytest.mark.parametrize("kind", ["a folder", "a GGUF file", "the embedded model"])
def test_what_is_not_on_the_hub_has_no_revision(tmp_path, kind):
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    places = {"a folder": str(tmp_path), "a GGUF file": str(tmp_path / "tiny.gguf")}
    config = of_file(places.get(kind, "embedded/SmolLM2-135M-Instruct"), revision="main")
    with pytest.raises(InputError, match=f"revision 'main' is a version of a model on the hub, .* is {kind}; leave"):
        sources.model_source(config)
    assert list(model_deeds(config)) == []


@pytest.mark.parametrize("revision", ["", "../../other", "a b", "/refs", "a//b"])
def test_a_revision_is_a_name(revision):
    with pytest.raises(InputError, match=r"revision: takes a commit, a tag or a branch"):
        PPOConfig(revision=revision)
