"""What every report has beside the models that are asked about: what is popular, and EASE."""

from __future__ import annotations

from pathlib import Path

from falconet.evaluation.cut import read_interactions
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


def ease(train: Path, users: Users, items: Items) -> Retrieval:
    """EASE of its own settings on a folder of rows.

    Raises ConfigError where the catalogue is too large for it, SchemaError where users have no history.
    """
    model = EASE.from_schema(Schema((*users.schema, *items.schema)))
    return Retrieval(model.fit(read_interactions(train)), items)
