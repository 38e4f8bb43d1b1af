"""What a recipe reads: interactions and items from raw files, checked, under the names used inside (names.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from falconet.errors import ColumnNotFoundError, DataError, SchemaError
from falconet.etl.dataset import Dataset
from falconet.etl.paths import find
from falconet.progress import note
from falconet.recipe.config import ColumnsConfig, DataConfig, FeatureConfig, Recipe
from falconet.recipe.names import inner_columns, item_names, user_names


@dataclass(frozen=True)
class RawData:
    """Interactions (user, item and, where there are any, time, rating and what the moment was like) and what is known
    of items and users.

    `columns` says what they are called here, and `context` what is made of the moment, by these names.
    """

    interactions: Dataset
    items: pl.DataFrame | None
    columns: ColumnsConfig
    users: pl.DataFrame | None = None
    context: tuple[FeatureConfig, ...] = ()


def read_data(recipe: Recipe, work: Path) -> RawData:
    """Open the raw files; MovieLens releases are converted to Parquet under `work/data` once.

    Rows without a user or an item are left out, with a note. Raises ColumnNotFoundError, SchemaError or DataError where
    a column is missing or of a type that cannot be what it should be, or where an item is there twice.
    """
    given = recipe.columns
    items: pl.DataFrame | None = None
    path = Path(recipe.data.path)
    if recipe.data.reader == "movielens":
        from falconet.datasets.movielens import convert

        folder = convert(path, work / "data")
        path, items = folder / "ratings", pl.read_parquet(folder / "movies.parquet")
    elif recipe.data.items is not None:
        items = Dataset(recipe.data.items, **_text(recipe.data, recipe.data.items)).collect()
    moment = recipe.prepare.context_columns
    interactions = _interactions(path, given, recipe.data, moment)
    inner = inner_columns(given)
    if items is not None:
        items = _items(items, given, interactions.schema[inner.item])
        names = item_names(items.columns, given, moment)
        items = _called(items, names, given.item, "items")
        if given.item_features is not None:
            inner = replace(inner, item_features=tuple(names.get(name, name) for name in given.item_features))
    users: pl.DataFrame | None = None
    if recipe.data.users is not None:
        users = Dataset(recipe.data.users, **_text(recipe.data, recipe.data.users)).collect()
        users = _one_each(users, given.user, interactions.schema[inner.user], "the table of users", "users")
        names = user_names(users.columns, given, [*moment, *([] if items is None else items.columns)])
        users = _called(users, names, given.user, "users")
        if given.user_features is not None:
            inner = replace(inner, user_features=tuple(names.get(name, name) for name in given.user_features))
    context = [
        replace(feature, columns=tuple(inner.time if n == given.time and inner.time else n for n in feature.columns))
        for feature in recipe.prepare.context
    ]
    return RawData(interactions, items, inner, users, tuple(context))


def _called(table: pl.DataFrame, names: Mapping[str, str], id_: str, whose: str) -> pl.DataFrame:
    """A table under the names used inside; a note says where people's own are not."""
    for name, other in names.items():
        if name not in (other, id_):
            note(f"the {whose}' column `{name}` is called `{other}` in what is made of it")
    return table.rename(dict(names))


def _text(data: DataConfig, path: str | Path) -> dict[str, Any]:
    """How the CSV files at a path are written, in the words of Dataset; of other files there is nothing to say."""
    if find(path, {})[0].kind(text=data.separator is not None) != "CSV":
        return {}
    return {
        "separator": data.separator,
        "encoding": data.encoding or "utf-8",
        "null_values": data.null_values,
    }


def _interactions(path: Path, given: ColumnsConfig, settings: DataConfig, moment: Sequence[str]) -> Dataset:
    """The columns a recipe reads, as they should be: the files themselves where nothing has to be changed."""
    names = [name for name in (given.user, given.item, given.time, given.rating) if name is not None]
    others = [name for name in moment if name not in names]
    names += others
    where = f"`{settings.path}`"
    text = _text(settings, path)
    try:
        if settings.names:
            columns, text["has_header"] = settings.names, False
            data = Dataset(path, columns=columns, dtypes=settings.dtypes, **text).select(names)
        else:
            data = Dataset(path, columns=names, dtypes=settings.dtypes, **text)
    except ColumnNotFoundError as error:
        for role in ("time", "rating"):
            if str(error.args[0]).endswith(f"no column `{getattr(given, role)}`"):
                hint = f'`columns.{role} = ""` says that there is none; {error.hint}'
                raise ColumnNotFoundError(error.args[0], hint=hint) from error
        if any(str(error.args[0]).endswith(f"no column `{name}`") for name in others):
            raise ColumnNotFoundError(f"{error.args[0]} (`prepare.context`)", hint=error.hint) from error
        raise
    inner = inner_columns(given)
    frame = data.scan()
    made = [
        _id(frame, given.user, where).alias(inner.user),
        _id(frame, given.item, where).alias(inner.item),
        *([] if given.time is None else [_time(frame, given.time, where).alias(inner.time or "")]),
        *([] if given.rating is None else [_rating(data.schema, given.rating, where).alias(inner.rating or "")]),
        *(_moment(data.schema, name) for name in others),
    ]
    try:
        known = pl.col(inner.user).is_not_null() & pl.col(inner.item).is_not_null()
        # The nulls are counted so that every column is looked at here, where an error can name them.
        nulls = pl.sum_horizontal(pl.all().null_count())
        lost = int(frame.select(made).select(lost=(~known).sum(), nulls=nulls).collect()["lost"][0])
        same = all(x.meta.is_column() and x.meta.output_name() == name for x, name in zip(made, names, strict=True))
        if same and not lost:
            return data
        if lost:
            note(f"{lost:,} of {data.rows:,} rows of {where} have no user or no item: left out")
        return Dataset(frame.select(made).filter(known))
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"the columns {', '.join(f'`{name}`' for name in names)} of {where} cannot be read: "
            + str(error).splitlines()[0],
            hint=given.time
            and "times are numbers, dates, or text like 2024-05-31 17:45:00, alike in all rows; of a CSV file also "
            f'text with a zone, like 2024-05-31T17:45:00Z: `data.dtypes.{given.time} = "timestamp[us, tz=UTC]"`',
        ) from error


