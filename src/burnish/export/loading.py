"""The lines that load an export, for its card: they work as they stand, in the folder of the export."""

from __future__ import annotations

from typing import Any

from burnish.config.model_config import EMBEDDED_NAME
from burnish.export.adapter import START, public_name
from burnish.export.source import Source

MESSAGE = "Your prompt, as in training."


def how_to_load(source: Source, facts: dict[str, Any]) -> str:
    """Markdown with the code for exactly this form."""
    form = facts["form"]
    if form in ("adapter", "lora"):
        return _python(_base_lines(source) + _adapter_lines(source), source) + _notes(source)
    if form == "merged":
        lines = [
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            'tokenizer = AutoTokenizer.from_pretrained(".")',
            'model = AutoModelForCausalLM.from_pretrained(".")',
        ]
        return _python(lines, source)
    if form == "ollama":
        return "```bash\nollama create tuned -f Modelfile\nollama run tuned\n```\n"
    return _shell(source, facts)


def _base_lines(source: Source) -> list[str]:
    lines = ["from peft import PeftModel", "from transformers import AutoModelForCausalLM, AutoTokenizer", ""]
    if source.config.model_name == EMBEDDED_NAME:
        place = "str(embedded_model_folder())"
        lines.insert(0, "from burnish.base_setup.embedded import embedded_model_folder  # the base that comes with it")
    else:
        place = f'"{public_name(source.config)}"'
    revision = f', revision="{source.config.revision}"' if source.config.revision else ""
    return [
        *lines,
        f"base = AutoModelForCausalLM.from_pretrained({place}{revision})",
        f"tokenizer = AutoTokenizer.from_pretrained({place}{revision})",
    ]


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
    return f", do_sample=True, temperature={drawn.temperature}, top_k={drawn.top_k}, top_p={drawn.top_p}"


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
        return f"```bash\nllama-server -m {files['model']}\n```\n"
    lines = f"```bash\nllama-server -m BASE.gguf --lora {files['adapter']}\n```\n"
    lines += f"\nBASE.gguf is the base model, {public_name(source.config)}, as a GGUF file.\n"
    if source.scope == "response":
        lines += (
            "\nThis is an activated LoRA. llama.cpp's server finds its invocation tokens in the prompt and lets the "
            "adapter act from there on. It begins one token before those that the file names, so the file names them "
            "without the first.\n"
        )
    return lines
