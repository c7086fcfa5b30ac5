"""Short runs of a tiny model whose adapters matter, and how the tests export them."""

import re
import shutil
from io import StringIO

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

from burnish.config import TrainConfig
from burnish.errors import InputError
from burnish.stages.export import Wish, export
from burnish.stages.stage import STAGES


def trained(place, name, by=0.2, **changes):
    """A short run, after which the adapter is made to matter: its weights are moved by random numbers."""
    torch.set_num_threads(1)
    settings = {
        "model_name": str(place / "base.gguf"),
        "prompts": str(place / "prompts.jsonl"),
        "run_dir": str(place / "runs"),
        "run_name": name,
        "reward": "repetition",
        "lora_r": 4,
        "lora_alpha": 8,
        "batch_size": 8,
        "steps": 2,
        "epochs": 1,
        "best_of": 1,
        "num_eval_prompts": 8,
        "max_new_tokens": 8,
        "max_kl": None,
        "chat_template": True,
        "system_prompt": "Be brief.",
    }
    STAGES["ppo"].run(TrainConfig(**settings | changes), Console(file=StringIO()))
    run = place / "runs" / name
    move(run / "adapters/policy", by)
    return run


def move(adapter, by=0.2):
    """By random numbers, in its file."""
    weights = load_file(adapter / "adapter_model.safetensors")
    generator = torch.Generator().manual_seed(1)
    moved = {k: v + by * torch.randn(v.shape, generator=generator) for k, v in weights.items()}
    save_file(moved, adapter / "adapter_model.safetensors", metadata={"format": "pt"})


def made(run, form, **more):
    return export(Console(file=StringIO(), width=200), Wish(str(run), form, **more))


def told_by(call):
    with pytest.raises(InputError) as error:
        call()
    return str(error.value)


def loaded_as_the_card_says(folder, place, monkeypatch):
    """The card's code is run in the folder of the export, with the base where the card wants it."""
    card = (folder / "README.md").read_text()
    assert "Put the base model, `base.gguf`, into a folder `base` here first." in card
    (folder / "base").mkdir()
    shutil.copy(place / "base.gguf", folder / "base")
    monkeypatch.chdir(folder)
    known = {}
    exec(re.search(r"```python\n(.*?)```", card, re.DOTALL)[1], known)
    return known
