"""From what a config names to what a stage trains on and what it holds out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from burnish.data import bundled, records
from burnish.data.splits import Split, refuse_overlap, split_by_prompt
from burnish.errors import InputError, all_of, nearest

if TYPE_CHECKING:
    from burnish.config import TrainConfig  # which itself knows the data's file endings

LOADERS: dict[str, Callable[..., records.Loaded[Any]]] = {
    "prompts": records.load_prompts,
    "demonstrations": records.load_demonstrations,
    "preferences": records.load_preferences,
    "scores": records.load_scores,
}
BUNDLED: dict[str, dict[str, Callable[[], Split[Any]]]] = {
    "prompts": {"bundled:tldr": bundled.bundled_tldr, "bundled:sentiment": bundled.bundled_sentiment},
    "demonstrations": {"bundled:tldr": bundled.bundled_demonstrations},
    "preferences": {"bundled:tldr": bundled.bundled_preferences},
}


def load_split(
    kind: str,
    source: str,
    eval_source: str | None = None,
    num_held_out: int = 0,
    seed: int = 0,
    fields: Mapping[str, str] | None = None,
    skip_bad: bool = False,
) -> tuple[Split[Any], int]:
    """Records of one kind, from one source or two, and how many bad rows were left out.

    Bundled texts bring their own split; elsewhere `num_held_out` prompts are set aside unless `eval_source` has them.
    """
    if source.startswith("bundled:"):
        texts = BUNDLED.get(kind, {})
        if source not in texts:
            raise InputError(f"there are no {kind} {source!r}{nearest(source, texts)}; there is {', '.join(texts)}")
        if eval_source is not None or fields:
            raise InputError(f"{source} brings its own held-out rows and columns; leave out eval_{kind} and fields")
        return texts[source](), 0
    load = LOADERS[kind]
    if eval_source is None:
        train = load(source, fields, skip_bad)
        return split_by_prompt(train.records, num_held_out, seed), len(train.bad)
    train, held_out = all_of(lambda: load(source, fields, skip_bad), lambda: load(eval_source, fields, skip_bad))
    refuse_overlap(train.records, held_out.records, source, eval_source)
    if len(held_out.records) == 1:
        raise InputError(f"{eval_source} holds one row; an interval needs at least 2")
    return Split(train.records, held_out.records), len(train.bad) + len(held_out.bad)


def load_prompts_of(config: TrainConfig) -> tuple[Split[str], int]:
    """Training and held-out prompts of a PPO run, and how many rows were left out."""
    return load_split(
        "prompts",
        config.prompts,
        config.eval_prompts,
        config.num_eval_prompts,
        config.seed,
        config.fields,
        config.skip_bad,
    )
