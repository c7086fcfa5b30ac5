"""Speed must not change what is learned: the losses of fixed seeds, recorded before anything was made fast.

Recorded by `python tests/test_same_losses.py`, at the last commit before the first optimisation. Record again only
when the algorithm itself is meant to change: those of `kept` settings were recorded again when the reference began to
count with its whole vocabulary. Tokens are drawn by torch.multinomial here, as they were then: burnish's
own draw takes other random numbers, and what is compared is what the same tokens teach.
"""

import json
from pathlib import Path

import pytest
import torch

from burnish.rollout import sampling
from tiny import PROMPTS, tiny_trainer

RECORDED = Path(__file__).with_name("recorded_losses.json")
SETTINGS = {
    f"{scope}-{layers}-{sampling}": {
        "adapter_scope": scope,
        "lora_layers": layers,
        "top_k": 20 if sampling == "kept" else 0,
        "top_p": 0.9 if sampling == "kept" else 1.0,
        "temperature": 0.8,
        "mini_batch_size": 4,
        "micro_batch_size": 2,
    }
    for scope in ("response", "sequence")
    for layers in ("all", 1)
    for sampling in ("kept", "whole")
}


def share_of_high_letters(prompts, responses):
    """Differs from response to response: equal rewards would leave nothing to whiten but rounding errors."""
    return [sum(ord(c) % 64 for c in r) / (32 * max(len(r), 1)) for r in responses]


def losses_of(settings):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "draw", lambda p, generator: torch.multinomial(p, 1, generator=generator))
        return _losses_of(settings)


def _losses_of(settings):
    trainer = tiny_trainer(share_of_high_letters, layers=3, **settings)
    return [[r["value_loss"], r["policy_loss"]] for r in (trainer.ppo_step(PROMPTS) for _ in range(3))]


@pytest.mark.parametrize("name", SETTINGS)
def test_losses_are_those_of_the_slow_code(name):
    recorded = json.loads(RECORDED.read_text())[name]
    for step, recorded_step in zip(losses_of(SETTINGS[name]), recorded, strict=True):
        assert step == pytest.approx(recorded_step, abs=1e-5)


if __name__ == "__main__":
    RECORDED.write_text(json.dumps({name: losses_of(s) for name, s in SETTINGS.items()}, indent=1) + "\n")
