"""A graph as a list of steps, each after those it needs, and how a frame runs through it.

A column at some place of the graph is a `Ref`: the step that makes it (0: the data) and its name. All of them live side
by side in one lazy frame, so a node shared by several outputs runs once and Polars sees one plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import polars as pl

from falconet.compute.executor import ROW
from falconet.errors import ConfigError, SchemaError
from falconet.etl.names import made_by
from falconet.etl.op import ColumnOp, FrameOp, Group, KeyedOp, Op, StatOp
from falconet.etl.table import as_plain, plain_type
from falconet.etl.types import column_of, polars_type
from falconet.schema import Column

Ref = tuple[int, str]
Bound = tuple[tuple[Group, Op], ...]
"""What a step applies: operators that are fitted, each with the input columns it is for."""


@dataclass(frozen=True)
class Step:
    """One operator on some columns. `id` stays the same when a plan is pruned."""

    id: int
    op: Op
    inputs: tuple[Ref, ...]
    groups: tuple[Group, ...]
    """The names of the inputs, those of a nested list together."""
    also: tuple[Ref, ...] = ()
    """What the operator reads beside its inputs."""
    learns: tuple[Ref, ...] = ()
    """What a fit reads beside them."""
    states: tuple[Group, ...] = ()
    """The groups of columns that a statistic has one state for each."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for _, name in self.inputs)

    @cached_property
    def makes(self) -> dict[str, tuple[str, ...]]:
        """The output columns that are not inputs left as they are, each with the inputs it is made from."""
        return made_by(self.op, self.groups)

    @property
    def reads(self) -> tuple[Ref, ...]:
        """All that the operator needs when it is applied."""
        return (*self.inputs, *self.also)

    def ref(self, name: str) -> Ref:
        """Where an input column comes from."""
        return next(ref for ref in self.inputs if ref[1] == name)