def _id(frame: pl.LazyFrame, name: str, where: str) -> pl.Expr:
    """Strings and whole numbers. Whole numbers stored as floats, as pandas does beside a gap, are turned back."""
    column, dtype = pl.col(name), frame.collect_schema()[name]
    if dtype.is_integer() or dtype == pl.String:
        return column
    if isinstance(dtype, (pl.Categorical, pl.Enum)):
        return column.cast(pl.String)
    if dtype.is_float():
        number = column.fill_nan(None)
        if not frame.select((number == number.round()).all()).collect().item():
            raise SchemaError(
                f"column `{name}` of {where} has ids that are no whole numbers", hint="ids are whole numbers or strings"
            )
        return number.cast(pl.Int64)
    raise SchemaError(f"column `{name}` of {where} holds {dtype}", hint="ids are whole numbers or strings")


def _time(frame: pl.LazyFrame, name: str, where: str) -> pl.Expr:
    """Moments, dates, numbers and text of moments. Whole numbers stored as floats are turned back, as ids are."""
    column, dtype = pl.col(name), frame.collect_schema()[name]
    if dtype.is_float():
        number = column.fill_nan(None)
        whole = ((number == number.round()) & (number.abs() < 2.0**63)).all()
        return number.cast(pl.Int64) if frame.select(whole).collect().item() else number
    if dtype.is_integer() or isinstance(dtype, (pl.Date, pl.Datetime)):
        return column
    if dtype == pl.String:
        return column.str.to_datetime(time_unit="us")
    raise SchemaError(
        f"column `{name}` of {where} holds {dtype}", hint="times are numbers, dates, or text like 2024-05-31 17:45:00"
    )


def _moment(schema: pl.Schema, name: str) -> pl.Expr:
    """A column as it is, but for categories, which become strings, and numbers that are not finite: these are missing.

    Raises SchemaError for lists.
    """
    column, dtype = pl.col(name), schema[name]
    if isinstance(dtype, (pl.List, pl.Array)):
        raise SchemaError(
            f"`prepare.context` has `{name}`, which holds lists ({dtype})",
            hint="a request says one value for each column of the moment",
        )
    if isinstance(dtype, (pl.Categorical, pl.Enum)):
        return column.cast(pl.String)
    return pl.when(column.is_finite()).then(column) if dtype.is_float() else column


def _rating(schema: pl.Schema, name: str, where: str) -> pl.Expr:
    if not schema[name].is_numeric():
        raise SchemaError(
            f"column `{name}` of {where} holds {schema[name]}",
            hint='ratings are numbers; `columns.rating = ""` says that there are none',
        )
    return pl.col(name)


def _items(items: pl.DataFrame, given: ColumnsConfig, dtype: pl.DataType) -> pl.DataFrame:
    """One row per item, ids of the interactions' type, titles as text, categories as strings."""
    where = "the table of items"
    items = _one_each(items, given.item, dtype, where, "items")
    if given.title is not None and given.title not in items.columns:
        note(f"{where} has no column `{given.title}` (`columns.title`): items are shown by their ids")
    if given.title in items.columns and items[given.title].dtype != pl.String:
        items = items.with_columns(pl.col(given.title).cast(pl.String))
    return items


def _one_each(table: pl.DataFrame, name: str, dtype: pl.DataType, where: str, what: str) -> pl.DataFrame:
    """A table with one row per id, ids of the interactions' type, categories as strings."""
    if name not in table.columns:
        raise ColumnNotFoundError.of(name, table.columns, where=where)
    ids = table.lazy().select(_id(table.lazy(), name, where).cast(dtype, strict=False)).collect()[name]
    if len(ids) and ids.null_count() == len(ids):
        raise SchemaError(
            f"column `{name}` of {where} holds {table[name].dtype}, in the interactions it holds {dtype}",
            hint="ids of one kind are needed to find a row",
        )
    texts = pl.col(pl.Categorical, pl.Enum).cast(pl.String)
    table = table.with_columns(texts).with_columns(ids).drop_nulls(name)
    twice = table.filter(pl.col(name).is_duplicated())
    if len(twice):
        raise DataError(
            f"{where} has {twice[name].n_unique():,} {what} more than once, among them `{twice[name][0]}`",
            hint=f"one row per {what.removesuffix('s')} is needed",
        )
    return table
