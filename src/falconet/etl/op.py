"""Operators: small frozen objects of four shapes. They know nothing of executors, files or each other.

ColumnOp  one expression per column               Categorify once fitted, LambdaOp, AddTags
FrameOp   a lazy frame to a lazy frame            JoinExternal, Filter, Rename
KeyedOp   a FrameOp that needs the rows of a key together, in order            Split, Groupby
StatOp    must see the data first; `finish` gives a plain operator             Categorify, Normalize, History
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from ctypes import c_float
from typing import Any, ClassVar, Literal, NoReturn

import polars as pl

from falconet.errors import ConfigError
from falconet.etl.rowwise import OnRow
from falconet.etl.selector import Applied, Node, as_node
from falconet.registry import Registry
from falconet.schema import Column

OPS: Registry[Op] = Registry("operator")
Group = tuple[str, ...]
Rows = Literal["same", "fewer", "other"]


class Op(ABC):  # noqa: B024  the four shapes below have the abstract methods
    """What all shapes share: names in, names out, a place in a graph."""

    needs: ClassVar[frozenset[str]] = frozenset()
    """{"row"}: the column `__row__`, the UInt64 number of a row in its data set."""
    grouped: ClassVar[bool] = False
    """Whether the columns of a nested list are one input: the methods are then called for each group by itself."""

    @property
    def rows(self) -> Rows:
        """What becomes of rows. Branches whose rows may differ cannot be joined.

        "fewer": some disappear. "other": some are added or replaced; each then gets a `__row__` of its own, which does
        not depend on how the data is cut.
        """
        return "same"

    @property
    def also(self) -> tuple[str | Node, ...]:
        """What it reads beside the selected columns: names (of selected columns, or of columns of the data) and nodes.

        They stand in the frame under their names.
        """
        return ()

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        """The output columns in order, each with the input columns it is made from. Checks that the op fits them."""
        return {name: (name,) for name in columns}

    def settled(self, columns: tuple[str, ...] | None) -> Op:
        """The operator as a plan keeps and saves it, once the names of its columns are known (None: not yet).

        Raises ColumnNotFoundError where a setting names a column that is not among them.
        """
        return self

    def untouched(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """The input columns that come out as they are. None where rows disappear."""
        return ()

    def drops(self, inputs: Mapping[str, Column]) -> tuple[str, ...]:
        """The inputs that do not come out, which is asked once the fit knows what they are (cardinalities)."""
        return ()

    def reads(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """The columns that decide which rows there are; only asked where `rows` is not "same"."""
        return columns

    def row(self, values: dict[str, Any], columns: Mapping[str, Column]) -> dict[str, Any]:
        """The operator on one row in plain Python, equal to the expression bit for bit. Optional: see `has_row`.

        `values` are the inputs, `columns` what they are; the result has at least the outputs.
        """
        raise NotImplementedError

    @property
    def has_row(self) -> bool:
        """Whether `row` is written; `online()` otherwise applies the operator to a frame of one row."""
        return type(self).row is not Op.row

    @property
    def title(self) -> str:
        """What messages call it."""
        return type(self).__name__

    def on_row(self, names: Group, columns: Mapping[str, Column]) -> OnRow | None:
        """`row`, made once for these columns, where that saves time for each row; None where there is no plain form.

        `names` are selected, `columns` describes what `also` names, too. The function gives None for a dropped row.
        """
        return (lambda values: self.row(values, columns)) if self.has_row else None

    def __rrshift__(self, columns: Any) -> Node:
        return Applied(as_node(columns), self)

    def __add__(self, other: Any) -> NoReturn:
        _parenthesise(self, "+")

    def __radd__(self, other: Any) -> NoReturn:
        _parenthesise(self, "+")

    def __sub__(self, other: Any) -> NoReturn:
        _parenthesise(self, "-")


def _parenthesise(op: Op, sign: str) -> NoReturn:
    name = type(op).__name__
    raise ConfigError(
        f"`{name}(...) {sign} ...`: `{sign}` binds tighter than `>>`, so the operator has no columns yet",
        hint=f"put parentheses: `(columns >> {name}(...)) {sign} ...`",
    )


class ColumnOp(Op):
    """One expression per column. The expression is elementwise: a row's value never depends on other rows."""

    @abstractmethod
    def expr(self, x: pl.Expr, column: Column) -> pl.Expr:
        """The new values. `column` says what `x` is: name, type, whether it is a list."""

    def describe(self, column: Column) -> Column:
        """The new description. `column` is the input's, with the name and type of the output."""
        return column


