"""Rename: new names for columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import polars as pl

from falconet.errors import ColumnNotFoundError, ConfigError
from falconet.etl.op import OPS, FrameOp, Group
from falconet.etl.rowwise import OnRow
from falconet.schema import Column


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class Rename(FrameOp):
    """New names: `names={"old": "new"}`, a function of the name, `prefix` and `postfix` for every column, or `name` for
    a single one. The values stay.

    The function is called once for each column, when the columns are known; the names are what is kept.

    >>> Rename(postfix="_raw").sources(("age",))
    {'age_raw': ('age',)}
    >>> Rename(str.lower).sources(("Age",))
    {'age': ('Age',)}
    """

    f: Callable[[str], str] | None = field(default=None, kw_only=False)
    names: Mapping[str, str] | None = None
    prefix: str = ""
    postfix: str = ""
    name: str | None = None

    def __post_init__(self) -> None:
        given = [self.f, self.names, self.prefix or self.postfix or None, self.name]
        if sum(way is not None for way in given) != 1:
            raise ConfigError(
                "Rename needs one way", hint="`names={...}`, a function, `prefix`/`postfix`, or `name` for one column"
            )
        if self.f is not None and not callable(self.f):
            raise ConfigError(f"Rename needs a function of a name, not {self.f!r}", hint="names={...} for a mapping")

    def settled(self, columns: tuple[str, ...] | None) -> Rename:
        for name in self.names or ():
            if columns is not None and name not in columns:
                raise ColumnNotFoundError.of(name, columns, where="Rename (`names`)")
        return self if self.f is None else Rename(names={name: self._new(name) for name in columns or ()})

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        if self.name is not None and len(columns) != 1:
            raise ConfigError(f"Rename(name={self.name!r}) is for one column, not {', '.join(columns)}")
        renamed: dict[str, tuple[str, ...]] = {self._new(name): (name,) for name in columns}
        if len(renamed) != len(columns):
            raise ConfigError(f"Rename gives two of {', '.join(columns)} the same name")
        return renamed

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        kept = frame.select(pl.exclude(columns)).collect_schema().names()
        return frame.select(*kept, *(pl.col(name).alias(self._new(name)) for name in columns))

    def describe(self, inputs: Mapping[str, Column], outputs: Mapping[str, Column]) -> Mapping[str, Column]:
        return {new: replace(inputs[old], name=new) for new, (old,) in self.sources(tuple(inputs)).items()}

    def on_row(self, names: Group, columns: Mapping[str, Column]) -> OnRow:
        made = [(self._new(name), name) for name in names]
        return lambda values: {new: values[name] for new, name in made}

    def _new(self, name: str) -> str:
        if self.f is not None:
            new = self.f(name)
            if not isinstance(new, str):
                raise ConfigError(f"Rename's function gives {new!r} for `{name}`, which is no name")
            return new
        if self.name is not None:
            return self.name
        return f"{self.prefix}{name}{self.postfix}" if self.names is None else self.names.get(name, name)
