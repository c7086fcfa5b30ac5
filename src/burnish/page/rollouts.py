"""Every kept response of every step: found by step, reward and words, those to one prompt side by side."""

from __future__ import annotations

import math
from typing import Any

from burnish.page.kept_responses import KeptResponses
from burnish.page.view import Asked, Data, View

BINS = 24
GROUPS_SHOWN = 20
SORTS = ("newest", "oldest", "best", "worst", "widest")


def data(asked: Asked) -> Data:
    """Path: `run`. Query: `step`, `prompt` (its number), `low` and `high` (reward), `text`, `sort`, `page`."""
    name = asked.path["run"]
    kept = asked.library.growing(name, KeptResponses)
    step, prompt = _whole(asked, "step"), _whole(asked, "prompt")
    low, high, text = asked.number("low"), asked.number("high"), asked.one("text")[:200]
    sort = asked.choice("sort", SORTS)
    there = [
        n
        for n in range(len(kept))
        if step in (None, kept.steps[n]) and prompt in (None, kept.prompt_of[n]) and math.isfinite(kept.scores[n])
    ]
    chosen = [n for n in there if (low is None or kept.scores[n] >= low) and (high is None or kept.scores[n] <= high)]
    if text.strip():
        chosen = _with_words(kept, chosen, text)
    groups = _groups(kept, chosen, sort)
    pages = max(1, math.ceil(len(groups) / GROUPS_SHOWN))
    page = min(max(1, _whole(asked, "page") or 1), pages)
    shown = groups[GROUPS_SHOWN * (page - 1) : GROUPS_SHOWN * page]
    return asked.library.summary(name) | {
        "kept": len(kept),
        "found": len(chosen),
        "groups_found": len(groups),
        "histogram": histogram([kept.scores[n] for n in there], low, high),
        "groups": [_group(kept, group, set(chosen)) for group in shown],
        "first_step": min(kept.steps, default=None),
        "last_step": max(kept.steps, default=None),
        "page": page,
        "pages": pages,
        "query": {"step": step, "prompt": prompt, "low": low, "high": high, "text": text, "sort": sort},
    }


def histogram(scores: list[float], low: float | None = None, high: float | None = None) -> list[dict[str, Any]]:
    """Equal bins over all scores; `is_chosen` of those that a range from `low` to `high` touches."""
    if not scores:
        return []
    least, most = min(scores), max(scores)
    if least == most:
        edges = [least, most]
    else:
        edges = [least + (most - least) * k / BINS for k in range(BINS)] + [most]
    counts = [0] * (len(edges) - 1)
    for score in scores:
        place = int(BINS * (score - least) / (most - least)) if most > least else 0
        counts[min(place, len(counts) - 1)] += 1
    return [
        {
            "low": first,
            "high": last,
            "count": count,
            "is_chosen": (low is None or last > low or last == low == most) and (high is None or first < high),
        }
        for first, last, count in zip(edges, edges[1:], counts, strict=False)
    ]


def _whole(asked: Asked, key: str) -> int | None:
    text = asked.one(key)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _with_words(kept: KeptResponses, numbers: list[int], text: str) -> list[int]:
    """Those whose prompt or response has all words, in any case of letters."""
    words = text.lower().split()
    found = []
    for row in kept.headings(numbers):
        said = f"{row['prompt']}\n{row['response']}".lower()
        if all(word in said for word in words):
            found.append(row["number"])
    return found


def _groups(kept: KeptResponses, chosen: list[int], sort: str) -> list[list[int]]:
    """All responses to one prompt in one step, where one of them is chosen."""
    wanted = {(kept.steps[n], kept.prompt_of[n]): kept.scores[n] for n in chosen}
    groups: dict[tuple[int, int], list[int]] = {key: [] for key in wanted}
    for n in range(len(kept)):
        if (own := groups.get((kept.steps[n], kept.prompt_of[n]))) is not None:
            own.append(n)
    is_chosen = set(chosen)

    def order(group: list[int]) -> tuple[float, int]:
        scores = [kept.scores[n] for n in group if n in is_chosen]
        by = {
            "newest": -kept.steps[group[0]],
            "oldest": kept.steps[group[0]],
            "best": -max(scores),
            "worst": min(scores),
            "widest": min(scores) - max(scores),
        }
        return by[sort], group[0]

    return sorted(groups.values(), key=order)


def _group(kept: KeptResponses, numbers: list[int], chosen: set[int]) -> dict[str, Any]:
    rows = list(kept.headings(numbers))
    told = ("number", "response", "score", "reward_parts")
    return {
        "step": rows[0]["step"],
        "prompt": rows[0]["prompt"],
        "prompt_number": rows[0]["prompt_number"],
        "responses": [{key: row[key] for key in told} | {"is_chosen": row["number"] in chosen} for row in rows],
    }


VIEW = View("rollouts", "/rollouts/{run:path}", data, "Rollouts")