class FrameOp(Op):
    """A lazy frame to a lazy frame."""

    @abstractmethod
    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        """`frame` with the outputs for these input columns; other columns pass through. Row order is kept."""

    def describe(self, inputs: Mapping[str, Column], outputs: Mapping[str, Column]) -> Mapping[str, Column]:
        """The outputs' descriptions. `inputs` has all that is read; `outputs` has names and types, and the rest of an
        input of the same name.
        """
        return outputs


class TableOp(FrameOp):
    """A FrameOp whose new columns are those of a table's rows: which row, `find` says."""

    @property
    @abstractmethod
    def table(self) -> pl.DataFrame:
        """The columns that are added, at least."""

    @property
    @abstractmethod
    def added(self) -> tuple[str, ...]:
        """Their names."""

    @abstractmethod
    def find(self, frame: pl.LazyFrame, name: str) -> pl.LazyFrame:
        """`frame` with the place of each row's row in the table as Int32, in the column `name`; null where none is."""


class KeyedOp(FrameOp):
    """A FrameOp that sees all rows of a key together, sorted by `order`, then by row number (`__row__`).

    A frame has many keys. Where rows stay, so does `__row__`; where they do not, each row that comes out has the
    `__row__` of one it was made of.
    """

    needs = frozenset({"row"})

    @property
    @abstractmethod
    def key(self) -> tuple[str, ...]:
        """The columns whose equal values come together; none: all rows do."""

    @property
    def order(self) -> tuple[str, ...]:
        """The columns that sort the rows of a key, before their row number does."""
        return ()


class StatOp(Op):
    """A transform that must see the data first.

    The steps are pure, so an executor may run them on any machine in any order:

        finish(merge([partial(a), partial(b)])) == finish(merge([partial(a + b)])), bit for bit

    A state is a frame, so it is also what is saved: loading calls `finish` on it.
    """

    def groups(self, columns: Sequence[Group]) -> list[Group]:
        """The groups of columns that have one state each; by default each column its own.

        `columns` are the selected columns, those of a nested list together.
        """
        return list(dict.fromkeys((name,) for group in columns for name in group))

    @abstractmethod
    def partial(self, frame: pl.LazyFrame, group: Group) -> pl.LazyFrame:
        """The state of one part. Works on no rows."""

    def partial_counted(self, frame: pl.LazyFrame, group: Group, count: str) -> pl.LazyFrame:
        """`partial` of a frame each of whose rows stands for as many as its column `count` says. Optional, for one
        column: then values that a table brings to many rows are seen once.
        """
        raise NotImplementedError

    @property
    def is_counted(self) -> bool:
        """Whether `partial_counted` is written."""
        return type(self).partial_counted is not StatOp.partial_counted

    @abstractmethod
    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        """One state from many, in a canonical order of rows. Associative and commutative."""

    @abstractmethod
    def finish(self, state: pl.DataFrame) -> Op:
        """The fitted operator, a ColumnOp or FrameOp: what is not fitted cannot be applied."""

    def finish_fitted(self, state: pl.DataFrame) -> Op:
        """The operator for the very rows the statistic was made from (out of fold). By default `finish`."""
        return self.finish(state)

    def finish_all(self, states: Mapping[Group, pl.DataFrame]) -> dict[Group, Op]:
        """The fitted operator of each group, for a statistic whose groups need each other. By default `finish`."""
        return {group: self.finish(state) for group, state in states.items()}

    @property
    def is_joint(self) -> bool:
        """Whether `finish_all` needs the states of all groups, also where pruning left some of their columns out."""
        return False

    def grow(self, state: pl.DataFrame, fresh: pl.DataFrame) -> pl.DataFrame:
        """The state once more data was seen, whose own state is `fresh`. By default `merge`."""
        return self.merge([state, fresh])

    def slice_by(self, group: Group) -> tuple[str, ...]:
        """Columns of the state by which it may be cut: rows of equal values are in one slice, and slices merge apart.

        The merged slices, sorted by these columns, are then the merged whole. None: it is merged as a whole.
        """
        return ()

    def is_given(self, group: Group) -> bool:
        """Whether the settings say all there is to know of a group, so that its fit needs no rows."""
        return False

    @property
    def learns(self) -> tuple[str | Node, ...]:
        """What only the fit reads beside the selected columns, such as a target: names and nodes as in `also`."""
        return ()

    @property
    def is_out_of_fold(self) -> bool:
        """Whether the rows of the fitted data get another operator than new rows."""
        return type(self).finish_fitted is not StatOp.finish_fitted


def freeze(op: Op, **fields: Any) -> None:
    """Store checked or converted settings on a frozen operator, from its `__post_init__` only."""
    for name, value in fields.items():
        object.__setattr__(op, name, value)


def float32(value: float) -> float:
    """The number as a Float32 column holds it; too large ones are infinite."""
    return c_float(value).value


def as_tuple(value: str | Sequence[str] | None) -> tuple[str, ...]:
    """A name or several as a tuple."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)
