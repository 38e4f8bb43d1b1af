"""The features of one request: what training saw of a person, bit for bit, and what has happened since."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import polars as pl
import torch
from torch import Tensor

from falconet.batch import Batch, Feature, Ragged
from falconet.columns import tensor_type
from falconet.errors import DataError, SchemaError
from falconet.etl.online import Online
from falconet.etl.rejoin import joined_table, without_joins
from falconet.etl.workflow import FittedWorkflow
from falconet.models.closed_form import SEEN
from falconet.schema import Column, Schema, Tag
from falconet.serve.events import Id
from falconet.serve.moment import Moment, clocks_of, moment_of
from falconet.serve.request import Value
from falconet.serve.said import as_values, fits
from falconet.serve.tables import UNKNOWN, People

_AS_IN_TRAINING = "values as in the training data"


class RequestFeatures:
    """Makes the one-row batch of a request: exactly the columns of `schema` (the models' user side).

    A person known to training has the row of users.parquet; a stranger the row the workflow gives for an unknown user.
    The history is replaced by the codes given, the last `length` of them; context columns come from the workflow. With
    `reads_all` there is a column `seen` too, of everything the person met (models/closed_form.py).
    """

    def __init__(
        self,
        *,
        schema: Schema,
        people: People,
        workflow: FittedWorkflow,
        user: str,
        item: Column,
        length: int,
        reads_all: bool = False,
    ) -> None:
        self.schema, self._people, self._user, self.length = schema, people, user, length
        self._codes = item.cardinality or 2**63  # those from there on are of items that no model knows
        self.reads_all = reads_all
        context = schema.select(Tag.CONTEXT)
        sequences = schema.select(Tag.SEQUENCE).columns
        self._histories = [c.name for c in sequences if c.table == item.table and Tag.CATEGORICAL in c.tags]
        self._others = [c for c in sequences if c.name not in self._histories]
        self._own = schema.without([*context.names, *(c.name for c in sequences)])
        for name in (*self._own.names, *(c.name for c in sequences)):
            if name not in people.features.features:
                raise SchemaError(f"the models need the user column `{name}`, users.parquet has none of that name")
        side = workflow.prune(outputs=self._own.names) if len(self._own) else None
        self._profile = None if side is None else side.online()
        self._known = None if side is None else joined_table(side, user)
        self._given: Online | None = None
        if side is not None and self._known is not None:
            try:
                self._given = without_joins(side, user).online()
            except SchemaError:  # a table's column and one of the moment have one name: which would be meant?
                self._known = None
        self._moments = workflow.prune(outputs=context.names) if len(context) else None
        self._context = None if self._moments is None else self._moments.online()
        self._context_schema = context
        self._clocks = {} if self._moments is None else clocks_of(self._moments)

    @property
    def uses_history(self) -> bool:
        """Whether the models look at a history at all."""
        return bool(self._histories)

    def history(self, person: int) -> list[int]:
        """The codes of what a person known to training met last, oldest first."""
        if not self._histories:
            return []
        column = self._people.features.features[self._histories[0]]
        if isinstance(column, Ragged):
            start, end = column.offsets.numpy()[person : person + 2]
            codes: list[int] = column.values.numpy()[start:end].tolist()
            return codes
        return [code for code in column[person].tolist() if code != 0]  # 0 pads lists of one length

    def batch(
        self,
        person: int | None,
        user_id: Id | None,
        history: Sequence[int],
        context: Mapping[str, Value],
        seen: Sequence[int] | None = None,
        profile: Mapping[str, Any] | None = None,
    ) -> Batch:
        """One row. `person`: the row of users.parquet, None for a stranger; `history`: item codes, oldest first.

        `seen`: the codes of everything the person met, where that is more than the history. `profile`: what was said of
        the person, in place of what training knew.
        """
        features: dict[str, Feature] = {}
        history = [code for code in history if code < self._codes]
        if profile and self._given is not None:
            features |= self._as_said(self._given, user_id, profile)
        elif person is not None:
            theirs = self._people.features.features
            features |= {name: theirs[name][person : person + 1] for name in self._own.names}
        else:
            features |= self._stranger(user_id)
        for c in self._others:
            lists = self._people.features.features[c.name]
            features[c.name] = _row(c, []) if person is None else lists[person : person + 1]
        if self._context is not None:
            features |= self._moment(self._context, context)
        features |= {name: _row(self.schema[name], list(history[-self.length :])) for name in self._histories}
        chosen = {name: features[name] for name in self.schema.names}
        if self.reads_all:
            met = history if seen is None else [code for code in seen if code < self._codes]
            chosen[SEEN] = Ragged.of([list(met)], dtype=torch.int64)
        return Batch(chosen, {}, 1, 1)

    def at(self, context: Mapping[str, Value], now: dt.datetime) -> Mapping[str, Value]:
        """What is said of the moment, the times that are not said being `now`. None says that a time is missing."""
        return {**dict.fromkeys(self._clocks, now.isoformat()), **context} if self._clocks else context

    def _moment(self, online: Online, context: Mapping[str, Value]) -> dict[str, Feature]:
        """The context columns of a moment; what a request does not say is missing."""
        raw: dict[str, Any] = {name: context.get(name) for name in online.input_columns}
        try:
            times = {n: clock.read(raw[n]) for n, clock in self._clocks.items() if isinstance(raw[n], str)}
            values = online(raw | times)
            rows = {c.name: _row(c, values[c.name]) for c in self._context_schema}
        except (DataError, TypeError, ValueError, OverflowError, RuntimeError) as error:  # torch: a number too large
            reason = error.args[0] if isinstance(error, DataError) else error
            raise DataError(f"`context` {raw} cannot be used: {reason}", hint=_AS_IN_TRAINING) from error
        for name, row in rows.items():
            if not _is_finite(row):
                raise DataError(f"`context` {raw} makes `{name}` infinite", hint=_AS_IN_TRAINING)
        return rows

    @cached_property
    def moments(self) -> list[Moment]:
        """What a request may say of the moment: the raw columns that models read something of."""
        side = self._moments
        return [] if side is None else [moment_of(side, name) for name in side.input_columns]

    @property
    def columns(self) -> dict[str, pl.DataType]:
        """What may be said of a user, and of which type it is; empty where no model reads any of it."""
        return {} if self._known is None else {n: t for n, t in self._known.schema.items() if n != self._user}

    def check_profile(self, user_id: Id, profile: Mapping[str, Any]) -> None:
        """Raise DataError where what is said of a user becomes a number that is not finite."""
        said = {} if self._given is None else self._as_said(self._given, user_id, profile)
        for name, row in said.items():
            if not _is_finite(row):
                raise DataError(f"`profile` {dict(profile)} makes `{name}` infinite", hint=_AS_IN_TRAINING)

    def _as_said(self, online: Online, user_id: Id | None, profile: Mapping[str, Any]) -> dict[str, Feature]:
        """The person's columns, where what is said of them stands in place of what training knew."""
        assert self._known is not None
        row = self._known_rows.get(user_id, {})
        said = {
            name: as_values([value], self.columns[name])[0]
            for name, value in profile.items()
            if name in self.columns and fits(value, self.columns[name])  # else it was said to another bundle
        }
        said = {name: value.to_list() if isinstance(value, pl.Series) else value for name, value in said.items()}
        usual = user_id is not None and isinstance(user_id, int) == self._people.ids.are_numbers
        raw = {**dict.fromkeys(online.input_columns), **row, **said, self._user: user_id if usual else None}
        values = online(raw)
        if not usual and self._user in self._own:
            values = {**values, self._user: UNKNOWN}
        return {c.name: _row(c, values[c.name]) for c in self._own}

    @cached_property
    def _known_rows(self) -> dict[Any, dict[str, Any]]:
        """What training knew of users, by their raw ids."""
        assert self._known is not None
        return {row.pop(self._user): row for row in self._known.to_dicts()}

    def _stranger(self, user_id: Id | None) -> dict[str, Feature]:
        if self._profile is None:
            return {}
        fits = user_id is not None and isinstance(user_id, int) == self._people.ids.are_numbers
        raw = {name: user_id if fits and name == self._user else None for name in self._profile.input_columns}
        values = self._profile(raw)
        if not fits and self._user in self._own:
            values = {**values, self._user: UNKNOWN}  # nobody at all, or an id that this data cannot have
        return {c.name: _row(c, values[c.name]) for c in self._own}


def _is_finite(row: Feature) -> bool:
    return bool(torch.isfinite(row.values if isinstance(row, Ragged) else row).all())


def _row(column: Column, value: Any) -> Feature:
    """One row of a column from a plain value; lists of one length are padded with 0 at the end.

    A number that is missing is 0: a person of whom it is unknown gets an answer all the same.
    """
    dtype = tensor_type(column)
    assert dtype is not None, "a model's columns are numbers"
    if column.list is None:
        return torch.tensor([0 if value is None else value], dtype=dtype)
    values = list(value or [])
    if isinstance(column.list, int):
        cut = values[-column.list :]
        row: Tensor = torch.zeros(1, column.list, dtype=dtype)
        row[0, : len(cut)] = torch.tensor(cut, dtype=dtype)
        return row
    return Ragged.of([values], dtype=dtype)
