"""From what a config names to what a stage trains on and what it holds out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from burnish.data import bundled, records
from burnish.data.splits import Split, refuse_overlap, split_by_prompt
from burnish.errors import InputError, all_of, nearest

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
    num_held_out: float | None = 0,
    seed: int = 0,
    fields: Mapping[str, str] | None = None,
    skip_bad: bool = False,
) -> Split[Any]:
    """Records of one kind, from one source or two.

    Bundled texts bring their own split; elsewhere `num_held_out` prompts (as `num_eval_prompts` says it) are set aside
    unless `eval_source` has them.
    """
    if source.startswith("bundled:"):
        texts = BUNDLED.get(kind, {})
        if source not in texts:
            raise InputError(f"there are no {kind} {source!r}{nearest(source, texts)}; there is {', '.join(texts)}")
        if eval_source is not None or fields:
            raise InputError(f"{source} brings its own held-out rows and columns; leave out eval_{kind} and fields")
        return texts[source]()
    load = LOADERS[kind]
    if eval_source is None:
        train = load(source, fields, skip_bad)
        return replace(split_by_prompt(train.records, num_held_out, seed), num_left_out=len(train.bad))
    train, held_out = all_of(lambda: load(source, fields, skip_bad), lambda: load(eval_source, fields, skip_bad))
    refuse_overlap(train.records, held_out.records, source, eval_source)
    if len(held_out.records) == 1:
        raise InputError(f"{eval_source} holds one row; an interval needs at least 2")
    return Split(train.records, held_out.records, len(train.bad) + len(held_out.bad))
