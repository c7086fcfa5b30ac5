"""A real vLLM that serves a tiny model, for the tests of one file."""

import pytest

from tiny import tiny_model, tiny_tokenizer
from vllm_server import serving


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Heads as large as its kernels want them."""
    folder = tmp_path_factory.mktemp("model")
    model = tiny_model(hidden_size=64, head_dim=32, num_attention_heads=2, num_key_value_heads=1, intermediate_size=128)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory):
    with serving(folder, tmp_path_factory.mktemp("vllm") / "log.txt", max_length=256, rank=8) as started:
        yield started
