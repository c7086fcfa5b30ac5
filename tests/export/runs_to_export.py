"""Short runs of a tiny model whose adapters matter."""

from io import StringIO

import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

from burnish.config import TrainConfig
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
    weights = load_file(run / "adapters/policy/adapter_model.safetensors")
    generator = torch.Generator().manual_seed(1)
    moved = {k: v + by * torch.randn(v.shape, generator=generator) for k, v in weights.items()}
    save_file(moved, run / "adapters/policy/adapter_model.safetensors", metadata={"format": "pt"})
    return run