@dataclass(frozen=True)
class Plan:
    """Steps in an order in which they can run, and the columns that come out."""

    steps: tuple[Step, ...]
    outputs: tuple[tuple[str, Ref], ...]

    @property
    def given(self) -> tuple[Ref, ...]:
        """The columns that no step makes, but some need."""
        return tuple(needed_by(self.steps, self.outputs))

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The columns of the data that are needed."""
        return tuple(name for id, name in self.given if id == 0)

    def only(self, names: Iterable[str]) -> Plan:
        """What the named outputs need to be made, and no more."""
        outputs = dict(self.outputs)
        return _prune(self.steps, tuple((name, outputs[name]) for name in names), frozenset())

    def part_of(self, refs: Iterable[Ref], have: Iterable[Ref] = ()) -> Plan:
        """What some columns need where others are there already; the outputs are named by `label`."""
        return _prune(self.steps, tuple((label(ref), ref) for ref in refs), frozenset(have))


def _prune(steps: tuple[Step, ...], outputs: tuple[tuple[str, Ref], ...], have: frozenset[Ref]) -> Plan:
    """The steps and columns that `outputs` need, with those that decide which rows there are."""
    wanted = {ref for _, ref in outputs} - have
    kept = []
    for step in reversed(steps):
        made = [name for name in step.makes if (step.id, name) in wanted]
        if not made:
            continue
        needed = {source for name in made for source in step.makes[name]}
        if step.op.rows != "same":
            needed.update(step.op.reads(step.names))
        if isinstance(step.op, KeyedOp):
            needed.update((*step.op.key, *step.op.order))
        if not needed & set(step.names):  # a step runs for what it was given: something stays, if only that
            needed.update(step.groups[0] if step.op.grouped else step.names[:1])
        groups = tuple(tuple(name for name in group if name in needed) for group in step.groups)
        kept.append(
            replace(
                step,
                inputs=tuple(ref for ref in step.inputs if ref[1] in needed),
                groups=tuple(group for group in groups if group),
                learns=(),
                states=tuple(group for group in step.states if needed & set(group) or _is_joint(step.op)),
            )
        )
        wanted.update(ref for ref in kept[-1].reads if ref not in have)
    return Plan(tuple(reversed(kept)), outputs)


def _is_joint(op: Op) -> bool:
    return isinstance(op, StatOp) and op.is_joint


def needed_by(steps: Sequence[Step], outputs: Iterable[tuple[str, Ref]] = (), *, fitting: bool = False) -> list[Ref]:
    """What some steps and outputs read and the steps do not make; `fitting`: what their fit reads, too."""
    made = {(step.id, name) for step in steps for name in step.makes}
    refs = [ref for step in steps for ref in (*step.reads, *(step.learns if fitting else ()))]
    return [ref for ref in dict.fromkeys((*refs, *(ref for _, ref in outputs))) if ref not in made]


def label(ref: Ref) -> str:
    """The name of a column inside the frame that runs through the plan."""
    return f"__{ref[0]}__/{ref[1]}"


@dataclass(frozen=True)
class Given:
    """What a frame holds before a plan runs on it: which columns they are, and whether under their own names.

    The data has its own names; files between two stages of a plan have labels.
    """

    columns: Mapping[Ref, Column]
    labelled: bool = False

    @classmethod
    def of(cls, inputs: Mapping[str, Column]) -> Given:
        """Columns of the data."""
        return cls({(0, name): column for name, column in inputs.items()})

    def name(self, ref: Ref) -> str:
        """What a column is called in the frame."""
        return label(ref) if self.labelled else ref[1]

    @property
    def empty(self) -> pl.LazyFrame:
        """A frame of no rows with these columns."""
        return pl.LazyFrame(schema={self.name(ref): polars_type(column) for ref, column in self.columns.items()})


@dataclass(frozen=True)
class Described:
    """A lazy frame in the middle of a plan, and what its columns are."""

    frame: pl.LazyFrame
    columns: Mapping[Ref, Column]
    has_row: bool
    """Whether it has row numbers."""

    def select(self, outputs: Iterable[tuple[str, Ref]]) -> pl.LazyFrame:
        """Some of the columns, under their outer names, and the row numbers if they are there."""
        row = [pl.col(ROW)] if self.has_row else []
        return self.frame.select(*(pl.col(label(ref)).alias(name) for name, ref in outputs), *row)


def run(plan: Plan, bound: Mapping[int, Bound], frame: pl.LazyFrame, given: Given, *, keep: bool = False) -> Described:
    """`frame` through all steps. `given` says what its columns are; `__row__`, where it is there, stays.
    Columns that no later step needs are dropped, unless `keep`.

    Raises SchemaError where an operator does not fit the types of its columns. Reads nothing.
    """
    has_row = ROW in frame.collect_schema()
    state = Described(
        frame.select(*[ROW] * has_row, *(pl.col(given.name(ref)).alias(label(ref)) for ref in plan.given)),
        {ref: given.columns[ref] for ref in plan.given},
        has_row,
    )
    for i, step in enumerate(plan.steps):
        after = plan.steps if keep else plan.steps[i + 1 :]
        later = {ref for s in after for ref in s.reads} | {ref for _, ref in plan.outputs}
        state = apply(state, step, bound[step.id], later)
    return state


def apply(state: Described, step: Step, bound: Bound, later: set[Ref]) -> Described:
    """One step on a frame that has its inputs; of what it makes and what was there, all that is needed `later`."""
    try:
        for i, (group, op) in enumerate(bound):
            if names := tuple(name for name in group if name in step.names):
                rest = {ref for other, _ in bound[i + 1 :] for ref in step.inputs if ref[1] in other}
                rest |= {ref for ref in step.also if i + 1 < len(bound)}
                state = _apply(state, step, op, names, later | rest)
    except pl.exceptions.PolarsError as error:
        raise SchemaError(f"{where(step)}: {str(error).partition(chr(10))[0]}") from error
    return state


def _apply(state: Described, step: Step, op: Op, group: Group, later: set[Ref]) -> Described:
    inputs = {name: replace(state.columns[step.ref(name)], name=name) for name in group}
    if isinstance(op, ColumnOp):
        return _column_op(state, step, op, inputs)
    if not isinstance(op, FrameOp):
        raise ConfigError(f"`{type(op).__name__}` is neither a ColumnOp nor a FrameOp", hint="subclass one of them")
    read = dict.fromkeys([*(step.ref(name) for name in group), *step.also])
    known = {ref[1]: replace(state.columns[ref], name=ref[1]) for ref in read}
    sources = made_by(op, [group])
    row = [ROW] if state.has_row else []
    nothing = {name: polars_type(column) for name, column in known.items()} | dict.fromkeys(row, pl.UInt64())
    types = _frame_op(op, pl.LazyFrame(schema=nothing), group).collect_schema()
    frame = _frame_op(op, state.frame.with_columns(pl.col(label(ref)).alias(ref[1]) for ref in read), group)
    frame = frame.with_columns(as_plain(pl.col(name), types[name]).alias(label((step.id, name))) for name in sources)
    columns = {}
    for name, made_from in sources.items():
        typed = column_of(name, plain_type(types[name]))
        if name in inputs:
            columns[name] = replace(inputs[name], dtype=typed.dtype, list=typed.list)
        else:
            raw = dict.fromkeys(x for source in made_from for x in known[source].source)
            columns[name] = replace(typed, source=tuple(raw))
    described = op.describe(known, columns)
    before = () if isinstance(op, KeyedOp) and op.rows == "other" else tuple(state.columns)
    made = {(step.id, name): described[name] for name in sources}
    kept = {ref: column for ref, column in ({ref: state.columns[ref] for ref in before} | made).items() if ref in later}
    return Described(frame.select(*row, *map(label, kept)), kept, state.has_row)


def _column_op(state: Described, step: Step, op: ColumnOp, inputs: Mapping[str, Column]) -> Described:
    """The types are asked of the inputs alone: asking them of the whole frame takes longer with each step."""
    exprs = {name: op.expr(pl.col(label(step.ref(name))), column) for name, column in inputs.items()}
    nothing = pl.LazyFrame(schema={label(step.ref(name)): polars_type(column) for name, column in inputs.items()})
    types = nothing.select(expr.alias(name) for name, expr in exprs.items()).collect_schema()
    made = {}
    for name, column in inputs.items():
        typed = column_of(name, plain_type(types[name]))
        made[(step.id, name)] = op.describe(replace(column, dtype=typed.dtype, list=typed.list))
    new = [as_plain(expr, types[name]).alias(label((step.id, name))) for name, expr in exprs.items()]
    return Described(state.frame.with_columns(new), {**state.columns, **made}, state.has_row)


def _frame_op(op: FrameOp, frame: pl.LazyFrame, group: Group) -> pl.LazyFrame:
    return _keyed(op, frame, group) if isinstance(op, KeyedOp) else op.apply(frame, group)


def _keyed(op: KeyedOp, frame: pl.LazyFrame, group: Group) -> pl.LazyFrame:
    """A keyed operator on a frame that has all rows of every key: sorted for it, and back in order after it."""
    return op.apply(frame.sort(*op.order, ROW, maintain_order=True), group).sort(ROW)


def where(step: Step) -> str:
    """A step as errors name it."""
    return f"`{step.op.title}` on {', '.join(f'`{name}`' for name in step.names)}"


def outputs_of(plan: Plan, state: Described) -> dict[str, Column]:
    """The descriptions of what comes out, under their outer names."""
    return {name: replace(state.columns[ref], name=name) for name, ref in plan.outputs}


def numbered(frame: pl.LazyFrame, ops: Iterable[Op]) -> pl.LazyFrame:
    """The frame with row numbers, where an operator asks for them and it has none."""
    if not asks_row(ops) or ROW in frame.collect_schema():
        return frame
    return frame.with_row_index(ROW).with_columns(pl.col(ROW).cast(pl.UInt64))


def asks_row(ops: Iterable[Op]) -> bool:
    """Whether one of the operators needs row numbers."""
    return any("row" in op.needs for op in ops)
