"""What every report has beside the models that are asked about: what is popular, and EASE."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from falconet.batch import Batch, Ragged
from falconet.evaluation.cut import histories, read_interactions
from falconet.evaluation.recommend import Retrieval
from falconet.evaluation.tables import Items, Users
from falconet.models.ease import EASE
from falconet.models.popular import Popular
from falconet.schema import Schema


def popular(items: Items) -> Popular:
    """The most frequent items first."""
    model = Popular.from_schema(items.schema)
    model.set_counts(items.counts_by_code(len(model.counts)))
    return model


def ease(train: Path, users: Users, items: Items) -> SeenWhole:
    """EASE of its own settings on a folder of rows.

    Raises ConfigError where the catalogue is too large for it, SchemaError where users have no history.
    """
    model = EASE.from_schema(Schema((*users.schema, *items.schema)))
    return SeenWhole(model.fit(read_interactions(train)), items)


class SeenWhole(Retrieval):
    """A retriever whose users have everything that they have seen as their history, however short theirs are."""

    def search(self, users: Batch, k: int, exclude: Ragged | None = None) -> tuple[Tensor, Tensor]:
        if exclude is None:
            return super().search(users, k)
        names = [column.name for column in histories(self.retriever.schema, self.retriever.schema)]
        return super().search(replace(users, features={**users.features, **dict.fromkeys(names, exclude)}), k, exclude)
