"""The two tables that evaluation and serving read beside the rows: one row per item, one row per user."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import polars as pl

from falconet.etl.dataset import Dataset
from falconet.etl.split import NUMBER
from falconet.etl.workflow import FittedWorkflow
from falconet.io.artifact import write_artifact
from falconet.recipe.config import ColumnsConfig, PrepareConfig
from falconet.schema import FOOTER_KEY, Column, Schema, Tag


def write_items(
    fitted: FittedWorkflow,
    train: Dataset,
    items: pl.DataFrame | None,
    columns: ColumnsConfig,
    out: str | Path,
    *,
    untrained: bool = False,
) -> None:
    """One row per item seen in training, by ascending code: code, raw id, title, attributes, features, counts.

    `train`: raw rows; `items`: what is known of items, shown to people, whether it is a feature or not. `untrained`:
    those of them that training has no row of as well.
    """
    counts = count_rows(train, columns.item)
    if untrained and items is not None:
        counts = pl.concat([counts, others_of(items, counts, columns.item).with_columns(count=pl.lit(0, pl.Int64))])
    side = fitted.prune(tags=[Tag.ITEM], without=["history"])
    raw = counts.select(columns.item)
    features = side.transform(raw)
    names = [name for name in features.columns if name != columns.item]
    frame = pl.concat([features, counts.rename({columns.item: "item_id"})], how="horizontal")
    shown: list[str] = []
    if items is not None:
        shown = [n for n in items.columns if n != columns.item]
        # Features keep their names; what people see of the same column is stored as `show_NAME`.
        show = items.rename({n: f"show_{n}" if n != columns.title else "title" for n in shown})
        frame = frame.join(show, left_on="item_id", right_on=columns.item, how="left", maintain_order="left")
        shown = [n for n in show.columns if n != columns.item]
    if "title" not in frame.columns:
        frame = frame.with_columns(title=pl.col("item_id").cast(pl.String))
        shown = ["title", *shown]
    frame = frame.with_columns(
        title=pl.col("title").fill_null(pl.col("item_id").cast(pl.String)),
        log_popularity=pl.col("count").cast(pl.Float64).log1p().cast(pl.Float32),
    ).sort(columns.item)
    popularity = Column(
        name="log_popularity", dtype="float32", nullable=False, tags=frozenset({Tag.ITEM, Tag.CONTINUOUS})
    )
    plain = [_plain(frame, name) for name in ("item_id", *shown, "count")]
    schema = Schema((side.schema[columns.item], *plain, *(side.schema[n] for n in names), popularity))
    write_table(frame, schema, out)


def count_rows(train: Dataset, item: str) -> pl.DataFrame:
    """Every item of some raw rows, and its `count` of them."""
    return train.scan().group_by(item).agg(pl.len().cast(pl.Int64).alias("count")).collect()


def others_of(items: pl.DataFrame, counted: pl.DataFrame, item: str) -> pl.DataFrame:
    """The ids of a table of items that are not among those counted, ascending."""
    return items.select(item).drop_nulls().unique().join(counted, on=item, how="anti").sort(item)


def write_users(
    fitted: FittedWorkflow, train: Dataset, test: Dataset | None, columns: ColumnsConfig, out: str | Path
) -> None:
    """One row per training user, by ascending code: code, raw id, features as known at the end, `seen`, `relevant`.

    `train` and `test` are raw rows; without a test nothing is relevant. The moment is that of a user's first test row.
    """
    frame = _people(fitted, train, test, columns)
    side = fitted.prune(tags=[Tag.USER])
    asked = {name: pl.lit(None, dtype=train.schema[name]) for name in side.input_columns if name != columns.user}
    features = side.transform(frame.select(pl.col(columns.user), **asked))
    _write_people(fitted, features, _moments(fitted, frame, train, test, columns), frame, columns, out)


def write_strangers(
    fitted: FittedWorkflow, known: Dataset, test: Dataset, columns: ColumnsConfig, prepare: PrepareConfig, out: Path
) -> None:
    """The same for users whom training does not know, in the order of their ids: histories are what is `known`.

    Items that training does not know are left out of `seen` and of histories.
    """
    frame = _people(fitted, known, test, columns, who="full")
    side = fitted.prune(tags=[Tag.USER])
    asked = {name: pl.lit(None, dtype=known.schema[name]) for name in side.input_columns if name != columns.user}
    features = side.transform(frame.select(pl.col(columns.user), **asked))
    if prepare.history != "none":
        order = pl.col("seen") if prepare.history == "earlier" else pl.col("seen_by_row")
        features = features.with_columns(frame.select(order.list.tail(prepare.max_items).alias("history")))
    _write_people(fitted, features, _moments(fitted, frame, known, test, columns), frame, columns, out)


def _people(
    fitted: FittedWorkflow,
    known: Dataset,
    test: Dataset | None,
    columns: ColumnsConfig,
    who: Literal["left", "full"] = "left",
) -> pl.DataFrame:
    """Raw id, `user_code`, `seen` by time and by row, `relevant`, `relevant_unknown`; in the order of codes and ids.

    `who`: everybody of whom something is known (`left`), or also those of whom only the test has rows (`full`).
    """
    user, item = columns.user, columns.item
    order = [name for name in (columns.time, NUMBER) if name is not None]
    codes = fitted.prune(outputs=[user, item])
    is_known = pl.col("item_code") >= fitted.schema[item].first_code

    def coded(data: Dataset) -> pl.DataFrame:
        rows = data.scan()
        numbered = rows if NUMBER in data.schema else rows.with_row_index(NUMBER)
        raw = numbered.select(user, item, *order).collect()
        both = codes.transform(raw.select(user, item))
        return pl.concat(
            [both.select(pl.col(user).alias("user_code"), pl.col(item).alias("item_code")), raw], how="horizontal"
        )

    seen = (
        coded(known)
        .sort(order)
        .group_by(user, maintain_order=True)
        .agg(
            pl.col("user_code").first(),
            seen=pl.col("item_code").filter(is_known),
            seen_by_row=pl.col("item_code").sort_by(NUMBER).filter(is_known.sort_by(NUMBER)),
        )
    )
    relevant = (
        (coded(known).head(0) if test is None else coded(test))
        .group_by(user, maintain_order=True)
        .agg(
            test_code=pl.col("user_code").first(),
            relevant=pl.col("item_code").filter(is_known),
            relevant_unknown=(~is_known).sum().cast(pl.Int32),
        )
    )
    frame = seen.join(relevant, on=user, how=who, coalesce=True, maintain_order="left").with_columns(
        pl.col("user_code").fill_null(pl.col("test_code")),
        pl.col("seen", "seen_by_row", "relevant").fill_null([]),
        pl.col("relevant_unknown").fill_null(0),
    )
    return frame.sort("user_code", user)


def _moments(
    fitted: FittedWorkflow, frame: pl.DataFrame, known: Dataset, test: Dataset | None, columns: ColumnsConfig
) -> pl.DataFrame:
    """The context columns of each person's first test row, in time; of nobody's, what a request that says nothing has.

    A number that is missing is 0, and what is true or false is false, as in a request.
    """
    if not fitted.schema.select(Tag.CONTEXT).columns:
        return pl.DataFrame()
    side = fitted.prune(tags=[Tag.CONTEXT])
    names = list(side.input_columns)
    rows = known.scan().head(0) if test is None else test.scan()
    order = [name for name in (columns.time, NUMBER) if name in rows.collect_schema()]
    first = rows.sort(order, maintain_order=True).group_by(columns.user, maintain_order=True).agg(pl.col(names).first())
    raw = frame.select(columns.user).lazy().join(first, on=columns.user, how="left", maintain_order="left")
    made = side.transform(raw.select(names).collect())
    return made.with_columns(pl.selectors.numeric().fill_null(0), pl.selectors.boolean().fill_null(False))


def _write_people(
    fitted: FittedWorkflow,
    features: pl.DataFrame,
    moments: pl.DataFrame,
    frame: pl.DataFrame,
    columns: ColumnsConfig,
    out: str | Path,
) -> None:
    user = columns.user
    side = fitted.prune(tags=[Tag.USER])
    names = [name for name in features.columns if name != user]
    frame = frame.rename({user: "user_id"}).drop("user_code", "test_code", "seen_by_row")
    codes_dtype = str(fitted.schema[columns.item].dtype)
    lists = [Column(name=n, dtype=codes_dtype, list="ragged", nullable=False) for n in ("seen", "relevant")]
    schema = Schema(
        (
            side.schema[user],
            _plain(frame, "user_id"),
            *(side.schema[n] for n in names),
            *(fitted.schema[n] for n in moments.columns),
            *lists,
            Column(name="relevant_unknown", dtype="int32", nullable=False),
        )
    )
    write_table(pl.concat([features, moments, frame], how="horizontal"), schema, out)


def write_table(frame: pl.DataFrame, schema: Schema, out: str | Path) -> None:
    """One frame as an artefact of one Parquet file, the schema in its footer."""
    with write_artifact(out, "features") as draft:
        frame.select(schema.names).write_parquet(
            draft.path / "part-00000.parquet", compression="lz4", metadata={FOOTER_KEY.decode(): schema.to_json()}
        )


def _plain(frame: pl.DataFrame, name: str) -> Column:
    """A column for people and look-ups, without tags."""
    arrow = frame.select(name).head(0).to_arrow().schema.field(0).type
    is_list = isinstance(frame[name].dtype, pl.List)
    inner = arrow.value_type if is_list else arrow
    dtype = (
        "string"
        if str(inner) in ("large_string", "string_view")
        else {"float": "float32", "double": "float64"}.get(str(inner), str(inner))
    )
    return Column(name=name, dtype=dtype, list="ragged" if is_list else None)
