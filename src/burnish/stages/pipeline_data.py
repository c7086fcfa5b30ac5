"""What a pipeline's stages are trained and measured on: rows that their model can read, and that no earlier stage was
trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.console import Console

from burnish.base_setup.base_setup import load_encoder, load_tokenizer, readable
from burnish.base_setup.tokenizer_setup import PromptEncoder
from burnish.config.pipeline_config import PipelineConfig
from burnish.data import Split, prompts_of
from burnish.decoder.shared_base import shared_ending
from burnish.errors import InputError, all_of, count
from burnish.show import terminal
from burnish.stages.stage import is_merged_start


@dataclass(frozen=True)
class Data:
    """What a stage is trained and measured on, and how its model reads the prompts."""

    split: Split[Any]
    encoder: PromptEncoder


def readable_data(config: PipelineConfig, rows: dict[str, Split[Any]], console: Console) -> dict[str, Data]:
    """The rows of all stages, or all that is wrong with them. What a stage is measured on, no stage before it has
    learned.
    """

    def read(name: str) -> Data:
        own = config.stages[name]
        encoder = load_encoder(own, tokenizer)
        return Data(readable(own, encoder, rows[name]), encoder)

    with terminal.busy(console, terminal.loading(config.ppo)):
        tokenizer = load_tokenizer(config.ppo)  # of the one base that all stages share
        loaded = all_of(*(partial(read, name) for name in config.stages))
    data: dict[str, Data] = dict(zip(config.stages, loaded, strict=True))
    held_out: set[str] = set()
    for name in reversed(config.stages):
        split, left_out = _without(data[name].split, held_out)
        data[name] = Data(split, data[name].encoder)
        if left_out:
            console.print(
                f"{name}: {count(left_out, 'training row')} left out, since a later stage is measured on the prompts.",
                highlight=False,
            )
        held_out |= set(prompts_of(split.held_out))
    _check_endings(config, data)
    return data


def _check_endings(config: PipelineConfig, data: dict[str, Data]) -> None:
    """The first stage's adapter acts from what all its prompts end in, so the later stages' prompts must end in it. One
    that starts from another run's adapter acts where that does.
    """
    if config.sft is None and any(sft and not is_merged_start(sft) for sft in config.starts.values()):
        return
    if config.ppo.adapter_scope == "sequence" or data["ppo"].encoder.header:
        return
    encoded = {name: own.encoder.encode(prompts_of(own.split.everything)) for name, own in data.items()}
    first, *later = encoded
    ending = shared_ending(encoded[first])
    for name in later:
        wrong = sum(ids[len(ids) - len(ending) :] != ending for ids in encoded[name])
        if wrong:
            said = data[name].encoder.tokenizer.decode(ending)
            raise InputError(
                f"all prompts of {first} end in {said!r}, where its adapter begins to act, but {wrong} of {name} end "
                "differently; end all of them alike"
            )


def _without(data: Split[Any], held_out: set[str]) -> tuple[Split[Any], int]:
    """Without the training rows whose prompt a later stage is measured on, and how many those are."""
    train = [r for r, p in zip(data.train, prompts_of(data.train), strict=True) if p not in held_out]
    if not train:
        raise InputError(
            "every training row's prompt is held out for a later stage; lower num_eval_prompts there, or give that "
            "stage other held-out prompts (ppo.eval_prompts, or another seed)"
        )
    return Split(train, data.held_out, data.num_left_out), len(data.train) - len(train)
