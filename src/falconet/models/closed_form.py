"""What models that are computed from all interactions at once have in common: no gradient, no epochs, one `fit`.

Shapes: E interactions, U users, N codes of the catalogue, B rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from falconet.batch import Batch, Ragged, as_ragged, feature_of
from falconet.errors import DataError
from falconet.models.base import Retriever, history_of
from falconet.nn.loss import full_softmax
from falconet.schema import Schema

_SCORES = 2**24  # numbers
SEEN = "seen"  # a feature beside the columns of the schema: everything a user took, where a batch has it


@dataclass(frozen=True)
class Interactions:
    """Who took what in training: codes, int64 of [E] each. A pair that comes twice counts once, but for `counts`.

    `days`: when, in days since any moment, float64 of [E]; NaN where that is not known.
    """

    users: Tensor
    items: Tensor
    days: Tensor | None = None

    def __post_init__(self) -> None:
        if self.users.shape != self.items.shape or self.users.dim() != 1:
            raise DataError(f"{tuple(self.users.shape)} users took {tuple(self.items.shape)} items")
        if self.days is not None and self.days.shape != self.items.shape:
            raise DataError(f"{tuple(self.items.shape)} items were taken at {tuple(self.days.shape)} times")
        for name in ("users", "items"):
            codes = getattr(self, name)
            if len(codes) and int(codes.min()) < 0:
                raise DataError(f"the code {int(codes.min())} among the {name} of the interactions is negative")

    @classmethod
    def of_lists(cls, lists: Ragged) -> Interactions:
        """From the items of one user after the other."""
        return cls(lists.row_of_value(), lists.values.long())

    def counts(self, cardinality: int) -> Tensor:
        """How often every item was taken: int64 of [cardinality]. Raises DataError for a code beyond it."""
        if len(self.items) and int(self.items.max()) >= cardinality:
            raise DataError(f"an interaction has the item {int(self.items.max())}, there are {cardinality} codes")
        return torch.bincount(self.items, minlength=cardinality)

    def recent_counts(self, cardinality: int, half_life: float) -> Tensor:
        """The same where each counts half as much for every `half_life` days before the last one: float64.

        What is of an unknown time does not count. Raises DataError where all are, or there are no times.
        """
        known = torch.empty(0) if self.days is None else self.days.isfinite()
        if self.days is None or not known.any():
            raise DataError(
                "no time of an interaction is known, so none is recent",
                hint="`columns.time` of a recipe names their column: dates, times, or numbers that count since 1970; "
                "`Interactions(users, items, days)` has them",
            )
        days = self.days[known].double()
        weights = torch.exp2((days - days.max()) / half_life)
        counts = self.counts(cardinality).double().zero_()
        return counts.index_add_(0, self.items[known], weights)

    def by_user(self) -> Ragged:
        """The distinct items of each distinct user, both ascending."""
        return _grouped(self.users, self.items)

    def by_item(self, cardinality: int) -> Ragged:
        """The places in `by_user` of the distinct users of every item code, ascending: `cardinality` lists."""
        lists = self.by_user()
        order = lists.values.argsort(stable=True)
        lengths = torch.bincount(lists.values, minlength=cardinality)
        return Ragged(lists.row_of_value()[order], F.pad(lengths.cumsum(0), (1, 0)))


class ClosedForm(Retriever):
    """A model that `fit` computes from all interactions of training at once. Its weights are buffers.

    What it knows of a user is `seen` in the batch, everything the user took, or else the history, however short that
    was cut: strangers with a history are served like anybody else.
    """

    reads_history: ClassVar[bool] = True

    @property
    def reads_times(self) -> bool:
        """Whether `fit` needs to know when items were taken."""
        return False

    def __init__(self, schema: Schema, config: Any) -> None:
        super().__init__(schema, config)
        if self.reads_history:
            self.history = history_of(schema, self.item_column, type(self).__name__).name

    def fit(self, interactions: Interactions) -> Self:
        """Compute the weights, in place. Raises DataError where there is nothing to learn from."""
        if not len(interactions.items):
            raise DataError(f"{type(self).__name__} cannot be fitted: there are no interactions")
        self.set_counts(interactions.counts(len(self.counts)))
        self.solve(interactions)
        return self

    def solve(self, interactions: Interactions) -> None:
        """What `fit` does once the items are counted: nothing, where the counts are all."""

    def taken(self, batch: Batch) -> Ragged:
        """The distinct items that every row's user took, ascending."""
        history = as_ragged(feature_of(batch, SEEN if SEEN in batch.features else self.history))
        found = _grouped(history.row_of_value(), history.values.long())
        rows = torch.unique(history.row_of_value())
        lengths = torch.zeros(batch.rows, dtype=torch.int64, device=rows.device).index_copy_(0, rows, found.lengths)
        return Ragged(found.values, F.pad(lengths.cumsum(0), (1, 0)))

    def counted(self, batch: Batch) -> tuple[Ragged, Tensor | None]:
        """What every row's user took, and what each value counts; None: each counts 1, and no item comes twice.

        A program of torch.export cannot leave values out: there the first of equal ones counts 1, the others 0.
        """
        if not torch.compiler.is_exporting():
            return self.taken(batch), None
        lists = as_ragged(feature_of(batch, self.history))
        n, values_V = len(self.counts), lists.values.long()
        pair_V = lists.row_of_value() * n + values_V
        place_V = torch.arange(values_V.shape[0], device=values_V.device)
        first = torch.full((lists.offsets.shape[0] * n,), 2**62, device=values_V.device)
        first = first.scatter_reduce(0, pair_V, place_V, "amin")
        return Ragged(values_V, lists.offsets), (first[pair_V] == place_V).float()

    def scores(self, batch: Batch) -> Tensor:
        """The score of every item code for every row: [B, N]."""
        raise NotImplementedError

    def loss(self, batch: Batch) -> Tensor:
        """Cross entropy of each row's item among the whole catalogue: to compare, not to train."""
        return full_softmax(self.scores(batch), self.item_codes(batch), first=self.item_column.first_code)


