"""How popular items were, week by week, for people to look at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from falconet.recipe.config import ColumnsConfig
from falconet.recipe.times import date_of

_MOST = 150  # bars of a chart; of longer times each is of several weeks
_ITEMS = 6  # that are shown alone, the most popular ones
_WEEK = "__week__"


def by_week(rows: pl.LazyFrame, columns: ColumnsConfig, titles: Mapping[Any, str]) -> dict[str, Any] | None:
    """How many rows each week has, of all items and of the most popular ones; None where rows have no times.

    `titles`: by raw id. Weeks begin on Mondays, in UTC where times are numbers.
    """
    if columns.time is None or (date := date_of(rows, columns.time)) is None:
        return None
    item = columns.item
    rows = rows.select(item, date.dt.truncate("1w").alias(_WEEK)).drop_nulls()
    weeks = rows.group_by(_WEEK).len().sort(_WEEK).collect()
    if not len(weeks):
        return None
    first, last = weeks[_WEEK][0], weeks[_WEEK][-1]
    step = -(-((last - first).days // 7 + 1) // _MOST)
    bars = (last - first).days // 7 // step + 1
    best = rows.group_by(item).len().sort("len", item, descending=[True, False]).head(_ITEMS).collect()
    theirs = rows.filter(pl.col(item).is_in(best[item].implode())).group_by(item, _WEEK).len().collect()

    def counts(of: pl.DataFrame) -> list[int]:
        found = [0] * bars
        for week, n in of.select(_WEEK, "len").iter_rows():
            found[(week - first).days // 7 // step] += n
        return found

    return {
        "from": first.isoformat(),
        "weeks": step,
        "all": counts(weeks),
        "items": [
            {"title": titles.get(one, str(one)), "counts": counts(theirs.filter(pl.col(item) == one))}
            for one in best[item]
        ],
    }
