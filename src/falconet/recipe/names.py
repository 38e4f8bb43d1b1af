"""Names inside the working folder: a raw column that is called like one of ours gets another name there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from falconet.recipe.config import ColumnsConfig
from falconet.schema import SECONDS

ROW = "row"  # the number of a row in the raw data, which orders ties in time

# Names that docs/contracts.md gives to columns of the tables the raw columns end up in.
TAKEN = frozenset(
    {
        *(ROW, SECONDS, "split", "history"),
        *("item_id", "title", "count", "log_popularity"),
        *("user_id", "seen", "relevant", "relevant_unknown", "user_code", "item_code"),
        *(
            "group",
            "taken",
            "weight",
            "history_length",
            "retriever_score",
            "retriever_share",
            "retriever_standing",
            "retriever_rank",
        ),
    }
)


def is_taken(name: str) -> bool:
    return name in TAKEN or name.startswith(("show_", "__")) or name.endswith("_affinity")


def inner_columns(columns: ColumnsConfig) -> ColumnsConfig:
    """What the user's columns are called from `work/split` on: as in the raw files, or else by their role."""
    given = (columns.user, columns.item, columns.time, columns.rating)
    used = {name for name in given if name is not None and not is_taken(name)}

    def inner(role: str, name: str) -> str:
        return _free(role, used) if is_taken(name) else name

    return replace(
        columns,
        user=inner("user", columns.user),
        item=inner("item", columns.item),
        time=columns.time and inner("time", columns.time),
        rating=columns.rating and inner("rating", columns.rating),
    )


def item_names(names: Iterable[str], columns: ColumnsConfig, taken: Iterable[str] = ()) -> dict[str, str]:
    """From the items' column names to those inside. `columns`: the raw ones; `taken`: names that others have there."""
    inner = inner_columns(columns)
    known = {columns.item: inner.item}
    if columns.title is not None:
        known[columns.title] = columns.title
    return _renamed(list(names), known, "item", _roles(inner) | set(taken))


def user_names(names: Iterable[str], columns: ColumnsConfig, taken: Iterable[str]) -> dict[str, str]:
    """The same of the users' columns."""
    inner = inner_columns(columns)
    return _renamed(list(names), {columns.user: inner.user}, "user", _roles(inner) | set(taken))


def _roles(inner: ColumnsConfig) -> set[str]:
    return {name for name in (inner.user, inner.item, inner.time, inner.rating) if name is not None}


def _renamed(names: list[str], known: dict[str, str], side: str, taken: set[str]) -> dict[str, str]:
    """The names of `known`, and for the others their own, unless those are taken."""
    found, used = dict(known), taken | set(names)
    for name in names:
        if name not in found:
            found[name] = _free(f"{side}_{name}", used) if is_taken(name) or name in taken else name
    return {name: found[name] for name in names}


def _free(name: str, used: set[str]) -> str:
    """The name, or one like it that is in no use yet; from now on it is."""
    while name in used or is_taken(name):
        name += "_"
    used.add(name)
    return name
