"""From nodes to a plan: which operator runs on which columns, in which order."""

from __future__ import annotations

from falconet.errors import ConfigError
from falconet.etl.op import Op, StatOp
from falconet.etl.plan import Plan, Ref, Step
from falconet.etl.selector import Applied, Joined, Node, Picked, Raw, as_node

__all__ = ["Node", "as_node", "compile_graph", "operators_of"]


def compile_graph(output: Node, raw: Raw) -> Plan:
    """The plan of a graph for data with these columns. Operators before a dropping of rows come before it.

    Raises ColumnNotFoundError and ConfigError for what does not fit; reads no data.
    """
    output.lineage  # noqa: B018  branches with different rows are refused even where names are open
    order: list[Applied] = []
    _visit(output, order)
    # All rows of one frame are dropped together, so a step runs after the droppings its columns went through.
    order.sort(key=lambda node: (len(node.input.lineage), node.op.rows == "fewer"))
    ids: dict[Node, int] = {node: i for i, node in enumerate(order, 1)}

    def refs(node: Node) -> dict[str, Ref]:
        found = node.trace(raw)
        assert found is not None
        return {name: (0 if maker is None else ids[maker], inner) for name, (maker, inner) in found.items()}

    steps = []
    for node in order:
        if not isinstance(node.op, Op):
            raise ConfigError(f"`{node.op!r}` is no operator")
        states = node.op.groups(node.input.groups(raw)) if isinstance(node.op, StatOp) else ()
        steps.append(Step(ids[node], node.op, tuple(refs(node.input).values()), tuple(states)))
    return Plan(tuple(steps), tuple(refs(output).items()))


def operators_of(output: Node) -> list[Op]:
    """The operators of a graph, each once, each after those before it."""
    order: list[Applied] = []
    _visit(output, order)
    return [node.op for node in order]


def _visit(node: Node, order: list[Applied]) -> None:
    """The operators in `node`, each after those before it, each once."""
    if isinstance(node, Joined):
        for inner in node.inputs:
            _visit(inner, order)
    elif isinstance(node, Picked):
        _visit(node.input, order)
    elif isinstance(node, Applied) and node not in order:
        _visit(node.input, order)
        order.append(node)
