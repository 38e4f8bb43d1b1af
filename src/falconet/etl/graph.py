"""From nodes to a plan: which operator runs on which columns, in which order."""

from __future__ import annotations

import math
from collections.abc import Iterable

from falconet.errors import ConfigError
from falconet.etl.op import KeyedOp, Op, StatOp
from falconet.etl.plan import Plan, Ref, Step
from falconet.etl.selector import Applied, ColumnSelector, Joined, Node, Origin, Picked, Raw, as_node

__all__ = ["Node", "as_node", "compile_graph", "operators_of", "raw_names"]


def compile_graph(output: Node, raw: Raw) -> Plan:
    """The plan of a graph for data with these columns. Operators before a change of rows come before it.

    Raises ColumnNotFoundError and ConfigError for what does not fit; reads no data.
    """
    output.lineage  # noqa: B018  branches with different rows are refused even where names are open
    order: list[Applied] = []
    _visit(output, order)
    order.sort(key=_turn)
    ids: dict[Node, int] = {node: i for i, node in enumerate(order, 1)}

    def refs(found: dict[str, Origin] | None) -> dict[str, Ref]:
        assert found is not None
        return {name: (0 if maker is None else ids[maker], inner) for name, (maker, inner) in found.items()}

    steps = []
    for node in order:
        if not isinstance(node.op, Op):
            raise ConfigError(f"`{node.op!r}` is no operator")
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
    order: list[Applied] = []
    _visit(output, order)
    return [node.op for node in order]


def raw_names(output: Node) -> tuple[str, ...]:
    """The columns of the data that a graph names. Raises ConfigError where it selects by tags or "*"."""
    found: dict[str, None] = {}
    nodes = [output]
    while nodes:
        node = nodes.pop(0)
        if isinstance(node, ColumnSelector):
            found |= dict.fromkeys(node.named)
        if isinstance(node, Applied):
            beside = (value for value in (*node.op.also, *node.learns) if isinstance(value, str))
            found |= {name: None for name in beside if name not in (node.input.columns or ())}
        nodes += _before(node)
    return tuple(found)


def _turn(node: Applied) -> tuple[int, float]:
    """When an operator runs: all rows of one frame change together, so after the changes that its columns went through
    and before the next; and what needs no exchange of rows before what does."""
    return len(node.input.lineage), math.inf if node.op.rows != "same" else _exchanges(node)


def _exchanges(node: Node) -> int:
    """How many keyed operators come one after the other on the way here, this one included."""
    if isinstance(node, Joined):
        return max(map(_exchanges, node.inputs))
    if isinstance(node, Picked):
        return _exchanges(node.input)
    if not isinstance(node, Applied):
        return 0
    return max(map(_exchanges, (node.input, *node.extras))) + isinstance(node.op, KeyedOp)


def _visit(node: Node, order: list[Applied]) -> None:
    """The operators in `node`, each after those before it, each once."""
    for inner in _before(node):
        _visit(inner, order)
    if isinstance(node, Applied) and node not in order:
        order.append(node)


def _before(node: Node) -> Iterable[Node]:
    if isinstance(node, Joined):
        return node.inputs
    if isinstance(node, Picked):
        return (node.input,)
    return (node.input, *node.extras) if isinstance(node, Applied) else ()
