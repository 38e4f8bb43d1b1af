"""What rankers share: the columns they read, the targets they learn, the checks of their settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from falconet.batch import Batch, target_of
from falconet.errors import ColumnNotFoundError, ConfigError, SchemaError
from falconet.models.base import Model
from falconet.nn.loss import bce, mse
from falconet.nn.pooling import Pooling
from falconet.schema import Schema, Tag

Loss = Literal["bce", "mse"]
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"bce": bce, "mse": mse}


class Ranker(Model):
    """Gives every row a number to rank by: a logit with the loss "bce", the target itself with "mse".

    `columns`: what it reads. `target`: what it learns, None where the schema has none, as in a server. `reads_history`:
    whether it is made to read what a user has taken, so that its rows must have it.
    """

    reads_history: ClassVar[bool] = False

    @dataclass(frozen=True, kw_only=True)
    class Config:
        pooling: Pooling = "mean"  # how the vectors of a list become one
        list_weights: Mapping[str, str] = field(default_factory=dict)  # by column of lists: what its values count
        soft_numbers: int = 0  # vectors that a continuous column is a soft choice of; 0: it is a plain number
        dropout: float = 0.0
        batch_norm: bool = True  # in the multi-layer perceptrons
        loss: Loss | None = None  # None: "mse" for a target tagged `regression`, else "bce"
        columns: tuple[str, ...] | None = None  # the inputs; None: all categorical, continuous, embedding
        target: str | None = None  # None: the schema's only target

        def __post_init__(self) -> None:
            at_least(self, 0, "soft_numbers")
            if self.soft_numbers == 1:
                raise ConfigError(f"{_name(self)} soft_numbers=1 leaves nothing to choose", hint="0, or at least 2")
            if not 0 <= self.dropout < 1:
                raise ConfigError(f"{_name(self)} dropout={self.dropout}", hint="from 0 to below 1")

    config: Config

    def __init__(self, schema: Schema, config: Any) -> None:
        super().__init__(schema, config)
        self.target = self._choose_target(schema)
        self.columns = self._choose_columns(schema)

    def loss(self, batch: Batch) -> Tensor:
        if self.target is None:
            raise SchemaError(
                f"{type(self).__name__} cannot learn: the schema has no column tagged `target`",
                hint='AddTags(tags=("target",)) in the workflow',
            )
        loss = LOSSES[self.loss_of(self.target)]
        return where_known(loss, self(batch), target_of(batch, self.target))

    def start_at(self, mean: float) -> None:
        """Have training start from predictions around the target's mean, which it would else spend its first steps on,
        pulling other weights along: they are what the bias of the last layer says. A model without one is left alone.

        With the loss "bce" `mean` is a share above 0 and below 1.
        """
        assert self.target is not None
        layers = [m for m in self.output(self.target).modules() if isinstance(m, nn.Linear) and m.out_features == 1]
        is_share = self.loss_of(self.target) == "bce"
        if layers and layers[-1].bias is not None:
            nn.init.constant_(layers[-1].bias, math.log(mean / (1 - mean)) if is_share else mean)

    def output(self, target: str) -> nn.Module:
        """The part of the model whose last layer gives the prediction of a target, or adds to it."""
        return self

    def loss_of(self, target: str) -> Loss:
        """The loss of a target."""
        return self.config.loss or default_loss(self.schema, target)

    def part(self, setting: str, names: tuple[str, ...] | None) -> Schema:
        """The columns of a part of the model: those that a setting names, or all the model reads."""
        if names is None:
            return self.columns
        for name in names:
            if name not in self.columns:
                where = f"{type(self).__name__} {setting}={names}: the model"
                raise ColumnNotFoundError.of(name, self.columns.names, where=where)
        if not names:
            raise ConfigError(f"{type(self).__name__} {setting}=() reads no column", hint="leave it out for all")
        return self.columns.only(names)

    def _choose_target(self, schema: Schema) -> str | None:
        targets, wanted = schema.select(Tag.TARGET).names, self.config.target
        if wanted is not None:
            if wanted not in targets:
                raise ColumnNotFoundError.of(wanted, targets, where="the schema's targets")
            return wanted
        if len(targets) > 1:
            raise SchemaError(
                f"{type(self).__name__} learns one target, the schema has {', '.join(targets)}",
                hint="set `target` to one, or take a model of several tasks, such as MMoE",
            )
        return targets[0] if targets else None

    def _choose_columns(self, schema: Schema) -> Schema:
        """The categorical, continuous and `embedding` columns of the settings, or all there are."""
        who, wanted = type(self).__name__, self.config.columns
        _check_weights(schema, self.config.list_weights, who)
        known = schema.without_tags(Tag.TARGET, Tag.WEIGHT).without(self.config.list_weights.values())
        for name in wanted or ():
            if name not in known:
                raise ColumnNotFoundError.of(name, known.names, where=f"{who} columns={list(wanted or ())}: the data")
        chosen = known if wanted is None else known.only(wanted)
        columns = Schema(tuple(c for c in chosen if {Tag.CATEGORICAL, Tag.CONTINUOUS, Tag.EMBEDDING} & c.tags))
        if wanted is not None and len(columns) < len(chosen):
            odd = next(c.name for c in chosen if c.name not in columns)
            raise SchemaError(
                f"{who} cannot read `{odd}`, which is neither categorical nor continuous nor an embedding",
                hint="tag it in the workflow",
            )
        if not len(columns):
            raise SchemaError(
                f"{who} needs a categorical or continuous column, the schema has none",
                hint=f"it has {', '.join(schema.names) or 'no columns'}",
            )
        return columns


def _check_weights(schema: Schema, list_weights: Mapping[str, str], who: str) -> None:
    """Raise where a column of lists, or that of its weights, is not there or not what it should be."""
    for name, weights in list_weights.items():
        for column in (name, weights):
            if column not in schema:
                raise ColumnNotFoundError.of(column, schema.names, where=f"{who} list_weights: the data")
        if not schema[name].is_list or Tag.CATEGORICAL not in schema[name].tags:
            raise SchemaError(f"{who} list_weights: `{name}` holds no lists of codes", hint="a multi-hot column")
        if schema[weights].list != schema[name].list or not schema[weights].dtype.startswith(("float", "int", "uint")):
            raise SchemaError(
                f"{who} list_weights: `{weights}` holds no lists of numbers such as `{name}` has of codes",
                hint="in every row as many weights as values",
            )


def default_loss(schema: Schema, target: str) -> Loss:
    """The loss that a target's tags ask for."""
    return "mse" if Tag.REGRESSION in schema[target].tags else "bce"


