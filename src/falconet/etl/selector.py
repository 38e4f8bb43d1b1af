"""What flows between operators: columns, and how they are put together. Nodes are immutable.

["a", "b"] >> op      then          a node shared by several outputs runs once
x + y, [x, y]         and           x - ["a"]  without          x["a"], x[["a", "b"]]  select
[["a", "b"], "c"]     a nested list is a column group: Categorify gives it one vocabulary; a column may be in several
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, TypeVar

from falconet.errors import ColumnNotFoundError, ConfigError
from falconet.etl.names import checked_names, flat, made_by, regroup, repeated, sources_of
from falconet.schema import Column

if TYPE_CHECKING:
    from falconet.etl.op import Op

Origin = tuple["Node | None", str]
"""Who makes a column, and under which name; None for a column of the data."""
Raw = Mapping[str, Column]
Answer = TypeVar("Answer")


def _kept(method: Callable[[Any, Raw | None], Answer]) -> Callable[[Any, Raw | None], Answer]:
    """A method of a node that keeps its last answers, without data and with it.

    A node is asked on each of the ways that lead to it, and their number may double with every operator.
    """
    key = f"_kept_{method.__name__}"

    @wraps(method)
    def answer(node: Any, raw: Raw | None) -> Answer:
        answers = node.__dict__.setdefault(key, {})
        kept: tuple[Raw | None, Answer] | None = answers.get(raw is None)
        if kept is None or kept[0] is not raw:
            kept = answers[raw is None] = (raw, method(node, raw))
        return kept[1]

    return answer


class Node(ABC):
    """Columns at some place of the graph."""

    @abstractmethod
    def trace(self, raw: Raw | None) -> dict[str, Origin] | None:
        """Its columns and who makes them. Without the data's columns: None where tags or "*" leave that open."""

    @abstractmethod
    def groups(self, raw: Raw | None) -> tuple[tuple[str, ...], ...]:
        """Its columns, those of a group together. Only where `trace` is not None."""

    @property
    @abstractmethod
    def lineage(self) -> tuple[Node, ...]:
        """The operators on the way here after which there may be other rows."""

    @cached_property
    def columns(self) -> tuple[str, ...] | None:
        """The names, where they are known without data."""
        found = self.trace(None)
        return None if found is None else tuple(found)

    def __rshift__(self, op: Op) -> Node:
        if isinstance(op, type):
            raise ConfigError(f"`>> {op.__name__}` is a class", hint=f"write `>> {op.__name__}(...)`")
        if not hasattr(op, "sources"):
            raise ConfigError(f"`>>` needs an operator, not {op!r}", hint="operators are in `falconet.ops`")
        return Applied(self, op)

    def __add__(self, other: Any) -> Node:
        return Joined.of(self, as_node(other))

    def __radd__(self, other: Any) -> Node:
        return Joined.of(as_node(other), self)

    def __sub__(self, names: str | Iterable[str]) -> Node:
        return Picked(self, checked_names(names), keep=False).checked()

    __iter__ = None  # `node[...]` selects by name, so a node is no sequence

    def __getitem__(self, names: str | Iterable[Any]) -> Node:
        return Picked(self, checked_names(names), keep=True).checked()


