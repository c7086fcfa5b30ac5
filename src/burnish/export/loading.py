"""The lines that load an export, for its card: they work as they stand, in the folder of the export, once the base is
there.
"""

from __future__ import annotations

import json
from typing import Any

from burnish.base_setup.gguf import is_gguf
from burnish.base_setup.sources import is_on_the_hub
from burnish.config.model_config import EMBEDDED_NAME
from burnish.export.adapter import START, public_name
from burnish.export.conversion import why_no_model
from burnish.export.merged import is_quantized
from burnish.export.ollama import BASE
from burnish.export.source import Source

MESSAGE = "Your prompt, as in training."
FEWER_BITS = "Q4_K_M"  # llama-quantize's name for about five bits a weight, its usual choice
GGUF_PLACE = "base"  # beside the card: in its own folder transformers would take the adapter for the base


def how_to_load(source: Source, facts: dict[str, Any]) -> str:
    """Markdown with the code for exactly this form."""
    form = facts["form"]
    if form in ("adapter", "lora"):
        return _before(source) + _python(_base_lines(source) + _adapter_lines(source), source) + _notes(source)
    if form == "merged":
        lines = [
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            'tokenizer = AutoTokenizer.from_pretrained(".")',
            'model = AutoModelForCausalLM.from_pretrained(".")',
        ]
        return _python(lines, source)
    if form == "ollama":
        commands = "```bash\nollama create tuned -f Modelfile\nollama run tuned\n```\n"
        return commands + _in_fewer_bits(BASE, facts["type"], "Put its name into the Modelfile first: `FROM ./{}`.")
    return _shell(source, facts)


def _before(source: Source) -> str:
    """What the reader has to get: a base that lay on the disk has no address."""
    config = source.config
    if config.model_name == EMBEDDED_NAME or is_on_the_hub(config):
        return ""
    name = public_name(config)
    where = f"into a folder `{GGUF_PLACE}` here" if is_gguf(name) else "here"
    return f"Put the base model, `{name}`, {where} first.\n\n"


def _base_lines(source: Source) -> list[str]:
    imports, place = _base_place(source)
    kinds, options = _base_options(source)
    revision = f', revision="{source.config.revision}"' if source.config.revision else ""
    return [
        *imports,
        "from peft import PeftModel",
        *(["from torchao.quantization import Int8WeightOnlyConfig"] if source.config.quantize == "int8" else []),
        f"from transformers import {', '.join(sorted(['AutoModelForCausalLM', 'AutoTokenizer', *kinds]))}",
        "",
        f"base = AutoModelForCausalLM.from_pretrained({place}{revision}{options})",
        f"tokenizer = AutoTokenizer.from_pretrained({place}{revision})",
    ]


def _base_place(source: Source) -> tuple[list[str], str]:
    """What has to be imported to say where the base is, and the words that say it."""
    name = public_name(source.config)
    if source.config.model_name == EMBEDDED_NAME:
        own = "from burnish.base_setup.embedded import embedded_model_folder  # the base that comes with it"
        return [own], "str(embedded_model_folder())"
    if not is_gguf(name):
        return [], json.dumps(name)
    if source.config.quantize is None:
        return [], f"{json.dumps(GGUF_PLACE)}, gguf_file={json.dumps(name)}"
    own = "from burnish.base_setup.gguf import gguf_folder  # transformers cannot read GGUF and quantize it at once"
    return ["from pathlib import Path", "", own], f"str(gguf_folder(Path({json.dumps(f'{GGUF_PLACE}/{name}')})))"


def _base_options(source: Source) -> tuple[list[str], str]:
    """How the base was quantized, if it was: what transformers calls it, and the arguments."""
    dtype = str(source.base.model.dtype).removeprefix("torch.")
    if source.config.quantize == "int8":
        return ["TorchAoConfig"], f', dtype="{dtype}", quantization_config=TorchAoConfig(Int8WeightOnlyConfig())'
    if source.config.quantize == "nf4":
        how = f'BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype="{dtype}")'
        return ["BitsAndBytesConfig"], f', dtype="{dtype}", quantization_config={how}'
    return [], ""


