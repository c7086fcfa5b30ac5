"""A Modelfile for ollama: base and adapter as GGUF files, the chat template in Go's words, the sampling settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from burnish.errors import InputError
from burnish.export.source import Source

BASE, ADAPTER = "base.gguf", "adapter.gguf"
CHATML = """{{- range .Messages }}<|im_start|>{{ .Role }}
{{ .Content }}<|im_end|>
{{ end }}<|im_start|>assistant
"""
NO_TEMPLATE = "{{ .Prompt }}"
TURNS = [
    {"role": "system", "content": "S s."},
    {"role": "user", "content": "U u?"},
    {"role": "assistant", "content": "A a!"},
    {"role": "user", "content": "V v?"},
]


def modelfile(source: Source) -> str:
    """What `ollama create` reads, in the folder that holds both files."""
    template, system = _template(source)
    lines = [f"FROM ./{BASE}", f"ADAPTER ./{ADAPTER}", f'TEMPLATE """{template}"""']
    if system:
        if '"""' in system:
            raise InputError('the system prompt contains """, which a Modelfile cannot hold; leave it out there')
        lines.append(f'SYSTEM """{system}"""')
    return "\n".join([*lines, *(f"PARAMETER {name} {value}" for name, value in _parameters(source))]) + "\n"


def _parameters(source: Source) -> list[tuple[str, Any]]:
    drawn, tokenizer = source.drawn_with, source.base.tokenizer
    sampled: list[tuple[str, Any]] = [("temperature", 0)]
    if drawn is not None:
        sampled = [("temperature", drawn.temperature), ("top_k", drawn.top_k), ("top_p", drawn.top_p), ("min_p", 0)]
    sampled.append(("repeat_penalty", 1))  # ollama's own default would change the answers
    stops = [tokenizer.convert_ids_to_tokens(token) for token in source.base.stop_ids]
    return [*sampled, ("num_predict", source.config.max_new_tokens), *(("stop", json.dumps(stop)) for stop in stops)]


def _template(source: Source) -> tuple[str, str | None]:
    """In Go's language, and the system message; only for prompts as they stand and for ChatML."""
    config, tokenizer = source.config, source.base.tokenizer
    if not config.chat_template:
        return NO_TEMPLATE, None

    def said(messages: list[dict[str, str]]) -> str:
        return str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))

    if said(TURNS) != _chatml(TURNS):
        raise InputError(
            "this model's chat template is none that burnish can put into ollama's language (it knows ChatML). Write "
            "its TEMPLATE yourself: burnish export RUN --to gguf gives the adapter for it, and "
            "https://docs.ollama.com/modelfile tells how"
        )
    if config.system_prompt is not None:
        return CHATML, config.system_prompt
    alone = said(TURNS[1:2])  # a template may bring a system message of its own
    own = alone.removesuffix(_chatml(TURNS[1:2])).removeprefix("<|im_start|>system\n").removesuffix("<|im_end|>\n")
    return CHATML, own or None


def _chatml(messages: list[dict[str, str]]) -> str:
    turns = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    return f"{turns}<|im_start|>assistant\n"


def write_modelfile(source: Source, folder: Path) -> None:
    (folder / "Modelfile").write_text(modelfile(source), encoding="utf-8")