@dataclass(frozen=True)
class ColumnSelector(Node):
    """Columns of the data: by name, by any of some tags, or `"*"` for all.

    >>> ColumnSelector(["age", ["user", "friend"]]).columns
    ('age', 'user', 'friend')
    """

    names: Any = ()
    tags: Any = ()

    def __post_init__(self) -> None:
        every = self.names == "*" or (isinstance(self.names, (list, tuple)) and list(self.names) == ["*"])
        names = "*" if every else checked_names(self.names)
        tags = (self.tags,) if isinstance(self.tags, str) else tuple(self.tags)
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "tags", tuple(sorted(str(tag) for tag in tags)))
        if not names and not tags:
            raise ConfigError("a selection of no columns", hint='give names, `tags=`, or "*"')
        if names and tags:
            raise ConfigError("a selection by names and by tags", hint="add two selections: ColumnSelector + ...")
        for group in () if names == "*" else (names, *(name for name in names if not isinstance(name, str))):
            if twice := repeated(group):
                raise ConfigError(f"column `{twice}` is selected twice")

    def __str__(self) -> str:
        if self.tags:
            return f"columns tagged {' or '.join(self.tags)}"
        return "all columns" if self.names == "*" else str(list(self.names))

    @property
    def named(self) -> tuple[str, ...]:
        """The columns by name. Raises ConfigError where only the data says which they are."""
        if not self._is_known:
            raise ConfigError(f"which columns {self} are is not known without data", hint="give the Dataset")
        return tuple(flat(self.names))

    @_kept
    def trace(self, raw: Raw | None) -> dict[str, Origin] | None:
        found = self.groups(raw) if raw is not None or self._is_known else None
        return None if found is None else {name: (None, name) for group in found for name in group}

    @_kept
    def groups(self, raw: Raw | None) -> tuple[tuple[str, ...], ...]:
        if self._is_known:
            groups = tuple((name,) if isinstance(name, str) else name for name in self.names)
            for name in (n for group in groups for n in group if raw is not None and n not in raw):
                raise ColumnNotFoundError.of(name, raw or (), where="the data")
            return groups
        assert raw is not None
        names = [n for n, c in raw.items() if self.names == "*" or set(self.tags) & c.tags]
        if not names:
            raise ColumnNotFoundError(f"the data has no {self}", hint=f"it has {', '.join(raw)}")
        return tuple((name,) for name in names)

    @property
    def lineage(self) -> tuple[Node, ...]:
        return ()

    @property
    def _is_known(self) -> bool:
        return not self.tags and self.names != "*"


@dataclass(frozen=True, eq=False)
class Applied(Node):
    """Columns that passed through an operator."""

    input: Node
    op: Op

    def __str__(self) -> str:
        return f"{self.input} >> {self.op.title}"

    def __post_init__(self) -> None:
        if self.trace(None) is not None:  # an operator that does not fit its columns says so now
            getattr(self.op, "groups", list)(self.input.groups(None))
        self.op.settled(self.input.columns)
        for node in self.extras:
            if node.lineage != self.input.lineage[: len(node.lineage)]:
                raise ConfigError(
                    f"`{node}`, which `{type(self.op).__name__}` reads, and `{self.input}` may have different rows",
                    hint="put the operator that changes rows before the branches part",
                )
        self.beside(None, self.op.also)
        self.beside(None, self.learns)

    @_kept
    def trace(self, raw: Raw | None) -> dict[str, Origin] | None:
        found = self.input.trace(raw)
        if found is None:
            return None
        groups = self.input.groups(raw)
        made = made_by(self.op, groups)
        return {name: (self, name) if name in made else found[name] for name in sources_of(self.op, groups)}

    @_kept
    def groups(self, raw: Raw | None) -> tuple[tuple[str, ...], ...]:
        return regroup(self.input.groups(raw), self.trace(raw) or {})

    @cached_property
    def lineage(self) -> tuple[Node, ...]:
        return self.input.lineage if self.op.rows == "same" else (*self.input.lineage, self)

    @property
    def learns(self) -> tuple[Any, ...]:
        """What only the fit reads."""
        return getattr(self.op, "learns", ())

    @property
    def extras(self) -> tuple[Node, ...]:
        """The nodes that the operator reads beside its input."""
        return tuple(value for value in (*self.op.also, *self.learns) if isinstance(value, Node))

    def beside(self, raw: Raw | None, values: Iterable[Any]) -> dict[str, Origin]:
        """The columns that the operator reads beside its input: of these names and nodes, as far as they are known.

        A name is that of a selected column, or else of a column of the data.
        """
        selected = self.input.trace(raw)
        found: dict[str, Origin] = {}
        for value in values:
            if isinstance(value, Node):
                found |= value.trace(raw) or {}
            elif selected is not None and value in selected:
                found[value] = selected[value]
            else:
                self._check_raw(value, raw)
                found[value] = (None, value)
        for name, origin in found.items():
            if selected is not None and selected.get(name, origin) != origin:
                raise ConfigError(
                    f"`{type(self.op).__name__}` gets two columns `{name}`: one selected, one it reads beside it",
                    hint="`>> Rename(...)` one of them",
                )
        return found

    def _check_raw(self, name: str, raw: Raw | None) -> None:
        where = f"the data (which `{type(self.op).__name__}` reads)"
        if raw is not None and name not in raw:
            raise ColumnNotFoundError.of(name, raw, where=where)
        changed = [type(n.op).__name__ for n in self.input.lineage if isinstance(n, Applied) and n.op.rows == "other"]
        if changed:
            raise ConfigError(
                f"`{type(self.op).__name__}` reads `{name}` of the data, but after {changed[-1]} the rows are others",
                hint=f"select `{name}` too, so that it passes through",
            )


