"""GGUF files for llama.cpp: an adapter, or a model made of a GGUF file's own settings and new weights.

Both are written with the library `gguf`, for families whose weights llama.cpp keeps as transformers does, or with the
rows of queries and keys in another order. Other families and other starts need llama.cpp's own scripts (conversion.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file
from torch import Tensor

from burnish.base_setup.embedded import packaged_weights
from burnish.base_setup.gguf import is_gguf
from burnish.base_setup.lora_files import CONFIG, WEIGHTS, read_json
from burnish.config.model_config import EMBEDDED_NAME, ModelConfig
from burnish.errors import InputError
from burnish.export.merged import merged_weights
from burnish.export.source import Source

# transformers' model_type -> llama.cpp's architecture. tests/export tries all but mistral.
ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
# transformers rotates the two halves of a head, llama.cpp in these architectures neighbouring rows.
ROTATES_NEIGHBOURS = ("llama",)
NOT_COPIED = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version", "split.")
FILE_TYPES = {"f32": 0, "f16": 1, "q8_0": 7}  # as `general.file_type` has them


def architecture_of(source: Source) -> str | None:
    """llama.cpp's name of the family; None for one that only llama.cpp's own scripts know."""
    return ARCHITECTURES.get(source.base.model.config.model_type)


def origin_of(config: ModelConfig) -> Path | None:
    """The GGUF file that the base was converted from, if it was."""
    if config.model_name == EMBEDDED_NAME:
        return packaged_weights()
    return Path(config.model_name) if is_gguf(config.model_name) else None


def named_invocation(source: Source) -> list[int]:
    """The tokens that tell llama.cpp where an activated LoRA begins: those that ours begins at, without the first.

    llama.cpp's server reads the prompt up to the token before the ones that the file names without the adapter, and
    lets the adapter act from that one on.
    """
    if source.scope != "response":
        return []
    if len(source.base.invocation) < 2:
        raise InputError(
            "the adapter begins to act at the prompt's last token, and llama.cpp can only be told tokens after the one "
            "that it begins at; make an ordinary LoRA of it (--to lora), or train with a chat template"
        )
    return source.base.invocation[1:]


def write_gguf_adapter(source: Source, file: Path) -> None:
    """The LoRA in float32: A and B of every adapted module under llama.cpp's names."""
    import gguf

    architecture = architecture_of(source)
    assert architecture is not None
    settings = read_json(source.folder / CONFIG)
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, float(settings["lora_alpha"]))
    if tokens := named_invocation(source):
        key, kinds = gguf.Keys.Adapter.ALORA_INVOCATION_TOKENS, gguf.GGUFValueType
        writer.add_key_value(key, tokens, kinds.ARRAY, sub_type=kinds.UINT32)
    for stored, tensor in sorted(load_file(source.folder / WEIGHTS).items()):
        name, side = stored.removeprefix("base_model.model.").removesuffix(".weight").rsplit(".lora_", 1)
        theirs = _their_name(source, architecture, f"{name}.weight")
        rows = _in_their_order(source, architecture, name, tensor) if side == "B" else tensor
        writer.add_tensor(f"{theirs}.lora_{side.lower()}", rows.float().contiguous().numpy())
    _finish(writer)


def write_gguf_model(source: Source, origin: Path, file: Path, gguf_type: str, with_adapter: bool) -> None:
    """The whole model: settings and tokenizer of the GGUF file that its base came from, and the weights of now."""
    import gguf

    architecture = architecture_of(source)
    assert architecture is not None
    reader = gguf.GGUFReader(origin)
    writer = gguf.GGUFWriter(file, architecture)
    for name, field in reader.fields.items():
        if not name.startswith(NOT_COPIED):
            sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=sub_type)
    writer.add_file_type(FILE_TYPES[gguf_type])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    kept = {tensor.name: tensor for tensor in reader.tensors}
    for name, values in _their_tensors(source, architecture, with_adapter):
        if name in kept:  # tied embeddings are there once
            data, kind = _stored(values, gguf_type)
            writer.add_tensor(name, data, raw_dtype=kind)
            del kept[name]
    for tensor in kept.values():  # what transformers computes and llama.cpp reads: factors of the rotation
        writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    _finish(writer)


def _their_tensors(source: Source, architecture: str, with_adapter: bool) -> Iterator[tuple[str, Tensor]]:
    for name, weight in merged_weights(source, with_adapter).items():
        ordered = _in_their_order(source, architecture, name.rsplit(".", 1)[0], weight)
        yield _their_name(source, architecture, name), ordered.float().cpu().contiguous()


def _stored(values: Tensor, gguf_type: str) -> tuple[np.ndarray[Any, Any], Any]:
    """Vectors stay in float32; a matrix whose rows do not divide into blocks of 32 cannot be q8_0."""
    import gguf

    kinds = gguf.GGMLQuantizationType
    array = values.numpy()
    if array.ndim < 2 or gguf_type == "f32":
        return array, kinds.F32
    if gguf_type == "f16" or array.shape[-1] % 32:
        return array.astype(np.float16), kinds.F16
    return gguf.quants.quantize(array, kinds.Q8_0), kinds.Q8_0


def _their_name(source: Source, architecture: str, name: str) -> str:
    import gguf

    arch = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    names = gguf.get_tensor_name_map(arch, source.base.num_layers)
    theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
    if theirs is None:
        raise InputError(f"llama.cpp has no name for {name} in the family {architecture}")
    return theirs


def _in_their_order(source: Source, architecture: str, module: str, rows: Tensor) -> Tensor:
    """The rows of queries and keys where llama.cpp rotates neighbours; all others stay.  [out, ...]"""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(module.rsplit(".", 1)[-1])
    if heads is None or architecture not in ROTATES_NEIGHBOURS:
        return rows
    count = getattr(source.base.model.config, heads)
    halves = rows.reshape(count, 2, len(rows) // count // 2, *rows.shape[1:])
    return halves.transpose(1, 2).reshape(rows.shape)


def _finish(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
