"""An operator's plain form held to its expression."""

from __future__ import annotations

import struct
from typing import Any

import polars as pl

from falconet import ops
from falconet.etl.types import column_of


def bits(value: Any) -> Any:
    """A value so that equal means the same bits: -0.0 is not 0.0, NaN is NaN, 1 is not 1.0."""
    if isinstance(value, list):
        return [bits(x) for x in value]
    if isinstance(value, float):
        return "nan" if value != value else struct.pack("d", value)
    return (type(value).__name__, value)


def same_on_rows(op: ops.Op, frame: pl.DataFrame) -> None:
    """Fail unless the plain form of a ColumnOp or FrameOp gives for each row what the frame gives, bit for bit."""
    columns = {name: column_of(name, dtype) for name, dtype in frame.schema.items()}
    if isinstance(op, ops.ColumnOp):
        made = frame.select(op.expr(pl.col(name), column).alias(name) for name, column in columns.items())
    else:
        assert isinstance(op, ops.FrameOp)
        made = op.apply(frame.lazy(), tuple(columns)).select(list(op.sources(tuple(columns)))).collect()
    on_row = op.on_row(tuple(columns), columns)
    assert on_row is not None
    for row, want in zip(frame.to_dicts(), made.to_dicts(), strict=True):
        got = on_row(row)
        assert {name: bits(got[name]) for name in want} == {name: bits(value) for name, value in want.items()}