def where_known(loss: Callable[[Tensor, Tensor], Tensor], prediction_B: Tensor, target_B: Tensor) -> Tensor:
    """The losses of the rows; 0 where the target is NaN, that is not known: [B]."""
    known_B = ~target_B.isnan()
    # A NaN must not reach the loss, whose gradient would be NaN even where it is left out.
    return loss(prediction_B, target_B.where(known_B, 0.0)).where(known_B, 0.0)


def at_least(config: object, low: int, *names: str) -> None:
    """Refuse settings below `low`: numbers, all numbers of a tuple; None is no number.

    Raises ConfigError that names model and setting.
    """
    for name in names:
        value = getattr(config, name)
        if any(number is not None and number < low for number in (value if isinstance(value, tuple) else (value,))):
            raise ConfigError(f"{_name(config)} {name}={value}", hint=f"at least {low}")


def some(config: object, *names: str) -> None:
    """Refuse empty tuples, and numbers below one in them."""
    for name in names:
        if not getattr(config, name):
            raise ConfigError(f"{_name(config)} {name}=() has no layer", hint="at least one width")
    at_least(config, 1, *names)


def _name(config: object) -> str:
    """The model that settings belong to."""
    return type(config).__qualname__.removesuffix(".Config").rpartition(".")[2]
