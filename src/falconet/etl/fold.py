"""What is made of a table's columns is made once for each row of the table, not for each row of the data.

An operator that looks rows up in a table (`TableOp`) then gives their places alone. A column operator on one of its
columns is applied to the table, and what it made is looked up by place; a statistic that can counts the places first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import polars as pl

from falconet.etl.op import ColumnOp, FrameOp, Group, TableOp
from falconet.etl.plan import Bound, Given, Plan, Ref, Step, numbered, run
from falconet.schema import Column

PLACE = "__place__"


@dataclass(frozen=True)
class Folded:
    """What the steps of a plan apply, and the columns that stand in it as places: each with the values they stand for.

    The last value is the null of rows that the table does not have.
    """

    bound: Mapping[int, Bound]
    tables: Mapping[Ref, pl.Series]


def fold(plan: Plan, bound: Mapping[int, Bound], given: Given, counted: Collection[Ref] = ()) -> Folded:
    """The same results by fewer steps on each row. `counted`: outputs that may be places."""
    found = {step.id: op for step in plan.steps for op in _tables(step, bound)}
    tables: dict[Ref, pl.Series] = {}
    made: dict[tuple[int, Group], ColumnOp] = {}
    if not found:
        return Folded(bound, {})
    nothing = numbered(given.empty, [op for pairs in bound.values() for _, op in pairs])
    columns = run(plan, bound, nothing, given, keep=True).columns
    for id, op in found.items():
        for name in op.added:
            ref = (id, name)
            users = [step for step in plan.steps if ref in step.reads]
            if not (users or ref in counted) or any(out == ref for _, out in plan.outputs if ref not in counted):
                continue
            values = op.table[name].extend_constant(None, 1)
            taken = _taken(ref, values, columns, users, bound)
            if taken is not None:
                tables[ref] = values
                made.update(taken)
    new = {
        step.id: tuple((group, made.get((step.id, group), op)) for group, op in bound[step.id]) for step in plan.steps
    }
    for id, op in found.items():
        places = frozenset(name for name in op.added if (id, name) in tables)
        if places:
            new[id] = tuple((group, Placed(op, places)) for group, _ in bound[id])
    return Folded({**bound, **new}, tables)


def _tables(step: Step, bound: Mapping[int, Bound]) -> list[TableOp]:
    """The operator of a step that looks all of its rows up in a table."""
    ops = [op for _, op in bound[step.id]]
    return [op for op in ops if isinstance(op, TableOp) and op.rows == "same" and len(ops) == 1]


def _taken(
    ref: Ref, values: pl.Series, columns: Mapping[Ref, Column], users: list[Step], bound: Mapping[int, Bound]
) -> dict[tuple[int, Group], ColumnOp] | None:
    """What takes the place of the operators that use a column of a table; None where one needs the column itself."""
    name = ref[1]
    taken: dict[tuple[int, Group], ColumnOp] = {}
    for step in users:
        for group, op in bound[step.id]:
            if name not in group or step.ref(name) != ref:
                continue
            if not isinstance(op, ColumnOp) or group != (name,) or op.needs:
                return None
            try:
                outcome = values.to_frame(name).select(op.expr(pl.col(name), columns[ref]).alias(name)).to_series()
            except pl.exceptions.PolarsError:  # a row of the table that no row of the data may ever ask for
                return None
            taken[(step.id, group)] = Taken(op, outcome.rechunk())
        if ref in step.also or not any((step.id, (name,)) == key for key in taken):
            return None
    return taken


@dataclass(frozen=True, eq=False)
class Placed(FrameOp):
    """A TableOp whose columns named in `places` are the places of their values."""

    op: TableOp
    places: frozenset[str]

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        return self.op.sources(columns)

    def untouched(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        return self.op.untouched(columns)

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        place = pl.col(PLACE).fill_null(pl.lit(len(self.op.table), dtype=pl.Int32))
        return (
            self.op.find(frame, PLACE)
            .with_columns(
                place.alias(name) if name in self.places else pl.lit(self.op.table[name]).gather(PLACE).alias(name)
                for name in self.op.added
            )
            .drop(PLACE)
        )

    def describe(self, inputs: Mapping[str, Column], outputs: Mapping[str, Column]) -> Mapping[str, Column]:
        return self.op.describe(inputs, outputs)


@dataclass(frozen=True, eq=False)
class Taken(ColumnOp):
    """A ColumnOp on places: what it made of each of the values they stand for."""

    op: ColumnOp
    outcome: pl.Series

    def expr(self, x: pl.Expr, column: Column) -> pl.Expr:
        return pl.lit(self.outcome).gather(x)

    def describe(self, column: Column) -> Column:
        return self.op.describe(column)


def values_of(places: pl.LazyFrame, name: str, values: pl.Series, count: str) -> pl.LazyFrame:
    """The values of a column of places, each once for each place, and how many rows there are of it."""
    counted = places.group_by(name).agg(pl.len().cast(pl.Int64).alias(count))
    return counted.select(pl.lit(values).gather(pl.col(name)).alias(name), count)
