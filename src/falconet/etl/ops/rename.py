"""Rename: new names for columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from falconet.errors import ConfigError
from falconet.etl.op import OPS, FrameOp
from falconet.schema import Column


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class Rename(FrameOp):
    """New names: `names={"old": "new"}`, or a `prefix` and `postfix` for every column, or `name` for a single one.

    >>> Rename(postfix="_raw").sources(("age",))
    {'age_raw': ('age',)}
    """

    names: Mapping[str, str] | None = None
    prefix: str = ""
    postfix: str = ""
    name: str | None = None

    def __post_init__(self) -> None:
        given = [bool(self.names), bool(self.prefix or self.postfix), self.name is not None]
        if sum(given) != 1:
            raise ConfigError(
                "Rename needs one way", hint="`names={...}`, `prefix`/`postfix`, or `name` for one column"
            )

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

    def row(self, values: dict[str, Any], columns: Mapping[str, Column]) -> dict[str, Any]:
        return {self._new(name): value for name, value in values.items()}

    def _new(self, name: str) -> str:
        if self.name is not None:
            return self.name
        return self.names.get(name, name) if self.names else f"{self.prefix}{name}{self.postfix}"
