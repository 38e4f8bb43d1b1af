"""A workflow for a few rows at a time, in plain Python: what a server asks, equal to the batch path bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from operator import index
from typing import Any, overload

import polars as pl

from falconet.errors import ColumnNotFoundError, DataError
from falconet.etl.fit import Inputs, ops_of
from falconet.etl.names import made_by
from falconet.etl.op import ColumnOp, FrameOp, Group, Op, float32
from falconet.etl.ops.history import Histories
from falconet.etl.plan import Bound, Given, Plan, Ref, label, numbered, run
from falconet.etl.rowwise import Row
from falconet.etl.types import polars_type
from falconet.schema import Column

_KINDS = (
    ("string", str, "a string"),
    ("timestamp", datetime, "a datetime"),
    ("date32", date, "a date"),
    ("duration", timedelta, "a timedelta"),
    ("time64", time, "a time"),
)
Values = list[Any]
"""The columns of one row, each in the slot of its ref."""


class Online:
    """`online(row)` gives the outputs of one row (a dict), `online(rows)` those of several, in order.

    A row needs the input columns; other keys are ignored. Where the workflow has a history, a list of raw items under
    its name takes the place of the look-up: its last items go through the operators of the item column.
    Raises ColumnNotFoundError for a missing column, DataError for what is no row and for one that a filter drops.
    """

    def __init__(self, plan: Plan, bound: Mapping[int, Bound], inputs: Inputs) -> None:
        self._plan = plan
        self.input_columns = plan.input_columns
        made = [(step.id, name) for step in plan.steps for name in step.makes]
        slots = {ref: slot for slot, ref in enumerate((*plan.given, *made))}
        self._blank: Values = [None] * len(slots)
        self._inputs = [(slots[(0, name)], name, _conformer(inputs[name])) for name in plan.input_columns]
        self._outputs = [(name, slots[ref]) for name, ref in plan.outputs]
        self._steps: list[Callable[[Values, Mapping[str, Any]], None]] = []
        if plan.steps:
            ops = {step.id: bound[step.id] for step in plan.steps}
            given = Given.of(inputs)
            columns = run(plan, ops, numbered(given.empty, ops_of(ops)), given, keep=True).columns
            for step in plan.steps:
                for group, op in bound[step.id]:
                    if names := tuple(name for name in group if name in step.names):
                        refs = {name: step.ref(name) for name in names}
                        read = refs | {ref[1]: ref for ref in step.also}
                        known = {name: replace(columns[ref], name=name) for name, ref in read.items()}
                        own = self._given(op, refs, bound, inputs) if isinstance(op, Histories) else None
                        out = {name: slots[(step.id, name)] for name in made_by(op, [names])}
                        self._steps.append(
                            _step(op, names, {n: slots[ref] for n, ref in read.items()}, out, known, own)
                        )

    @overload
    def __call__(self, row: Mapping[str, Any]) -> Row: ...

    @overload
    def __call__(self, row: Sequence[Mapping[str, Any]]) -> list[Row]: ...

    def __call__(self, row: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Row | list[Row]:
        if isinstance(row, Mapping):
            return self._one(row)
        rows = list(row) if isinstance(row, Iterable) and not isinstance(row, (str, bytes)) else [row]
        for one in rows:
            if not isinstance(one, Mapping):
                raise DataError(
                    f"a row is a mapping by column, not a {type(one).__name__}",
                    hint="one dict or a list of them; `transform` takes frames",
                )
        return [self._one(one) for one in rows]

    def _one(self, row: Mapping[str, Any]) -> Row:
        values = self._blank[:]
        for slot, name, conform in self._inputs:
            try:
                value = row[name]
            except KeyError:
                raise ColumnNotFoundError.of(name, row, where="the row") from None
            if value is not None:
                try:
                    values[slot] = conform(value)
                except (TypeError, ValueError, OverflowError) as error:
                    raise DataError(f"`{name}` cannot be {value!r}: {error}") from error
        for step in self._steps:
            step(values, row)
        return {name: values[slot] for name, slot in self._outputs}

    def _given(self, op: Histories, refs: Mapping[str, Ref], bound: Mapping[int, Bound], inputs: Inputs) -> _Given:
        item = refs[op.plan.item]
        part = self._plan.part_of([item])
        raw = part.input_columns
        online = Online(part, bound, {name: inputs[name] for name in raw})
        return _Given(op.plan.name, op.plan.length, raw, label(item), online)


@dataclass(frozen=True)
class _Given:
    """A history that comes with the row: each raw item goes through the operators of the item column."""

    name: str
    length: int
    raw: tuple[str, ...]
    out: str
    online: Online

    def __call__(self, items: Sequence[Any]) -> list[Any]:
        if len(self.raw) != 1:
            raise DataError(f"`{self.name}` cannot be given: its items are made of {', '.join(self.raw)}")
        return [self.online({self.raw[0]: item})[self.out] for item in list(items)[-self.length :]]


def _step(
    op: Op,
    names: Group,
    read: Mapping[str, int],
    made: Mapping[str, int],
    columns: Mapping[str, Column],
    given: _Given | None,
) -> Callable[[Values, Mapping[str, Any]], None]:
    """One operator on the values of one row: what it reads and makes, each with its slot."""
    inputs, outputs = tuple(read.items()), tuple(made.items())
    apply = op.on_row(names, columns) or _OnFrame(op, names, columns, tuple(made))

    def step(values: Values, row: Mapping[str, Any]) -> None:
        if given is not None and (items := row.get(given.name)) is not None:
            values[made[given.name]] = given(items)
            return
        found = apply({name: values[slot] for name, slot in inputs})
        if found is None:
            raise _not_one(op, "drops the row", {name: values[slot] for name, slot in inputs})
        for name, slot in outputs:
            values[slot] = found[name]

    return step


def _not_one(op: Op, what: str, values: Row) -> DataError:
    return DataError(f"`{op.title}` {what} {values}", hint="for serving, prune the outputs that are behind it")


class _OnFrame:
    """An operator without a plain form, on a frame of one row."""

    def __init__(self, op: Op, names: Group, columns: Mapping[str, Column], made: tuple[str, ...]) -> None:
        self._op, self._names, self._made = op, names, made
        self._schema = {name: polars_type(column) for name, column in columns.items()}
        self._exprs: list[pl.Expr] | None = None
        if isinstance(op, ColumnOp):
            self._exprs = [op.expr(pl.col(name), columns[name]).alias(name) for name in names]

    def __call__(self, values: Row) -> Row:
        try:
            frame = pl.DataFrame({name: [value] for name, value in values.items()}, schema=self._schema)
            found = self._apply(frame)
        except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
            name, first = self._op.title, str(error).partition("\n")[0]
            raise DataError(f"`{name}` cannot use {values}: {first}") from error
        if len(found) != 1:
            raise _not_one(self._op, "makes several rows of" if len(found) else "drops the row", values)
        return found.row(0, named=True)

    def _apply(self, frame: pl.DataFrame) -> pl.DataFrame:
        if self._exprs is not None:
            return frame.select(self._exprs)
        assert isinstance(self._op, FrameOp)
        lazy = numbered(frame.lazy(), [self._op])
        return self._op.apply(lazy, self._names).select(self._made).collect()


def _conformer(column: Column) -> Callable[[Any], Any]:
    """A plain value as the column's type would hold it."""
    kind = column.dtype
    if kind.startswith(("int", "uint")):
        one: Callable[[Any], Any] = _integer
    elif kind == "float32":
        one = float32
    elif kind.startswith("float"):
        one = float
    elif kind == "bool":
        one = _boolean
    else:
        one = next((_instance(of, name) for start, of, name in _KINDS if kind.startswith(start)), _same)
    return one if column.list is None else _list_of(one)


def _list_of(one: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    def many(values: Any) -> list[Any]:
        if isinstance(values, (str, bytes, Mapping)):
            raise TypeError("a list is needed")
        return [None if value is None else one(value) for value in values]

    return many


def _integer(value: Any) -> Any:
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    whole = index(value)
    if not -(1 << 63) <= whole < 1 << 64:
        raise ValueError("it has more than 64 bits")
    return whole


def _instance(kind: type, name: str) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError(f"{name} is needed")
        return value

    return check


def _boolean(value: Any) -> bool:
    if value not in (0, 1):
        raise TypeError("true or false is needed")
    return bool(value)


def _same(value: Any) -> Any:
    return value