class ItemScorer(ClosedForm):
    """A model without vectors, which scores the whole catalogue at once.

    It is a retriever all the same: a user's vector holds the scores of all item codes, an item's is 1 at its code and
    0 elsewhere. An index need not write these down (`retrieval.scores.ScoreIndex`).
    """

    def user(self, batch: Batch) -> Tensor:
        return self.scores(batch)

    def item(self, batch: Batch) -> Tensor:
        return F.one_hot(self.item_codes(batch), len(self.counts)).float()

    def pulls(self, taken_H: Tensor, codes_K: Tensor) -> Tensor:
        """What having taken each of H items adds to the scores of K others: [H, K]."""
        found = []
        for some in torch.split(taken_H.long(), max(_SCORES // len(self.counts), 1)):  # not all scores at once
            alone = Ragged(some, torch.arange(len(some) + 1))
            found.append(self.scores(Batch.of({self.history: alone}))[:, codes_K])
        return torch.cat(found)

    def forward(self, batch: Batch) -> Tensor:
        return self.scores(batch).gather(1, self.item_codes(batch)[:, None]).squeeze(1)


def total(lists: Ragged, weights_ND: Tensor, counts_V: Tensor | None = None) -> Tensor:
    """The sum over every list of the rows of its values, each times what the value counts: [B, D]."""
    return F.embedding_bag(
        lists.values, weights_ND, lists.offsets, mode="sum", include_last_offset=True, per_sample_weights=counts_V
    )


def _grouped(rows: Tensor, values: Tensor) -> Ragged:
    """The distinct values of every distinct row, both ascending."""
    width = int(values.max()) + 1 if len(values) else 1
    pairs = torch.unique(rows.long() * width + values)
    lengths = torch.unique_consecutive(pairs // width, return_counts=True)[1]
    return Ragged(pairs % width, F.pad(lengths.cumsum(0), (1, 0)))
