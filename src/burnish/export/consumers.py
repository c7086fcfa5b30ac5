"""Those who load an export: peft and transformers here, llama.cpp in a process of its own."""

from __future__ import annotations

import json
import math
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, GenerationConfig

from burnish.base_setup.base_setup import load_model
from burnish.errors import ResourceError, WrongExportError, count
from burnish.export import llama_cpp
from burnish.export.adapter import START
from burnish.export.source import Answer, Source
from burnish.system.modules import OWN_PYTHON

LONGEST = 1800  # seconds for llama.cpp to load two files and to answer
NO_LLAMA_CPP = "llama.cpp is not installed here; get it with: pip install 'burnish[gguf]'"


def from_peft(source: Source, folder: Path) -> list[Answer]:
    """The base, loaded afresh, with what is in `folder` on it, as a user of peft would: first the LoRA that training
    began with, if there is one.
    """
    model: Any = load_model(source.config)
    if source.base.identity.merged is not None:
        model = PeftModel.from_pretrained(model, str(folder / START)).merge_and_unload()
    return _generated(source, PeftModel.from_pretrained(model, str(folder)).eval())


def from_transformers(source: Source, folder: Path) -> list[Answer]:
    """A whole model, read from its folder."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", local_files_only=True, use_safetensors=True)
    return _generated(source, model.to(source.base.device).eval())


@torch.no_grad()
def _generated(source: Source, model: Any) -> list[Answer]:
    # Of the model's own settings nothing: a penalty on repetition would change the most likely tokens too.
    model.generation_config = GenerationConfig(
        do_sample=False,
        max_new_tokens=source.most_tokens,
        eos_token_id=source.base.stop_ids,
        pad_token_id=source.base.stop_id,
        return_dict_in_generate=True,
        output_logits=True,
    )
    answers = []
    for ids in source.encoded:  # one by one: nothing is padded
        given = torch.tensor([ids], device=source.base.device)
        said = model.generate(input_ids=given, attention_mask=torch.ones_like(given))
        tokens = said.sequences[0, len(ids) :]
        logprobs = torch.stack(said.logits)[:, 0].float().log_softmax(-1)  # [T, V]
        answers.append(Answer(tokens.tolist(), logprobs.gather(1, tokens[:, None]).squeeze(1).tolist()))
    return answers


def has_llama_cpp() -> bool:
    return find_spec("xllamacpp") is not None


def from_llama_cpp(source: Source, model: Path, adapter: Path | None = None) -> list[Answer]:
    """A GGUF file, with the adapter of another. A file that llama.cpp cannot digest ends its process, not this one."""
    asked = {
        "model": str(model),
        "adapter": None if adapter is None else str(adapter),
        "prompts": source.encoded,
        "max_new_tokens": source.most_tokens,
        "stop_ids": source.base.stop_ids,
    }
    command = [*OWN_PYTHON, "-m", llama_cpp.__name__]
    try:
        ended = subprocess.run(
            command,
            input=json.dumps(asked),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=LONGEST,
        )
    except subprocess.TimeoutExpired:
        raise ResourceError(
            f"llama.cpp has not answered {count(len(source.encoded), 'prompt')} within {LONGEST} seconds, and the "
            "export was not kept; give fewer or shorter ones (--prompt), or use a faster machine"
        ) from None
    said = [line for line in ended.stdout.splitlines() if line.startswith(llama_cpp.ANSWERS)]
    if ended.returncode or not said:
        raise WrongExportError(f"llama.cpp cannot use this export, and it was not kept: {_reason(ended.stderr)}")
    rows = json.loads(said[-1].removeprefix(llama_cpp.ANSWERS))
    return [Answer(row["tokens"], [math.nan if p is None else p for p in row["logprobs"]]) for row in rows]


def _reason(log: str) -> str:
    """The last line that tells of an error, or the last one at all."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    told = [line for line in lines if re.search(r"error|fail|\bE\b", line, re.IGNORECASE)]
    return (told or lines or ["it says nothing"])[-1][:300]
