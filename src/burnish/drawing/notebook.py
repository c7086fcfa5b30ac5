"""What a result looks like in a notebook: HTML of its own that stands by itself, in any theme, without scripts.

Text takes the theme's own colour; tints and lines are of middle lightness, to be seen on white and on black.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from burnish.drawing.comparison import comparison, who_won
from burnish.drawing.curves import charts_of
from burnish.drawing.tokens import COLUMN_NAMES, Token, shades_of, tokens_of
from burnish.errors import count
from burnish.text import hider, visible

if TYPE_CHECKING:
    from jinja2 import Template

MOST_RESPONSES, MOST_TOKENS, MOST_CHARTS = 4, 80, 6  # a notebook keeps what it shows


@dataclass(frozen=True)
class Response:
    heading: str
    tokens: list[Token]

    @property
    def table(self) -> list[list[str]]:
        return [[token.text, *(number for _, number in token.numbers)] for token in self.tokens]


def html_of_pairs(title: str, samples: Sequence[dict[str, Any]], total: int) -> str:
    """Responses token by token. `samples` are like lines of samples.jsonl, the first of `total`, with a
    `heading` and the `mean_advantage` that an update subtracts."""
    return _rendered(title, **_token_view(samples, total))


def html_of_verdict(verdict: dict[str, Any]) -> str:
    """Of verdict.json, or of what it is made of."""
    return _rendered("Verdict", **_judged(verdict))


def html_of_run(
    title: str, lead: str, stage: str, rows: list[dict[str, Any]], verdict: dict[str, Any] | None = None
) -> str:
    """A run: its verdict, once it has one, and its curves; `rows` are the lines of metrics.jsonl."""
    judged = _judged(verdict) if verdict else {}
    return _rendered(title, lead, charts=charts_of(rows, stage)[:MOST_CHARTS], **judged)


def html_of_trainer(
    title: str,
    settings: dict[str, Any],
    rows: list[dict[str, Any]],
    samples: Sequence[dict[str, Any]],
    total: int,
) -> str:
    """A trainer: what is set, its curves so far, and responses of its last step."""
    tables = [(("setting", "value"), [(key, str(value)) for key, value in settings.items()])]
    charts = charts_of(rows)[:MOST_CHARTS]
    return _rendered(title, tables=tables, charts=charts, **_token_view(samples, total))


def _judged(verdict: dict[str, Any]) -> dict[str, Any]:
    measured = comparison(verdict["start"], verdict["tuned"]) if "start" in verdict else []
    table = (("on held-out prompts", "start", "tuned"), [*measured, *who_won(verdict)])
    return {"verdict": verdict, "tables": [table]}


def _token_view(samples: Sequence[dict[str, Any]], total: int) -> dict[str, Any]:
    if not samples:
        return {}
    samples = hider()([_cut(sample) for sample in samples[:MOST_RESPONSES]])
    shades = shades_of(set(samples[0]) & {*COLUMN_NAMES})
    told: dict[str, Any] = {"by": None}
    if shades:
        by, texts = next(iter(shades.items()))
        meaning, above, below = texts
        if by == "advantage":
            meaning = f"{meaning.partition(';')[0]}, less the mean of all tokens"
        told = {"by": by, "label": COLUMN_NAMES[by], "meaning": meaning, "above": above, "below": below}
    responses = [Response(sample["heading"], tokens_of(sample, sample["mean_advantage"])) for sample in samples]
    more = total - len(responses)
    return told | {"responses": responses, "rest": f"and {count(more, 'response')} more" if more > 0 else ""}


def _cut(sample: dict[str, Any]) -> dict[str, Any]:
    """Its first tokens."""
    length = len(sample["tokens"])
    if length <= MOST_TOKENS:
        return sample
    cut = {key: own[:MOST_TOKENS] if isinstance(own, list) else own for key, own in sample.items()}
    return cut | {"heading": f"{sample['heading']}; the first {MOST_TOKENS} of {length} tokens"}


def _rendered(title: str, lead: str = "", **parts: Any) -> str:
    nothing: dict[str, Any] = {"verdict": None, "tables": [], "charts": [], "responses": [], "rest": "", "by": None}
    # Secrets are taken out before: escaped for HTML, they would not be recognised any more.
    return _template().render(hider()(nothing | {"title": title, "lead": lead} | parts))


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined  # what only looks at runs starts without it

    environment = Environment(
        autoescape=True,
        finalize=lambda value: visible(value) if type(value) is str else value,  # markup is escaped already
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.from_string((files("burnish.drawing") / "notebook.html").read_text(encoding="utf-8"))
