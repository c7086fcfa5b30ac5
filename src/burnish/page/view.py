"""What a view of the page is: an address, what is to be seen there, and a template that shows just that.

To add one, write a module with a `View` and a template of its name, and put it into `VIEWS` of app.py. The same data is
then served as HTML at its address and as JSON at /api and its address.
"""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from burnish.drawing.charts import Chart, Line, short
from burnish.page.library import Library
from burnish.text import headline, hider, visible

Data = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """What a view or an action is asked: the runs, the parts of its address, and the query or the form that was
    sent."""

    library: Library
    path: Mapping[str, str]
    query: Mapping[str, list[str]]

    def one(self, key: str, otherwise: str = "") -> str:
        """The first value under a key."""
        return (self.query.get(key) or [otherwise])[0]

    def number(self, key: str) -> float | None:
        try:
            value = float(self.one(key))
        except ValueError:
            return None
        return value if math.isfinite(value) else None

    def choice(self, key: str, choices: tuple[str, ...]) -> str:
        """One of these; the first unless another is asked for."""
        return self.one(key) if self.one(key) in choices else choices[0]


@dataclass(frozen=True)
class View:
    name: str
    """Its template is NAME.html."""
    address: str
    data: Callable[[Asked], Data]
    """What there is to be seen, as JSON has it."""
    title: str
    """Under which other pages lead to it: those of the same run, or, if it is not about one run, all."""
    stages: tuple[str, ...] = ("ppo",)
    """Of the runs that have it."""

    @property
    def is_of_a_run(self) -> bool:
        return "{run:path}" in self.address

    @property
    def start(self) -> str:
        """Its address up to the run's name."""
        return self.address.partition("{")[0]


@dataclass(frozen=True)
class Action:
    """Something that a person may ask the page to do. It needs the token, and is sent as a form or as JSON."""

    address: str
    do: Callable[[Asked], Data]
    leads_to: Callable[[Asked], str] = lambda asked: "/"
    """Where a form's sender sees what came of it."""


@dataclass(frozen=True)
class Stream:
    """Something that a person may ask for, which takes a while: its answer comes in pieces, each a line of JSON. It
    needs the token as an action does.
    """

    address: str
    ask: Callable[[Asked, threading.Event], Generator[Data, None, None]]
    """The event is set when nobody listens any more."""


class Looks:
    """Renders the templates. Whatever text they are given is escaped, without control characters and secrets."""

    def __init__(self, views: tuple[View, ...]) -> None:
        self._views = views
        self._environment = Environment(
            loader=PackageLoader("burnish.page", "templates"),
            autoescape=True,
            finalize=_shown,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {
            "coded": coded, "number": _number, "span": span, "ago": ago, "headline": headline, "percent_coded": quoted,
        }  # fmt: skip
        self._environment.globals |= {"chart": chart, "sparkline": sparkline, "address": address}

    def render(self, template: str, data: Data, **more: Any) -> str:
        """The page `template` of what a view gives, and of what any page shows."""
        shown = {"template": template.removesuffix(".html"), "views": self._views}
        return self._environment.get_template(template).render(hider()(data | more) | shown)

    def json(self, data: Data) -> bytes:
        return json.dumps(_plain(hider()(data)), allow_nan=False, ensure_ascii=False).encode()


def _shown(value: Any) -> Any:
    """Markup is escaped already; what lists and mappings hold is text too."""
    return visible(str(value)) if type(value) is str or isinstance(value, list | tuple | dict) else value


def coded(text: str) -> Markup:
    """A sentence as HTML: what stands between two backticks is code."""
    shown = str(escape(_shown(text)))
    return Markup(re.sub(r"`([^`\n]+)`", r"<code>\1</code>", shown))


def _plain(value: Any) -> Any:
    """As JSON can have it: what is not a number is null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(own) for own in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def quoted(name: str) -> str:
    """A run's name as a part of an address."""
    return quote(name)


def address(path: str, **query: Any) -> str:
    """An address with a query; what is None or empty is left out."""
    chosen = [(key, value) for key, value in query.items() if value not in (None, "")]
    return f"{path}?{urlencode(chosen, doseq=True)}" if chosen else path


def chart(data: Data) -> Chart:
    """What draws a curve as JSON has it."""
    lines = [Line(line["name"], [tuple(point) for point in line["points"]]) for line in data["lines"]]
    band = data["band"] and tuple(data["band"])
    return Chart(data["title"], data["meaning"], data["healthy"], data["red_flag"], lines, band)


def sparkline(points: list[tuple[float, float]], width: int = 120, height: int = 28) -> Markup:
    """The line alone, as the `d` of a path."""
    if len(points) < 2:
        return Markup("")
    (first, _), (last, _) = points[0], points[-1]
    low, high = min(y for _, y in points), max(y for _, y in points)
    parts: list[str] = []
    for x, y in points:
        across = 2 + (width - 4) * (x - first) / ((last - first) or 1)
        up = 3 + (height - 6) * (1 - (y - low) / ((high - low) or 1))
        parts.append(f"{'L' if parts else 'M'}{across:.1f},{up:.1f}")
    return Markup(" ".join(parts))


def _number(value: float | None) -> str:
    return "–" if value is None else short(value)  # noqa: RUF001


def span(seconds: float | None) -> str:
    """A time as one says it: 40 s, 12 min, 3 h 20 min, 2 d 4 h."""
    if seconds is None:
        return ""
    whole = max(0, round(seconds))
    if whole < 90:
        return f"{whole} s"
    if whole < 90 * 60:
        return f"{round(whole / 60)} min"
    hours, rest = divmod(round(whole / 60), 60)
    return f"{hours} h {rest} min" if hours < 36 else f"{hours // 24} d {hours % 24} h"


def ago(moment: float | None) -> str:
    return "" if moment is None else f"{span(time.time() - moment)} ago"
