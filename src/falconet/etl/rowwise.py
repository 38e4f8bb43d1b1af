"""One row in plain Python: what operators of single values need to say only once for numbers, nulls and lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from falconet.schema import Column

Row = dict[str, Any]
OnRow = Callable[[Row], Row | None]
"""A row's inputs to at least its outputs, equal to the operator's expression bit for bit; None: the row is dropped."""


def each_value(columns: Mapping[str, Column], make: Callable[[Column], Callable[[Any], Any]]) -> OnRow:
    """The function that `make` gives for a column, on every value of it that is not null, in lists too."""
    functions = [(name, lifted(make(column), column)) for name, column in columns.items()]
    return lambda values: {name: function(values[name]) for name, function in functions}


def lifted(function: Callable[[Any], Any], column: Column) -> Callable[[Any], Any]:
    """A function of a value that is there, for a column that may have nulls and lists."""
    if not column.is_list:
        return lambda value: None if value is None else function(value)
    return lambda value: None if value is None else [None if x is None else function(x) for x in value]
