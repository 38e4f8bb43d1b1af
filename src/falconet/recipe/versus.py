"""Two bundles asked for the same people, as a server asks them: which lists hold what these people did next?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import torch

from falconet.batch import Ragged
from falconet.evaluation.judge import difference_figure, mean_figure
from falconet.io.private import private_folder
from falconet.metrics.compare import difference
from falconet.metrics.ranking import RankingMetrics
from falconet.progress import aligned
from falconet.recipe.collect import AT
from falconet.recipe.config import ColumnsConfig
from falconet.serve.bundle import load_bundle
from falconet.serve.events import Event
from falconet.serve.recommender import Recommender
from falconet.serve.stores.sqlite import SqliteStore

_AT_ONCE = 1000  # events that are stored together


@dataclass(frozen=True)
class Versus:
    """`people`: how many were asked for. `models`: the figures of `old` and `new`; `apart`: new - old, by metric."""

    people: int
    k: int
    models: Mapping[str, Mapping[str, Any]]
    apart: Mapping[str, Any]

    @property
    def tells_nothing(self) -> bool:
        """Whether neither found an item that somebody took next: then they cannot be told apart."""
        return not any(one[f"recall@{self.k}"]["value"] for one in self.models.values())

    def falls_below(self, margin: float) -> bool:
        """Whether the new one's nDCG is below the old one's by more than this share of it; not where both are 0."""
        old, new = (self.models[name][f"ndcg@{self.k}"]["value"] for name in ("old", "new"))
        return bool(new < old * (1 - margin))


def versus(old: Path, new: Path, asked: pl.DataFrame, known: pl.DataFrame, columns: ColumnsConfig, k: int) -> Versus:
    """Ask both bundles for the people in `asked`, whose next item stands beside them, when `known` has happened.

    `known`: rows with `event_time`, as a server's store would have them.
    """
    folder = private_folder()
    asked, known = (_as_asked(rows, columns) for rows in (asked, known))
    people = asked.select(pl.col(columns.user).alias("user_id"))
    people.write_parquet(folder / "people.parquet")
    store = SqliteStore(folder / "events.db")
    try:
        theirs = known.join(asked.select(columns.user), on=columns.user, how="semi", maintain_order="left")
        rows = theirs.select(columns.user, columns.item, AT).rows()
        for start in range(0, len(rows), _AT_ONCE):
            some = enumerate(rows[start : start + _AT_ONCE], start)
            store.add_events(
                [Event(event_id=str(i), user_id=u, item_id=item, type="view", time=at) for i, (u, item, at) in some]
            )
        lists = {name: _lists(bundle, store, folder, name, k) for name, bundle in (("old", old), ("new", new))}
    finally:
        store.close()
    return _compared(lists, asked.select(pl.col(columns.user).alias("user_id"), item_id=pl.col(columns.item)), k)


def _as_asked(rows: pl.DataFrame, columns: ColumnsConfig) -> pl.DataFrame:
    """Ids as events and requests have them: what may not fit in 64 bits with a sign is a string of its digits."""
    large = [name for name in (columns.user, columns.item) if rows.schema[name] == pl.UInt64]
    return rows.cast(dict.fromkeys(large, pl.String))


def _lists(bundle: Path, store: SqliteStore, folder: Path, name: str, k: int) -> pl.DataFrame:
    found = Recommender(load_bundle(bundle), store).recommend_users(folder / "people.parquet", folder / name, k=k)
    return pl.read_parquet(sorted(found.glob("*.parquet")))


def _compared(lists: Mapping[str, pl.DataFrame], asked: pl.DataFrame, k: int) -> Versus:
    metrics = RankingMetrics((k,))
    names = (f"ndcg@{k}", f"recall@{k}")
    items = pl.concat([asked["item_id"].cast(pl.String), *(one["item_id"].cast(pl.String) for one in lists.values())])
    codes = items.unique().sort()
    code = {value: place for place, value in enumerate(codes)}
    relevant = Ragged.of([[code[str(item)]] for item in asked["item_id"]])
    values = {}
    for name, one in lists.items():
        by_user = dict(one.group_by("user_id").agg(pl.col("item_id").sort_by("rank")).iter_rows())
        top = torch.full((len(asked), k), -1, dtype=torch.int64)
        for row, user in enumerate(asked["user_id"]):
            found = [code[str(item)] for item in by_user.get(user, [])]
            top[row, : len(found)] = torch.tensor(found, dtype=torch.int64)
        values[name] = metrics.per_user(metrics.partial(top, relevant))
    models = {name: {metric: mean_figure(v[metric]) for metric in names} for name, v in values.items()}
    apart = {m: difference_figure(difference(values["new"][m], values["old"][m])) for m in names}
    return Versus(len(asked), k, models, apart)


def table_text(found: Versus, old: str, new: str) -> str:
    """The comparison for people."""
    if found.tells_nothing:
        return (
            f"neither {old} (old) nor {new} (new) has any of these items among its first {found.k}: "
            "nothing could be compared"
        )
    ndcg, recall = f"ndcg@{found.k}", f"recall@{found.k}"
    lines = [("", f"nDCG@{found.k}", "95 %", recall)]
    for title, one in ((f"{old} (old)", found.models["old"]), (f"{new} (new)", found.models["new"])):
        lines.append(
            (
                title,
                f"{one[ndcg]['value']:.4f}",
                f"{one[ndcg]['low']:.4f} to {one[ndcg]['high']:.4f}",
                f"{one[recall]['value']:.4f}",
            )
        )
    apart = found.apart
    lines.append(
        (
            "difference",
            f"{apart[ndcg]['value']:+.4f}",
            f"{apart[ndcg]['low']:+.4f} to {apart[ndcg]['high']:+.4f}",
            f"{apart[recall]['value']:+.4f}",
        )
    )
    return f"{aligned(lines)}\n\np = {apart[ndcg]['p']:.3f} that there is no difference"
