"""From nodes to a plan: which operator runs on which columns, in which order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from falconet.etl.op import KeyedOp, Op, StatOp
from falconet.etl.plan import Plan, Ref, Step
from falconet.etl.selector import Applied, ColumnSelector, Joined, Node, Origin, Picked, Raw
from falconet.etl.types import placeless


def compile_graph(output: Node, raw: Raw) -> Plan:
    """The plan of a graph for data with these columns. Operators before a change of rows come before it.

    Raises ColumnNotFoundError and ConfigError for what does not fit; reads no data.
    """
    output.lineage  # noqa: B018  branches with different rows are refused even where names are open
    nodes = _nodes(output)
    exchanges = _exchanges(nodes)
    order = sorted((n for n in nodes if isinstance(n, Applied)), key=lambda node: _turn(node, exchanges[node]))
    ids: dict[Node, int] = {node: i for i, node in enumerate(order, 1)}

    def refs(found: dict[str, Origin] | None) -> dict[str, Ref]:
        assert found is not None
        return {name: (0 if maker is None else ids[maker], inner) for name, (maker, inner) in found.items()}

    steps = []
    for node in order:
        groups = node.input.groups(raw)
        inputs = refs(node.input.trace(raw))
        beside = [refs(node.beside(raw, values)) for values in (node.op.also, node.learns)]
        also, learns = (tuple(ref for name, ref in found.items() if name not in inputs) for found in beside)
        op = node.op.settled(tuple(inputs))
        states = op.groups(groups) if isinstance(op, StatOp) else ()
        steps.append(Step(ids[node], op, tuple(inputs.values()), groups, also, learns, tuple(states)))
    return Plan(tuple(steps), tuple(refs(output.trace(raw)).items()))


def operators_of(output: Node) -> list[Op]:
    """The operators of a graph, each once, each after those before it."""
    return [node.op for node in _nodes(output) if isinstance(node, Applied)]


def raw_names(output: Node) -> tuple[str, ...]:
    """The columns of the data that a graph names. Raises ConfigError where it selects by tags or "*"."""
    found: dict[str, None] = {}
    for node in _nodes(output):
        if isinstance(node, ColumnSelector):
            found |= dict.fromkeys(node.named)
        if isinstance(node, Applied):
            beside = (value for value in (*node.op.also, *node.learns) if isinstance(value, str))
            found |= {name: None for name in beside if name not in (node.input.columns or ())}
    return tuple(found)


def check_types(output: Node, useless: Mapping[str, pl.DataType]) -> None:
    """Raise SchemaError where a graph selects or reads one of the columns of the data that no schema can describe."""
    for node in _nodes(output):
        names: Iterable[Any] = ()
        if isinstance(node, ColumnSelector):
            names = useless if node.names == "*" else () if node.tags else node.named
        elif isinstance(node, Applied):
            names = (name for name in (*node.op.also, *node.learns) if name not in (node.input.columns or ()))
        for name in names:
            if isinstance(name, str) and name in useless:
                raise placeless(name, useless[name])


def _turn(node: Applied, exchanges: int) -> tuple[int, float]:
    """When an operator runs: all rows of one frame change together, so after the changes that its columns went through
    and before the next; and what needs no exchange of rows before what does."""
    return len(node.input.lineage), math.inf if node.op.rows != "same" else exchanges


def _exchanges(nodes: Iterable[Node]) -> dict[Node, int]:
    """How many keyed operators come one after the other on the way to each node, itself included."""
    found: dict[Node, int] = {}
    for node in nodes:
        before = max((found[inner] for inner in _before(node)), default=0)
        found[node] = before + (isinstance(node, Applied) and isinstance(node.op, KeyedOp))
    return found


def _nodes(output: Node) -> list[Node]:
    """All nodes of a graph, each once, each after those before it."""
    found: dict[Node, None] = {}

    def visit(node: Node) -> None:
        if node not in found:
            for inner in _before(node):
                visit(inner)
            found[node] = None

    visit(output)
    return list(found)


def _before(node: Node) -> tuple[Node, ...]:
    if isinstance(node, Joined):
        return node.inputs
    if isinstance(node, Picked):
        return (node.input,)
    return (node.input, *node.extras) if isinstance(node, Applied) else ()
