"""One response of a table: every token with all that is known of it. As a file, a notebook and a data frame have it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from burnish.drawing.notebook import MOST_RESPONSES, html_of_pairs
from burnish.errors import InputError, count
from burnish.sa_pairs.columns import COLUMNS, row_key_of
from burnish.text import without_secrets

if TYPE_CHECKING:
    from burnish.sa_pairs.table import SAPairs

Decode = Callable[[list[int]], str]


def columns_of_response(pairs: SAPairs, number: int, decode: Decode | None) -> dict[str, Any]:
    """By the names of a row: a number for each token, and the `tokens` as text."""
    length = int(pairs.lengths[number])
    columns = {c.row_key: pairs[n][number, :length].tolist() for n, c in COLUMNS.items() if pairs.has(n)}
    tokens = texts_of(columns.get("action", [0] * length), decode)
    if without_secrets("".join(tokens)) != "".join(tokens):  # a secret in pieces would not be recognised
        tokens, columns["action"] = ["[hidden]"] * length, [0] * length
    return {"tokens": tokens, **columns}


def texts_of(ids: Sequence[int], decode: Decode | None) -> list[str]:
    """Each token as text; its number, where nobody knows how to read it."""
    return [f"[{i}]" if decode is None else decode([i]) for i in ids]


def html_of(pairs: SAPairs) -> str:
    """As a notebook shows it."""
    return html_of_pairs(repr(pairs), first_responses(pairs), len(pairs.mask))


def first_responses(pairs: SAPairs, most: int = MOST_RESPONSES) -> list[dict[str, Any]]:
    """As many as a notebook shows."""
    mean = float(pairs["advantage"][pairs.mask].mean()) if pairs.has("advantage") else 0.0
    samples = []
    for row in range(min(most, len(pairs.mask))):
        length = int(pairs.lengths[row])
        heading = f"response {pairs.numbers[row]}, {count(length, 'token')}"
        samples.append({"heading": heading, "mean_advantage": mean} | columns_of_response(pairs, row, pairs.decode))
    return [sample for sample in samples if sample["tokens"]]


def data_frame(pairs: SAPairs) -> Any:
    """A line for each token, with everything but its state."""
    try:
        import pandas
    except ImportError:
        raise InputError("to_pandas needs pandas, which is not installed: pip install 'burnish[pandas]'") from None
    places = pairs.mask.nonzero()
    frame: dict[str, Any] = {"prompt_id": places[:, 0].tolist(), "position": places[:, 1].tolist()}
    if pairs.prompt_numbers is not None:
        frame["group"] = [pairs.prompt_numbers[row] for row in frame["prompt_id"]]
    if pairs.has("action"):
        frame["token"] = texts_of(pairs["action"][pairs.mask].tolist(), pairs.decode)
    frame |= {row_key_of(name): column[pairs.mask].tolist() for name, column in pairs.columns.items()}
    if pairs.finished is not None:
        frame["finished"] = pairs.finished[places[:, 0]].tolist()
    return pandas.DataFrame(frame)
