"""What columns are: names, types, tags, sizes. It travels in the Parquet footer; nobody repeats it by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from falconet.errors import ColumnNotFoundError, SchemaError, suggest
from falconet.progress import aligned

FORMAT = 1
FOOTER_KEY = b"falconet.schema"
SECONDS = "seconds_since_1970"  # a column of rows, without tags, which says when each was

List = None | str | int
"""None: a scalar. "ragged": lists of any length. A number: lists of that length."""


class Tag(StrEnum):
    """The closed set of tags; free strings are allowed beside them."""

    CATEGORICAL = "categorical"
    CONTINUOUS = "continuous"
    SEQUENCE = "sequence"
    TIME = "time"
    TEXT = "text"
    EMBEDDING = "embedding"
    ID = "id"
    USER = "user"
    ITEM = "item"
    SESSION = "session"
    CONTEXT = "context"
    TARGET = "target"
    BINARY = "binary"
    REGRESSION = "regression"
    MULTICLASS = "multiclass"
    WEIGHT = "weight"


_APART = (
    (Tag.CATEGORICAL, Tag.CONTINUOUS),
    (Tag.CATEGORICAL, Tag.EMBEDDING),
    (Tag.CONTINUOUS, Tag.ID),
    (Tag.EMBEDDING, Tag.ID),
)


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column. `dtype` is an Arrow type name ("int32", "float32", "string", ...), of the elements for lists."""

    name: str
    dtype: str
    list: List = None
    nullable: bool = True
    tags: frozenset[str] = frozenset()
    cardinality: int | None = None
    oov: int | None = None
    domain: str | None = None
    min: float | None = None
    max: float | None = None
    dim: int | None = None
    source: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "tags", frozenset(str(tag) for tag in self.tags))
        object.__setattr__(self, "source", tuple(self.source))
        for a, b in _APART:
            if {a, b} <= self.tags:
                raise SchemaError(f"column `{self.name}` cannot be both {a} and {b}")
        if not (self.list is None or self.list == "ragged" or (isinstance(self.list, int) and self.list > 0)):
            raise SchemaError(f'column `{self.name}`: list must be None, "ragged" or a length, not {self.list!r}')

    @property
    def is_list(self) -> bool:
        return self.list is not None

    @property
    def table(self) -> str:
        """The name of the embedding table: columns of one domain share it."""
        return self.domain or self.name

    @property
    def first_code(self) -> int:
        """The first code of a value: those below stand for padding, null, and (one or `oov` of them) unknown values."""
        return 2 + (self.oov or 1)

    def with_tags(self, *tags: str) -> Column:
        return replace(self, tags=self.tags | set(tags))

    def to_dict(self) -> dict[str, Any]:
        shape = {"length": self.list} if isinstance(self.list, int) else self.list
        return {
            "name": self.name,
            "dtype": self.dtype,
            "list": shape,
            "nullable": self.nullable,
            "tags": sorted(self.tags),
            "cardinality": self.cardinality,
            "oov": self.oov,
            "domain": self.domain,
            "min": self.min,
            "max": self.max,
            "dim": self.dim,
            "source": list(self.source),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Column:
        known = cls.__dataclass_fields__.keys()
        if unknown := set(data) - set(known):
            raise SchemaError(f"schema column has an unknown key `{min(unknown)}`", hint=suggest(min(unknown), known))
        fields = dict(data)
        if isinstance(fields.get("list"), Mapping):
            fields["list"] = fields["list"]["length"]
        return cls(**{**fields, "tags": frozenset(fields.get("tags", ())), "source": tuple(fields.get("source", ()))})


@dataclass(frozen=True)
class Schema:
    """An ordered set of columns with unique names.

    >>> schema = Schema((Column(name="age", dtype="int8"),))
    >>> schema["age"].dtype
    'int8'
    """

    columns: tuple[Column, ...] = ()
    _by_name: dict[str, Column] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        for column in self.columns:
            if column.name in self._by_name:
                raise SchemaError(f"schema has two columns `{column.name}`")
            self._by_name[column.name] = column

    def __str__(self) -> str:
        """A line per column: its name and type, its tags, and of codes how many there are and in which table."""
        lines = [("column", "type", "tags", "codes")]
        for c in self.columns:
            shape = "" if c.list is None else f"[{c.list if isinstance(c.list, int) else ''}]"
            codes = "" if c.cardinality is None else f"{c.cardinality:,}"
            if c.table != c.name:
                codes = f"{codes} of {c.table}".lstrip()
            lines.append((c.name, c.dtype + shape, " ".join(sorted(c.tags)), codes))
        return aligned(lines)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._by_name)

    def __getitem__(self, name: str) -> Column:
        if name not in self._by_name:
            raise ColumnNotFoundError.of(name, self._by_name, where="schema")
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def select(self, *tags: str) -> Schema:
        """The columns that carry all of `tags`."""
        wanted = {str(tag) for tag in tags}
        return Schema(tuple(c for c in self.columns if wanted <= c.tags))

    def without_tags(self, *tags: str) -> Schema:
        """The columns that carry none of `tags`."""
        unwanted = {str(tag) for tag in tags}
        return Schema(tuple(c for c in self.columns if not unwanted & c.tags))

    def only(self, names: Iterable[str]) -> Schema:
        """The named columns, in the order given."""
        return Schema(tuple(self[name] for name in names))

    def without(self, names: Iterable[str]) -> Schema:
        dropped = set(names)
        return Schema(tuple(c for c in self.columns if c.name not in dropped))

    def one(self, *tags: str) -> Column:
        """The only column that carries all of `tags`."""
        found = self.select(*tags)
        if len(found) != 1:
            wanted = " and ".join(f"`{tag}`" for tag in tags)
            names = ", ".join(found.names) or "none"
            raise SchemaError(f"one column tagged {wanted} is needed, the schema has {names}")
        return found.columns[0]

    def __add__(self, other: Schema) -> Schema:
        return Schema((*self.columns, *other.columns))

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, "columns": [c.to_dict() for c in self.columns]})

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str = "schema") -> Schema:
        try:
            data = json.loads(text)
            version, columns = data["format"], data["columns"]
        except (ValueError, KeyError, TypeError) as error:
            raise SchemaError(f"{where} is not a falconet schema: {error}") from error
        if version != FORMAT:
            raise SchemaError(f"{where} has schema format {version}, this version reads {FORMAT}")
        try:
            return cls(tuple(Column.from_dict(c) for c in columns))
        except (TypeError, KeyError) as error:
            raise SchemaError(f"{where} is not a falconet schema: {error}") from error


def embedding_width(cardinality: int) -> int:
    """NVTabular's rule: 1.6 · cardinality^0.56, at least 16, at most 512."""
    return min(512, max(16, round(1.6 * math.pow(cardinality, 0.56))))


def get_embedding_sizes(source: Any) -> dict[str, tuple[int, int]]:
    """Column name to (cardinality, width) for every categorical column of a Schema, or of anything with a `.schema`."""
    schema = source if isinstance(source, Schema) else source.schema
    sizes = {}
    for column in schema.select(Tag.CATEGORICAL):
        if column.cardinality is None:
            raise SchemaError(f"`{column.name}` has no cardinality", hint="`Categorify` sets it")
        sizes[column.name] = (column.cardinality, column.dim or embedding_width(column.cardinality))
    return sizes
