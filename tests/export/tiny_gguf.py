"""The tiny model as a GGUF file, by hand: settings, a byte-level vocabulary, and weights in llama.cpp's order."""

from tiny import TEMPLATE, tiny_model, tiny_tokenizer


def write_tiny_gguf(file, family="llama"):
    import gguf

    head_dim = 128 if family == "qwen3" else 16  # transformers takes it for granted in a GGUF file of that family
    sizes = {"hidden_size": 64, "head_dim": head_dim, "vocab_size": 259}
    model, tokenizer = tiny_model(family, **sizes), tiny_tokenizer()
    settings = model.config
    writer = gguf.GGUFWriter(file, family)
    writer.add_context_length(settings.max_position_embeddings)
    writer.add_embedding_length(settings.hidden_size)
    writer.add_block_count(settings.num_hidden_layers)
    writer.add_feed_forward_length(settings.intermediate_size)
    writer.add_head_count(settings.num_attention_heads)
    writer.add_head_count_kv(settings.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(settings.rms_norm_eps)
    writer.add_vocab_size(settings.vocab_size)
    writer.add_file_type(0)
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([*(token for token, _ in vocabulary), "ab"])
    writer.add_token_types([1] * 256 + [3] * 2 + [1])
    writer.add_token_merges(["a b"])  # readers want one
    writer.add_eos_token_id(256)
    writer.add_chat_template(TEMPLATE)
    writer.add_add_bos_token(False)
    arch = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == family)
    names = gguf.get_tensor_name_map(arch, settings.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        rows = weight
        for projection, heads in (("q_proj", settings.num_attention_heads), ("k_proj", settings.num_key_value_heads)):
            if projection in name and family == "llama":  # row 2i and 2i + 1 of a head: i and i + half
                rows = rows.view(heads, 2, -1, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), rows.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
