"""Charts of report.html: SVG whose colours and fonts the page sets, so that they follow light and dark.

Coordinates are those of the drawing, WIDTH × HEIGHT, which the page scales to its width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 460, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 14, 12, 42  # room around what is drawn
SHADES = 8  # colours that the page has for lines and points
LABEL = 6.6  # width of a letter

Point = tuple[float, float]
Scale = Callable[[float], float]


def lines(series: Mapping[str, Sequence[Point]], x_title: str, y_title: str) -> str:
    """One line for each name, with a point at each value. x is drawn by its logarithm."""
    points = [point for line in series.values() for point in line]
    xs = sorted({x for x, _ in points})
    x = _scale((math.log(xs[0]), math.log(xs[-1])), (LEFT, WIDTH - RIGHT))
    top = _round_up(max(y for _, y in points))
    y = _scale((0.0, top), (HEIGHT - BOTTOM, TOP))
    parts = [_grid(y, top, y_title), *(_x_tick(x(math.log(at)), f"{at:g}") for at in xs), _x_title(x_title)]
    for shade, (name, line) in enumerate(series.items()):
        at = [(x(math.log(a)), y(b)) for a, b in line]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in at)
        dots = "".join(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.2"/>' for a, b in at)
        parts.append(
            f'<g class="shade-{shade % SHADES}"><title>{escape(name)}</title><polyline points="{path}"/>{dots}</g>'
        )
    return _svg(f"{y_title} by {x_title}", parts)


def scatter(points: Mapping[str, Point], x_title: str, y_title: str) -> str:
    """A point for each name. The axis of y begins at 0, that of x somewhat left of the first point.

    Names stand beside the points as long as there is room, the highest first; all are tooltips.
    """
    xs = [point[0] for point in points.values()]
    margin = 0.08 * (max(xs) - min(xs)) or 1.0
    low, high, top = max(min(xs) - margin, 0.0), max(xs) + margin, _round_up(max(y for _, y in points.values()))
    x, y = _scale((low, high), (LEFT, WIDTH - RIGHT)), _scale((0.0, top), (HEIGHT - BOTTOM, TOP))
    ticks = [low + (high - low) * part / 4 for part in range(5)]
    parts = [_grid(y, top, y_title), *(_x_tick(x(at), f"{at:.2g}") for at in ticks), _x_title(x_title)]
    taken: list[tuple[float, float, float, float]] = []
    for shade, (name, (a, b)) in sorted(enumerate(points.items()), key=lambda one: -one[1][1][1]):
        place = _free_place(x(a), y(b), len(name) * LABEL, taken)
        label = f'<text x="{place[0]:.1f}" y="{place[1]:.1f}" class="name">{escape(name)}</text>' if place else ""
        parts.append(
            f'<g class="shade-{shade % SHADES}"><title>{escape(name)}</title>'
            f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="5"/>{label}</g>'
        )
    return _svg(f"{y_title} by {x_title}", parts)


def calibration(curve: Sequence[Mapping[str, float]], x_title: str, y_title: str) -> str:
    """How often something happened where it was expected that often, beside the diagonal."""
    top = _round_up(max(max(bin_["predicted"], bin_["happened"]) for bin_ in curve))
    x, y = _scale((0.0, top), (LEFT, WIDTH - RIGHT)), _scale((0.0, top), (HEIGHT - BOTTOM, TOP))
    at = [(x(bin_["predicted"]), y(bin_["happened"])) for bin_ in curve]
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in at)
    dots = "".join(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.2"/>' for a, b in at)
    parts = [
        _grid(y, top, y_title),
        *(_x_tick(x(tick), f"{tick:.3g}") for tick in _ticks(top)),
        _x_title(x_title),
        f'<line class="diagonal" x1="{x(0):.1f}" y1="{y(0):.1f}" x2="{x(top):.1f}" y2="{y(top):.1f}"/>',
        f'<g class="shade-0"><polyline points="{path}"/>{dots}</g>',
    ]
    return _svg(f"{y_title} by {x_title}", parts)


def _svg(title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )


def _scale(values: Point, places: Point) -> Scale:
    (low, high), (start, end) = values, places
    return lambda value: start + (end - start) * ((value - low) / (high - low) if high > low else 0.5)


def _round_up(value: float) -> float:
    """The next power of ten times 1, 1.2, 1.6, 2 …: numbers whose quarters, the ticks, are short ones."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if value <= step * power * (1 + 1e-9))


def _ticks(top: float) -> list[float]:
    return [top * part / 4 for part in range(5)]


def _grid(y: Scale, top: float, title: str) -> str:
    rows = "".join(
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(at):.1f}" y2="{y(at):.1f}"/>'
        f'<text x="{LEFT - 7}" y="{y(at) + 4:.1f}" text-anchor="end">{at:.3g}</text>'
        for at in _ticks(top)
    )
    middle = (TOP + HEIGHT - BOTTOM) / 2
    turned = f'transform="translate(11 {middle:.0f}) rotate(-90)" text-anchor="middle"'
    return f'<g class="grid">{rows}<text class="axis" {turned}>{escape(title)}</text></g>'


def _x_tick(at: float, text: str) -> str:
    return f'<text class="tick" x="{at:.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">{text}</text>'


def _x_title(text: str) -> str:
    middle = (LEFT + WIDTH - RIGHT) / 2
    return f'<text class="axis" x="{middle:.0f}" y="{HEIGHT - 5}" text-anchor="middle">{escape(text)}</text>'


def _free_place(x: float, y: float, width: float, taken: list[tuple[float, float, float, float]]) -> Point | None:
    """Where a point's name goes: right, left, above or below it, at the first place where no other name is; None where
    there is no such place."""
    right, left, middle = x + 9, x - 9 - width, min(max(x - width / 2, LEFT), WIDTH - width)
    places = [(right, y + 4), (left, y + 4), (middle, y - 10), (middle, y + 19), (right, y - 8), (right, y + 17)]
    boxes = [(a, b - 11, a + width, b + 3) for a, b in places]
    fits = [a >= LEFT and c <= WIDTH for a, _, c, _ in boxes]
    free = [fit and not any(_overlap(box, other) for other in taken) for box, fit in zip(boxes, fits, strict=True)]
    taken.append((x - 6, y - 6, x + 6, y + 6))
    if True not in free:
        return None
    best = free.index(True)
    taken.append(boxes[best])
    return places[best]


def _overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
