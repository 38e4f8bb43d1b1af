"""What a model is: built from a schema, one value per row, one loss per row.

A model file imports nn, schema, registry, batch, errors and this file alone; it trains, saves and places nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from falconet.arguments import explained
from falconet.batch import Batch, check_batch, feature_of
from falconet.config import with_types
from falconet.errors import ConfigError, SchemaError
from falconet.registry import Registry
from falconet.schema import Column, Schema, Tag

MODELS: Registry[Model] = Registry("model")
ITEM_ROWS = 8192  # items that go through a retriever at once


class Model(nn.Module):
    """A network with a name, settings and a schema.

    A subclass has a frozen, keyword-only `Config`, a constructor `(schema, config)`, `forward` and `loss`. `forward`
    reads no target, so a batch without one can be predicted; columns it does not know are left alone.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """The settings of a model without settings."""

    schema: Schema
    config: Any
    no_program: ClassVar[Mapping[str, str]] = {}  # methods that torch.export cannot trace, and why

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "Config" in cls.__dict__:
            with_types(cls.Config)

    def __init__(self, schema: Schema, config: Any) -> None:
        super().__init__()
        name = type(self).__name__
        if not isinstance(config, type(self).Config):
            kind = config if isinstance(config, type) else type(config)
            what = f"{kind.__module__}.{kind.__qualname__}{', not an object of it' * isinstance(config, type)}"
            raise ConfigError(f"{name} was given settings of type {what}", hint=f"{name}.Config(...)")
        if not isinstance(schema, Schema):
            raise ConfigError(
                f"{name} was given a {type(schema).__name__} as schema", hint=f"{name}.from_schema(loader.schema)"
            )
        self.schema = schema
        self.config = config

    @classmethod
    def from_schema(cls, schema: Schema, config: Any = None) -> Self:
        """A model whose structure follows from the columns and their tags. Without `config`: the defaults."""
        return cls(schema, cls.Config() if config is None else config)

    @classmethod
    def debug(cls) -> Any:
        """Settings of a size for tests: a step takes milliseconds."""
        return cls.Config()

    def __call__(self, batch: Batch, *args: Any, **kwargs: Any) -> Any:
        """`forward` of a batch, and nothing but a batch."""
        check_batch(batch)
        return super().__call__(batch, *args, **kwargs)

    def forward(self, batch: Batch) -> Tensor:
        """One value per row: [rows]."""
        raise NotImplementedError

    def loss(self, batch: Batch) -> Tensor:
        """One loss per row, not reduced and not weighted: [rows]."""
        raise NotImplementedError


# Not as a decorator, under which a type checker loses sight of `Self`.
Model.from_schema = classmethod(explained(Model.from_schema.__func__))  # type: ignore[assignment, attr-defined]


class Retriever(Model):
    """A model whose score is the product of a user's and an item's vector, so that an index can search it.

    Where items have a bias it is the last dimension: `user` ends in 1, `item` in the bias.
    """

    counts: Tensor

    def __init__(self, schema: Schema, config: Any) -> None:
        super().__init__(schema, config)
        self.item_column = one_id(schema, Tag.ITEM, type(self).__name__)
        assert self.item_column.cardinality is not None
        # No counts yet: Categorify's codes go from the most to the least frequent, so Zipf's law on them is the guess.
        self.register_buffer("counts", zipf_counts(self.item_column.cardinality))

    def set_counts(self, counts: Tensor) -> None:
        """Say how often each item code occurs in training: [cardinality], any number type."""
        if counts.shape != self.counts.shape:
            raise SchemaError(
                f"counts of {tuple(counts.shape)} do not fit `{self.item_column.name}`, "
                f"which has {len(self.counts)} codes",
                hint="one count per code, reserved codes included (theirs is 0)",
            )
        self.counts = counts.to(self.counts)

    def forward(self, batch: Batch) -> Tensor:
        """The score of each row's own item: [rows]."""
        return (self.user(batch) * self.item(batch)).sum(-1)

    def item_codes(self, batch: Batch) -> Tensor:
        """The code of each row's item: int64 of [rows]."""
        codes = feature_of(batch, self.item_column.name)
        if not isinstance(codes, Tensor):
            raise SchemaError(f"`{self.item_column.name}` holds lists where one code per row is needed")
        return codes.long()

    def user(self, batch: Batch) -> Tensor:
        """The users' vectors, from the user-side columns alone: [rows, D]."""
        raise NotImplementedError

    def item(self, batch: Batch) -> Tensor:
        """The items' vectors, from the item-side columns alone: [rows, D]."""
        raise NotImplementedError

    @torch.inference_mode()
    def vectors(self, items: Batch) -> Tensor:
        """The vectors of a whole catalogue, in its order, for an index: float32 of [rows, D]. Sets evaluation mode."""
        self.eval()
        blocks = [self.item(items[start : start + ITEM_ROWS]) for start in range(0, items.rows, ITEM_ROWS)]
        return torch.cat(blocks).float().contiguous()


def one_id(schema: Schema, side: Tag, who: str) -> Column:
    """The id column of one side, with its cardinality."""
    found = schema.select(side, Tag.ID, Tag.CATEGORICAL).without_tags(Tag.SEQUENCE)
    if len(found) != 1:
        names = ", ".join(found.names) or "none"
        raise SchemaError(
            f"{who} needs one categorical column tagged `{side}` and `{Tag.ID}`, the schema has {names}",
            hint=f'AddTags(tags=("{side}", "{Tag.ID}")) after Categorify',
        )
    column = found.columns[0]
    if column.cardinality is None:
        raise SchemaError(f"`{column.name}` has no cardinality", hint="`Categorify` sets it")
    return column


def history_of(schema: Schema, item: Column, who: str) -> Column:
    """The column that lists the items a user has taken, oldest first."""
    found = [c for c in schema.select(Tag.SEQUENCE, Tag.CATEGORICAL) if c.table == item.table]
    if len(found) != 1:
        raise SchemaError(
            f"{who} needs one column that lists items of `{item.name}`, the schema has "
            f"{', '.join(c.name for c in found) or 'none'}",
            hint="`ops.History` adds one, tagged `sequence`, of the item's domain",
        )
    return found[0]


def zipf_counts(cardinality: int) -> Tensor:
    """Counts that fall as 1 / (code + 1), down to about one for the last code: float32 of [cardinality]."""
    return cardinality / torch.arange(1, cardinality + 1, dtype=torch.float32)
