"""A picture of a plan: text for terminals, SVG for notebooks and files, PNG where vl-convert is installed.

Vertices are the data, the steps and the output, in layers by their distance from the data; an edge carries columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from falconet.errors import ConfigError
from falconet.etl.fit import fit_columns
from falconet.etl.op import KeyedOp, StatOp
from falconet.etl.plan import Plan, Ref, Step

DATA, OUTPUT = 0, -1
"""The ids of the first and the last vertex; steps have their own."""
_CHAR, _LINE, _PAD, _GAP_X, _GAP_Y = 7.2, 17, 10, 28, 46  # pixels
_WIDEST = 44  # characters of a line


@dataclass(frozen=True)
class Vertex:
    """What is drawn as a box: a title and lines below it."""

    id: int
    title: str
    lines: tuple[str, ...]

    @property
    def width(self) -> float:
        return max(len(line) for line in (self.title, *self.lines)) * _CHAR + 2 * _PAD

    @property
    def height(self) -> float:
        return (1 + len(self.lines)) * _LINE + 2 * _PAD


@dataclass(frozen=True)
class Edge:
    """Columns that go from one vertex to another; `fit_only` where only the fit reads them."""

    start: int
    end: int
    columns: tuple[str, ...]
    fit_only: bool = False


@dataclass(frozen=True)
class Drawing:
    """A graph to look at: `print` it, show it in a notebook, or `save` it as .svg, .png or .txt."""

    vertices: tuple[Vertex, ...]
    edges: tuple[Edge, ...]

    def __str__(self) -> str:
        lines = []
        for vertex in self.vertices:
            number = f"{vertex.id} " if vertex.id > 0 else ""
            given = [
                f"{', '.join(edge.columns)} of {edge.start or 'the data'}{' (fit only)' if edge.fit_only else ''}"
                for edge in self.edges
                if edge.end == vertex.id
            ]
            of = f"  ← {'; '.join(given)}" if given else ""
            made = f"  → {', '.join(vertex.lines)}" if vertex.lines else ""
            lines.append(f"{number}{vertex.title}{of}{made}")
        return "\n".join(lines)

    def _repr_svg_(self) -> str:
        return self.svg()

    def svg(self) -> str:
        """The picture as an SVG document that needs nothing else."""
        places, width, height = _layout(self)
        boxes = {vertex.id: vertex for vertex in self.vertices}
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"'
            f' viewBox="0 0 {width:.0f} {height:.0f}" font-family="ui-monospace, Menlo, Consolas, monospace"'
            ' font-size="12">',
            f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
        ]
        for edge in self.edges:
            (x1, y1), (x2, y2) = places[edge.start], places[edge.end]
            x1, x2 = x1 + boxes[edge.start].width / 2, x2 + boxes[edge.end].width / 2
            y1 += boxes[edge.start].height
            middle = (y1 + y2) / 2
            dashes = ' stroke-dasharray="4 3"' if edge.fit_only else ""
            parts.append(
                f'<path d="M {x1:.1f} {y1:.1f} C {x1:.1f} {middle:.1f}, {x2:.1f} {middle:.1f}, {x2:.1f} {y2:.1f}"'
                f' fill="none" stroke="#8a94a6" stroke-width="1.4"{dashes}>'
                f"<title>{escape(', '.join(edge.columns))}</title></path>"
            )
        for vertex in self.vertices:
            x, y = places[vertex.id]
            fill = "#eef2f7" if vertex.id in (DATA, OUTPUT) else "#ffffff"
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{vertex.width:.1f}" height="{vertex.height:.1f}" rx="6"'
                f' fill="{fill}" stroke="#3c4a5e"/>'
            )
            for i, line in enumerate((vertex.title, *vertex.lines)):
                weight = ' font-weight="bold"' if i == 0 else ""
                parts.append(
                    f'<text x="{x + _PAD:.1f}" y="{y + _PAD + (i + 0.75) * _LINE:.1f}" fill="#1c2430"{weight}>'
                    f"{escape(line)}</text>"
                )
        return "\n".join([*parts, "</svg>"])

    def save(self, path: str | Path) -> Path:
        """Write it as .svg, .png (needs `falconet[plot]`) or .txt, as the name ends."""
        path = Path(path)
        if path.suffix == ".svg":
            path.write_text(self.svg(), encoding="utf-8")
        elif path.suffix == ".txt":
            path.write_text(f"{self}\n", encoding="utf-8")
        elif path.suffix == ".png":
            path.write_bytes(_png(self.svg()))
        else:
            raise ConfigError(f"a graph cannot be written as `{path.name}`", hint="name it .svg, .png or .txt")
        return path


def draw(plan: Plan) -> Drawing:
    """The picture of a plan."""
    vertices = [Vertex(DATA, "data", _wrapped(fit_columns(plan)))]
    edges = []
    for step in plan.steps:
        vertices.append(Vertex(step.id, _title(step), _wrapped(step.makes)))
        edges += _edges(step.reads, step.id) + _edges(step.learns, step.id, fit_only=True)
    vertices.append(Vertex(OUTPUT, "output", _wrapped(name for name, _ in plan.outputs)))
    edges += _edges([ref for _, ref in plan.outputs], OUTPUT)
    return Drawing(tuple(vertices), tuple(edges))


def _title(step: Step) -> str:
    name = type(step.op).__name__
    if isinstance(step.op, KeyedOp):
        return f"{name} (regroups by {', '.join(step.op.key) or 'all rows'})"
    if isinstance(step.op, StatOp):
        return f"{name} (fitted)"
    return name


def _edges(refs: Sequence[Ref], end: int, *, fit_only: bool = False) -> list[Edge]:
    starts = dict.fromkeys(id for id, _ in refs)
    return [Edge(s, end, tuple(name for id, name in refs if id == s), fit_only) for s in starts]


def _wrapped(names: Iterable[str]) -> tuple[str, ...]:
    """Names in lines of a readable width."""
    lines: list[str] = []
    for name in names:
        if lines and len(lines[-1]) + len(name) + 2 <= _WIDEST:
            lines[-1] += f", {name}"
        else:
            lines.append(name)
    return tuple(lines)


def _layout(drawing: Drawing) -> tuple[Mapping[int, tuple[float, float]], float, float]:
    """The upper left corner of each box, and the size of the picture."""
    depth: dict[int, int] = {}
    for vertex in drawing.vertices:  # each after those it needs
        depth[vertex.id] = 1 + max((depth[edge.start] for edge in drawing.edges if edge.end == vertex.id), default=-1)
    depth[OUTPUT] = 1 + max(level for id, level in depth.items() if id != OUTPUT)
    layers: list[list[Vertex]] = [[] for _ in range(max(depth.values()) + 1)]
    for vertex in drawing.vertices:
        layers[depth[vertex.id]].append(vertex)
    widths = [sum(v.width for v in layer) + _GAP_X * (len(layer) - 1) for layer in layers]
    width = max(widths) + 2 * _GAP_X
    places: dict[int, tuple[float, float]] = {}
    y = float(_GAP_X)
    for layer, own in zip(layers, widths, strict=True):
        if not layer:
            continue
        x = (width - own) / 2
        for vertex in sorted(layer, key=lambda v: _pull(v, drawing, places, width)):
            places[vertex.id] = (x, y)
            x += vertex.width + _GAP_X
        y += max(vertex.height for vertex in layer) + _GAP_Y
    return places, width, y - _GAP_Y + _GAP_X


def _pull(vertex: Vertex, drawing: Drawing, places: Mapping[int, tuple[float, float]], width: float) -> float:
    """Where the boxes that lead to this one stand, so that edges cross little."""
    boxes = {other.id: other for other in drawing.vertices}
    starts = [edge.start for edge in drawing.edges if edge.end == vertex.id and edge.start in places]
    return sum(places[s][0] + boxes[s].width / 2 for s in starts) / len(starts) if starts else width / 2


def _png(svg: str) -> bytes:
    try:
        import vl_convert
    except ImportError as error:
        raise ConfigError("a PNG needs vl-convert", hint='pip install "falconet[plot]", or save it as .svg') from error
    png: bytes = vl_convert.svg_to_png(svg, scale=2)
    return png
