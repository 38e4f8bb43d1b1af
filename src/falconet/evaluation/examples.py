"""Whom a report shows lists of, with titles: people of little, middling and much activity."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from falconet.evaluation.recommend import Recommends
from falconet.evaluation.tables import Items, Users
from falconet.io.footer import data_files, read_schema
from falconet.schema import Tag

PEOPLE = (1 / 6, 1 / 2, 5 / 6)  # places among the tested users in the order of what they have seen
LENGTH = 10  # of every list that is shown


class Examples:
    """A few tested users, and what every model shows them."""

    def __init__(self, catalogue: Path, table: Path, users: Users, tested: Tensor, items: Items, k: int) -> None:
        """`catalogue` and `table`: the folders of `items` and `users`, of whom the rows `tested` are tested."""
        order = torch.sort(users.seen.lengths[tested], stable=True).indices
        places = sorted({int(len(order) * place) for place in PEOPLE})
        self.rows = tested[order[places]] if len(order) else order
        self.users = users.take(self.rows)
        self.k = min(k, LENGTH)
        self.titles = _titles(catalogue, items)
        self.names = _column(table, "user_id")
        self.lists: dict[str, list[list[int]]] = {}

    def add(self, name: str, model: Recommends) -> None:
        """Keep what a model shows them."""
        if len(self.rows):
            self.lists[name] = model.search(self.users.features, self.k, self.users.seen)[1].tolist()

    def plain(self) -> list[dict[str, Any]]:
        """As they stand in a report: whether somebody took an item of a list is `taken`."""
        found = []
        for place, row in enumerate(self.rows.tolist()):
            seen, taken = (x[place : place + 1].values.tolist() for x in (self.users.seen, self.users.relevant))
            lists = {
                name: [{"title": self.titles[code], "taken": code in taken} for code in codes[place] if code >= 0]
                for name, codes in self.lists.items()
            }
            found.append(
                {
                    "user": str(row if self.names is None else self.names[row].as_py()),
                    "seen": len(seen),
                    "last": [self.titles[code] for code in seen[-LENGTH // 2 :][::-1]],
                    "test": len(taken) + int(self.users.unknown[place]),
                    "lists": lists,
                }
            )
        return found


def _titles(folder: Path, items: Items) -> Mapping[int, str]:
    """The title of every code, or the item's id, or the code."""
    code = items.schema.one(Tag.ITEM, Tag.ID).name
    for name in ("title", "item_id", code):
        values = _column(folder, name)
        if values is not None:
            return dict(zip(items.codes.tolist(), map(str, values.to_pylist()), strict=True))
    return {}


def _column(folder: Path, name: str) -> pa.ChunkedArray | None:
    if name not in read_schema(folder):
        return None
    tables = [pq.read_table(file, columns=[name], partitioning=None) for file in data_files(folder)]
    return pa.concat_tables(tables).column(name)
