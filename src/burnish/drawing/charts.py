"""Curves as SVG: drawn here, so that the page needs nothing from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from markupsafe import Markup, escape

from burnish.text import visible

WIDTH, HEIGHT = 360.0, 150.0
LEFT, RIGHT, TOP, BOTTOM = 44.0, 10.0, 10.0, 22.0
COLUMNS = int(WIDTH - LEFT - RIGHT)
LAST_COLOUR = 5  # lines after this one share it


@dataclass(frozen=True)
class Line:
    """One curve: a point per step."""

    name: str
    points: list[tuple[float, float]]


@dataclass(frozen=True)
class Chart:
    """A titled plot with what it means; `band` is the healthy range, where there is one in numbers."""

    title: str
    meaning: str
    healthy: str
    red_flag: str
    lines: list[Line]
    band: tuple[float, float] | None = None

    @property
    def latest(self) -> str:
        return short(self.lines[0].points[-1][1]) if self.lines[0].points else "unknown"

    # What the template draws: all in the SVG's own coordinates.

    @cached_property
    def range(self) -> tuple[float, float]:
        """Of the data; the band alone never squeezes the curve flat."""
        values = [y for line in self.lines for _, y in line.points]
        low, high = min(values), max(values)
        if math.isclose(low, high, rel_tol=1e-9, abs_tol=1e-12):
            pad = abs(low) * 0.1 or 0.1
            return low - pad, high + pad
        pad = 0.06 * (high - low)
        return low - pad, high + pad

    @cached_property
    def _steps(self) -> tuple[float, float]:
        steps = [x for line in self.lines for x, _ in line.points]
        return min(steps), max(max(steps), min(steps) + 1)

    def x(self, step: float) -> float:
        first, last = self._steps
        return LEFT + (WIDTH - LEFT - RIGHT) * (step - first) / (last - first)

    def y(self, value: float) -> float:
        low, high = self.range
        share = min(max((value - low) / (high - low), 0.0), 1.0)
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)

    def path(self, line: Line) -> str:
        points = thinned(line.points, COLUMNS)
        return " ".join(f"{'M' if i == 0 else 'L'}{self.x(x):.1f},{self.y(y):.1f}" for i, (x, y) in enumerate(points))

    @property
    def band_box(self) -> tuple[float, float] | None:
        """Top and height of the healthy range, where it is in view."""
        if self.band is None:
            return None
        top, bottom = self.y(self.band[1]), self.y(self.band[0])
        return (top, bottom - top) if bottom - top > 1 else None

    @property
    def y_ticks(self) -> list[tuple[float, str]]:
        low, high = self.range
        return [(self.y(v), short(v)) for v in nice_ticks(low, high)]

    @property
    def x_ticks(self) -> list[tuple[float, str]]:
        first, last = (math.floor(s) for s in self._steps)
        return [(self.x(s), str(s)) for s in sorted({first, (first + last) // 2, last})]

    @property
    def svg(self) -> Markup:
        """The drawing. Its colours are those that a stylesheet gives the classes band, grid, dot and c0 to c5."""
        left, right = LEFT, WIDTH - RIGHT
        parts: list[str] = []
        if self.band_box is not None:
            top, height = self.band_box
            parts.append(
                f'<rect class="band" x="{left:g}" y="{top:.1f}" width="{right - left:g}" height="{height:.1f}"/>'
            )
        for y, label in self.y_ticks:
            parts.append(f'<line class="grid" x1="{left:g}" x2="{right:g}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text x="{left - 6:g}" y="{y + 3.5:.1f}" text-anchor="end">{label}</text>')
        for x, label in self.x_ticks:
            parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 4:g}" text-anchor="middle">{label}</text>')
        for number, line in enumerate(self.lines):
            parts.append(self._stroke(number, line))
        said = escape(visible(f"{self.title} over the steps, last {self.latest}"))
        box = f'viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-label="{said}"'
        return Markup(f"<svg {box}>{''.join(parts)}</svg>")

    def _stroke(self, number: int, line: Line) -> str:
        """A curve; a single point has a dot."""
        if not line.points:
            return ""
        path = f'<path class="c{min(number, LAST_COLOUR)}" d="{self.path(line)}"/>'
        if len(line.points) > 1:
            return path
        ((x, y),) = line.points
        return path + f'<circle class="dot" cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="2.5"/>'


def thinned(points: list[tuple[float, float]], columns: int) -> list[tuple[float, float]]:
    """As many points as so many columns can show: where there are more, the lowest and the highest of each column, and
    both ends of the curve."""
    if len(points) <= 2 * columns:
        return points
    first, last = points[0][0], points[-1][0]
    by_column: dict[int, list[tuple[float, float]]] = {}
    for point in points:
        by_column.setdefault(int(columns * (point[0] - first) / ((last - first) or 1)), []).append(point)
    kept = {points[0], points[-1]}
    for own in by_column.values():
        kept |= {min(own, key=lambda p: p[1]), max(own, key=lambda p: p[1])}
    return sorted(kept)


def nice_ticks(low: float, high: float) -> list[float]:
    """Round numbers inside the range, about four of them."""
    raw = (high - low) / 4
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= raw)
    first = math.ceil(low / step)
    return [k * step for k in range(first, math.floor(high / step) + 1)]


def short(value: float) -> str:
    """A number in as few characters as say it."""
    if value == 0 or abs(value) < 1e-12:
        return "0"
    if abs(value) >= 10_000 or abs(value) < 0.001:
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 0.1 else 4
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def series(rows: Sequence[dict[str, float]], key: str, name: str | None = None) -> Line | None:
    """One metric over the steps; None where it was never logged."""
    points = [(r["step"], float(r[key])) for r in rows if isinstance(r.get(key), int | float) and math.isfinite(r[key])]
    return Line(name or key, points) if points else None
