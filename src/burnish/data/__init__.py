"""Data in: prompts, demonstrations, preferences and human scores, from files, datasets or the bundled texts."""

from burnish.data.bundled import bundled_demonstrations, bundled_preferences, bundled_sentiment, bundled_tldr
from burnish.data.cells import problem_with
from burnish.data.records import (
    Candidates,
    Demonstration,
    Loaded,
    Preference,
    Prompt,
    Scored,
    load_candidates,
    load_demonstrations,
    load_preferences,
    load_prompts,
    load_scores,
    messages_of,
    place_of,
    places_of,
    prompts_of,
    reference_of,
)
from burnish.data.sources import load_split
from burnish.data.splits import Split, refuse_overlap, split_by_prompt
from burnish.data.summary import data_summary
