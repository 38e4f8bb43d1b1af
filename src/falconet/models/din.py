"""A history weighed by what the candidate is, then a multi-layer perceptron.

Zhou et al., "Deep interest network for click-through rate prediction", KDD 2018.

Shapes: B rows, V things of all histories together, D width of an embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from falconet.batch import Batch, feature_of
from falconet.errors import ConfigError, SchemaError
from falconet.models.base import MODELS
from falconet.models.ranker import Ranker, at_least, some
from falconet.nn.attention import CandidateAttention, flatten
from falconet.nn.inputs import Inputs, module_key
from falconet.nn.lookup import PADDING
from falconet.nn.mlp import MLP
from falconet.schema import Column, Schema, Tag


@MODELS.register()
class DIN(Ranker):
    """Histories weighed by how much each thing in them matters for the candidate, and a perceptron.

    A history is a column of lists tagged `sequence` whose domain is that of a column with one code per row, its
    candidate: the item, or an attribute of it. Each pair has an attention of its own, and one embedding table. An empty
    history gives zeros. Other columns stand beside, other lists as bags.
    """

    reads_history: ClassVar[bool] = True

    @dataclass(frozen=True, kw_only=True)
    class Config(Ranker.Config):
        dim: int = 16  # width of all embeddings
        attention: tuple[int, ...] = (80, 40)  # hidden layers of the activation unit
        softmax: bool = False  # weights of a history sum to one; the paper leaves them as they are
        hidden: tuple[int, ...] = (128, 64)

        def __post_init__(self) -> None:
            super().__post_init__()
            at_least(self, 1, "dim")
            some(self, "attention", "hidden")

    config: Config

    def __init__(self, schema: Schema, config: Config) -> None:
        super().__init__(schema, config)
        self.candidates = _candidates(self.columns)
        if both := {*self.candidates} & {*config.list_weights}:
            raise ConfigError(
                f"DIN list_weights: `{min(both)}` is a history, whose weights are learned", hint="leave it out"
            )
        self.inputs = Inputs(
            self.columns, config.dim, config.pooling, soft=config.soft_numbers, list_weights=config.list_weights
        )
        self.beside = tuple(name for name in self.inputs.tables.columns if name not in self.candidates)
        self.attention = nn.ModuleDict(
            {
                module_key("history", history): CandidateAttention(config.dim, config.attention, softmax=config.softmax)
                for history in self.candidates
            }
        )
        # A weighed history is as wide as its bag would be.
        self.layers = MLP(self.inputs.width, config.hidden, 1, dropout=config.dropout, batch_norm=config.batch_norm)

    @classmethod
    def debug(cls) -> Config:
        return cls.Config(dim=4, attention=(4,), hidden=(8,))

    def forward(self, batch: Batch) -> Tensor:
        interests = [
            self._interest(batch, attention, history, candidate)
            for attention, (history, candidate) in zip(self.attention.values(), self.candidates.items(), strict=True)
        ]
        result: Tensor = self.layers(torch.cat([*interests, self.inputs(batch, self.beside)], dim=1)).squeeze(1)
        return result

    def _interest(self, batch: Batch, attention: nn.Module, history: str, candidate: str) -> Tensor:
        ids_V, row_V = flatten(feature_of(batch, history))
        things_VD = self.inputs.tables.lookup(history, ids_V)
        candidate_BD = self.inputs.tables(batch, (candidate,))[candidate]
        interest_BD: Tensor = attention(things_VD, candidate_BD, row_V, ids_V != PADDING)
        return interest_BD


def _candidates(columns: Schema) -> dict[str, str]:
    """Every history's candidate, by name."""
    single = [c for c in columns.select(Tag.CATEGORICAL).without_tags(Tag.SEQUENCE) if not c.is_list]
    found = {}
    for history in sorted(columns.select(Tag.CATEGORICAL, Tag.SEQUENCE), key=lambda column: column.name):
        match = [c for c in single if c.table == history.table]
        if len(match) > 1:
            raise SchemaError(
                f"DIN: the history `{history.name}` could be weighed by `{match[0].name}` or `{match[1].name}`",
                hint="name the inputs in `columns`, with one of the two",
            )
        if match:
            _check(history)
            found[history.name] = match[0].name
    if not found:
        raise SchemaError(
            "DIN needs a list tagged `sequence` with the domain of a column that has one code per row",
            hint="`ops.History` makes one of the item's domain; `columns` must name both",
        )
    return found


def _check(history: Column) -> None:
    if not history.is_list:
        raise SchemaError(f"DIN: the history `{history.name}` holds no lists", hint="`ops.History` makes lists")
