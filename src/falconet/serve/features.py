"""The features of one request: what training saw of a person, bit for bit, and what has happened since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from falconet.batch import Batch, Feature, Ragged
from falconet.columns import tensor_type
from falconet.errors import DataError, SchemaError
from falconet.etl.online import Online
from falconet.etl.workflow import FittedWorkflow
from falconet.models.closed_form import SEEN
from falconet.schema import Column, Schema, Tag
from falconet.serve.events import Id
from falconet.serve.request import Value
from falconet.serve.tables import People

_STRANGER = 2  # the first out-of-vocabulary code (docs/contracts.md)


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
        self.reads_all = reads_all
        context = schema.select(Tag.CONTEXT)
        sequences = schema.select(Tag.SEQUENCE).columns
        self._histories = [c.name for c in sequences if c.table == item.table and Tag.CATEGORICAL in c.tags]
        self._others = [c for c in sequences if c.name not in self._histories]
        self._own = schema.without([*context.names, *(c.name for c in sequences)])
        for name in (*self._own.names, *(c.name for c in sequences)):
            if name not in people.features.features:
                raise SchemaError(f"the models need the user column `{name}`, users.parquet has none of that name")
        self._profile = workflow.prune(outputs=self._own.names).online() if len(self._own) else None
        self._context = workflow.prune(outputs=context.names).online() if len(context) else None
        self._context_schema = context

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
            codes: list[int] = column[person : person + 1].values.tolist()
            return codes
        return [code for code in column[person].tolist() if code != 0]  # 0 pads lists of one length

    def batch(
        self,
        person: int | None,
        user_id: Id | None,
        history: Sequence[int],
        context: Mapping[str, Value],
        seen: Sequence[int] | None = None,
    ) -> Batch:
        """One row. `person`: the row of users.parquet, None for a stranger; `history`: item codes, oldest first.

        `seen`: the codes of everything the person met, where that is more than the history.
        """
        features: dict[str, Feature] = {}
        if person is not None:
            known = self._people.features.features
            features |= {name: known[name][person : person + 1] for name in self._own.names}
            features |= {c.name: known[c.name][person : person + 1] for c in self._others}
        else:
            features |= self._stranger(user_id)
            features |= {c.name: _row(c, []) for c in self._others}
        if self._context is not None:
            features |= self._moment(self._context, context)
        features |= {name: _row(self.schema[name], list(history[-self.length :])) for name in self._histories}
        chosen = {name: features[name] for name in self.schema.names}
        if self.reads_all:
            chosen[SEEN] = Ragged.of([list(history if seen is None else seen)], dtype=torch.int64)
        return Batch(chosen, {}, 1, 1)

    def _moment(self, online: Online, context: Mapping[str, Value]) -> dict[str, Feature]:
        """The context columns of a moment; what a request does not say is missing."""
        raw = {name: context.get(name) for name in online.input_columns}
        try:
            values = online(raw)
            rows = {c.name: _row(c, values[c.name]) for c in self._context_schema}
        except (DataError, TypeError, ValueError, OverflowError, RuntimeError) as error:  # torch: a number too large
            reason = error.args[0] if isinstance(error, DataError) else error
            raise DataError(
                f"`context` {raw} cannot be used: {reason}", hint="values as in the training data"
            ) from error
        for name, row in rows.items():
            numbers = row.values if isinstance(row, Ragged) else row
            if not bool(torch.isfinite(numbers).all()):
                raise DataError(f"`context` {raw} makes `{name}` infinite", hint="values as in the training data")
        return rows

    def _stranger(self, user_id: Id | None) -> dict[str, Feature]:
        if self._profile is None:
            return {}
        fits = user_id is not None and isinstance(user_id, int) == self._people.ids.are_numbers
        raw = {name: user_id if fits and name == self._user else None for name in self._profile.input_columns}
        values = self._profile(raw)
        if not fits and self._user in self._own:
            values = {**values, self._user: _STRANGER}  # nobody at all, or an id that this data cannot have
        return {c.name: _row(c, values[c.name]) for c in self._own}


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