def _adapter_lines(source: Source) -> list[str]:
    lines = []
    if source.base.identity.merged is not None:
        lines.append(
            f'base = PeftModel.from_pretrained(base, "{START}").merge_and_unload()  # what training began with'
        )
    return [*lines, 'model = PeftModel.from_pretrained(base, ".")']


def _python(lines: list[str], source: Source) -> str:
    if source.config.chat_template:
        system = source.config.system_prompt
        messages = [{"role": "system", "content": system}] if system is not None else []
        messages.append({"role": "user", "content": MESSAGE})
        lines = [
            *lines,
            "messages = [",
            *(f"    {message!r}," for message in messages),
            "]",
            "inputs = tokenizer.apply_chat_template(",
            '    messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"',
            ")",
        ]
    else:
        ending = source.base.tokenizer.decode(source.base.invocation) if source.scope == "response" else ""
        lines = [*lines, f'inputs = tokenizer({f"{MESSAGE[:-1]}{ending}"!r}, return_tensors="pt")']
    lines += [
        f"answer = model.generate(**inputs, max_new_tokens={source.config.max_new_tokens}{_sampling(source)})",
        'print(tokenizer.decode(answer[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))',
    ]
    return "```python\n" + "\n".join(lines) + "\n```\n"


def _sampling(source: Source) -> str:
    drawn = source.drawn_with
    if drawn is None:
        return ", do_sample=False"
    settings = f", do_sample=True, temperature={drawn.temperature}, top_k={drawn.top_k}, top_p={drawn.top_p}"
    penalty = source.base.model.generation_config.repetition_penalty
    return settings if penalty in (None, 1.0) else f"{settings}, repetition_penalty=1.0"  # as in training


def _notes(source: Source) -> str:
    if source.scope != "response":
        return "\n`model.merge_and_unload()` folds it into the base.\n"
    ending = source.base.tokenizer.decode(source.base.invocation)
    return (
        f"\nThis is an activated LoRA: it acts from the prompt's last tokens on ({ending!r}), so every prompt has to "
        "end in them, and it must not be merged into the base. `generate` finds them; in a single forward pass over a "
        "prompt and its answer, give `alora_offsets` if the answer may contain them too.\n"
    )


def _shell(source: Source, facts: dict[str, Any]) -> str:
    files = facts["files_named"]
    if "model" in files:
        fewer = _in_fewer_bits(files["model"], facts["type"], "Serve `{}` instead.")
        return f"```bash\nllama-server -m {files['model']}\n```\n{fewer}"
    lines = f"```bash\nllama-server -m {files.get('base', 'BASE.gguf')} --lora {files['adapter']}\n```\n"
    if "base" in files:
        lines += _in_fewer_bits(files["base"], facts["type"], "Serve `{}` instead, with the same adapter.")
    else:
        lines += f"\nBASE.gguf is {_base_as_gguf(source)}\n"
    if source.scope == "response":
        lines += (
            "\nThis is an activated LoRA. llama.cpp's server finds its invocation tokens in the prompt and lets the "
            "adapter act from there on. It begins one token before those that the file names, so the file names them "
            "without the first.\n"
        )
    return lines


def _base_as_gguf(source: Source) -> str:
    """What the reader has to get, and how."""
    name = f"the base model, {public_name(source.config)}"
    if source.base.identity.merged is not None:
        name += ", with the LoRA folded into it that training began with"
    if is_quantized(source) or why_no_model(source) is not None:
        return f"{name}, as a GGUF file."
    return f"{name}, as a GGUF file; `burnish export RUN --to gguf --with-base` puts it beside the adapter."


def _in_fewer_bits(file: str, gguf_type: str, then: str) -> str:
    """burnish writes nothing smaller than q8_0; llama.cpp's own tool does, from numbers that were not rounded yet."""
    if gguf_type == "q8_0":
        return (
            "\nTo get a smaller file, export again with `--type f16` and give that to llama.cpp's `llama-quantize`; "
            "these weights are rounded already.\n"
        )
    smaller = f"{file.removesuffix('.gguf').removesuffix(f'-{gguf_type}')}-{FEWER_BITS}.gguf"
    return (
        f"\nA smaller file is written by a tool of llama.cpp's own:\n\n"
        f"```bash\nllama-quantize {file} {smaller} {FEWER_BITS}\n```\n"
        f"\n{then.format(smaller)} Its answers were compared with nothing.\n"
    )