@dataclass(frozen=True, eq=False)
class Joined(Node):
    """The columns of several nodes side by side."""

    inputs: tuple[Node, ...]

    @classmethod
    def of(cls, *nodes: Node) -> Node:
        flat = [inner for node in nodes for inner in (node.inputs if isinstance(node, cls) else (node,))]
        node = cls(tuple(flat))
        node.lineage  # noqa: B018  both checks at once, where the user's line is
        node.trace(None)
        return node

    def __str__(self) -> str:
        return " + ".join(f"({node})" for node in self.inputs)

    @_kept
    def trace(self, raw: Raw | None) -> dict[str, Origin] | None:
        made: dict[str, tuple[Origin, Node]] = {}
        known = True
        for node in self.inputs:
            found = node.trace(raw)
            if found is None:
                known = False
                continue
            for name, origin in found.items():
                if name in made and made[name][0] != origin:
                    raise ConfigError(
                        f"both `{made[name][1]}` and `{node}` produce a column `{name}`",
                        hint="drop one with `- [...]`, or `>> Rename(...)` it",
                    )
                made.setdefault(name, (origin, node))
        return {name: origin for name, (origin, _) in made.items()} if known else None

    @_kept
    def groups(self, raw: Raw | None) -> tuple[tuple[str, ...], ...]:
        return tuple(dict.fromkeys(group for node in self.inputs for group in node.groups(raw)))

    @cached_property
    def lineage(self) -> tuple[Node, ...]:
        first = self.inputs[0]
        for node in self.inputs[1:]:
            if node.lineage != first.lineage:
                raise ConfigError(
                    f"`{first}` and `{node}` may have different rows and cannot stand side by side",
                    hint="put the operator that changes rows before the branches part",
                )
        return first.lineage


@dataclass(frozen=True, eq=False)
class Picked(Node):
    """Some of a node's columns, or all but some."""

    input: Node
    names: tuple[Any, ...]
    keep: bool

    def checked(self) -> Node:
        """Itself, once the names are known to be right."""
        self.trace(None)
        return self

    def __str__(self) -> str:
        return f"({self.input}){list(self.names)}" if self.keep else f"({self.input}) - {list(self.names)}"

    @_kept
    def trace(self, raw: Raw | None) -> dict[str, Origin] | None:
        found = self.input.trace(raw)
        if found is None:
            return None
        names = flat(self.names)
        for name in names:
            if name not in found:
                raise ColumnNotFoundError.of(name, found, where=f"`{self.input}`")
        kept = names if self.keep else [name for name in found if name not in names]
        if not kept:
            raise ConfigError(f"`{self}` leaves no columns")
        return {name: found[name] for name in kept}

    @_kept
    def groups(self, raw: Raw | None) -> tuple[tuple[str, ...], ...]:
        if self.keep and any(not isinstance(name, str) for name in self.names):
            return tuple((name,) if isinstance(name, str) else name for name in self.names)
        return regroup(self.input.groups(raw), self.trace(raw) or {})

    @cached_property
    def lineage(self) -> tuple[Node, ...]:
        return self.input.lineage


def as_node(value: Any) -> Node:
    """A node from what stands on the left of `>>`: a name, a list (nested: a group; nodes: side by side), a node."""
    if isinstance(value, Node):
        return value
    if isinstance(value, str):
        return ColumnSelector(value if value == "*" else [value])
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"columns are a name, a list of names or a node, not {value!r}")
    if not any(isinstance(x, Node) for x in value):
        return ColumnSelector(value)
    return Joined.of(*(x if isinstance(x, Node) else ColumnSelector([x]) for x in value))


def names_of(value: Any) -> tuple[str, ...]:
    """The column names of a name, a node, or a list of them."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Node):
        return tuple(name for one in value for name in names_of(one))
    if value.columns is None:
        raise ConfigError(f"the columns of `{value}` are not known without data", hint="name them")
    return value.columns
