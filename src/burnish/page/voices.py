"""What judges have said of pairs: the voices of each, how far they agree, how often each side was chosen."""

from __future__ import annotations

from burnish.evaluation import agreement
from burnish.evaluation.said import Row, sides_of
from burnish.page.candidates import Pair, key_of
from burnish.page.view import Data


def pair_key(row: Row) -> str | None:
    both = sides_of(row)
    return None if both is None else key_of(row["prompt"], *sorted(row[side] for side in both))


def chosen(rows: list[Row], pairs: dict[str, Pair], again: bool) -> dict[str, int]:
    """The voices of a judge by pair: those of the first time, or of the second."""
    found = {}
    for row in rows:
        key = pair_key(row)
        if key in pairs and row["better"] != "skip" and bool(row.get("again")) == again:
            found[key] = _voice(row, pairs[key])
    return found


def _voice(row: Row, pair: Pair) -> int:
    """1 where the pair's first answer was chosen."""
    if row["better"] == "tie":
        return 0
    return 1 if row[row["better"]] == pair.answers[0] else -1


def results(pairs: dict[str, Pair], rows: list[Row]) -> Data:
    """What came of it: how often each side was chosen, and how far everybody agrees."""
    margins = {key: pair.margin for key, pair in pairs.items() if pair.margin is not None}
    names = list(dict.fromkeys(row.get("judge", "") for row in rows))
    of = {name: [row for row in rows if row.get("judge", "") == name] for name in names}
    voices = {name: chosen(own, pairs, False) for name, own in of.items()}
    judges = [
        {
            "judge": name,
            "choices": len(voices[name]),
            "ties": sum(voice == 0 for voice in voices[name].values()),
            "scores": sum("score" in row for row in of[name]),
            "corrections": sum("completion" in row for row in of[name]),
            "with_oneself": agreement.with_oneself(voices[name], chosen(of[name], pairs, True)),
            "with_the_reward": agreement.with_scores(voices[name], margins),
        }
        for name in names
    ]
    return {"judges": judges, "agreement": agreement.between(voices), "tally": _tally(pairs, rows)}


def _tally(pairs: dict[str, Pair], rows: list[Row]) -> dict[str, int]:
    """How often each was chosen, by where it came from."""
    tally: dict[str, int] = {}
    for row in rows:
        pair, both = pairs.get(pair_key(row) or ""), sides_of(row)
        if pair is None or both is None or row.get("again") or row["better"] == "skip":
            continue
        origins = dict(zip(both, row.get("from") or both, strict=True))
        better = str(origins.get(row["better"], row["better"]))
        tally[better] = tally.get(better, 0) + 1
    return tally
