"""What models that read a history in order have in common.

The state after t items, from none on, is what the next item is predicted from. A row with an item is one prediction:
of that item, from the last `length` items of the history. A row without is a whole sequence: every item of the history
is predicted from those before it. Where there are more than `length`, the history is read in pieces, which in training
are cut anew each time, so that what is old is learned from as well and no item always stands at the start of a piece.

Shapes: B rows, L places of the longest history, D width of a state, W pieces of all rows, P predictions of all pieces.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from falconet.batch import Batch, Feature, Ragged, as_ragged, feature_of
from falconet.errors import ConfigError
from falconet.models.base import Retriever, history_of
from falconet.nn.embedding import Tables
from falconet.nn.item_loss import ItemLoss, ItemLossConfig
from falconet.schema import Schema


class SequenceModel(Retriever):
    """A retriever whose user is the state after the last item of the history. One table serves input and output."""

    def __init__(self, schema: Schema, config: Any, *, dim: int, length: int, objective: ItemLossConfig) -> None:
        super().__init__(schema, config)
        if dim < 1 or length < 1:
            raise ConfigError(f"{type(self).__name__} dim={dim}, length={length}", hint="at least 1")
        self.history = history_of(schema, self.item_column, type(self).__name__).name
        self.length = length
        self.items = Tables([schema[self.history]], dim)
        self.start = nn.Parameter(torch.randn(dim) * 0.05)  # what stands before the first item
        self.objective = ItemLoss(objective, self.item_column.first_code, dim)

    def states(self, inputs_BLD: Tensor) -> Tensor:
        """From the start's vector and those of the items, in order, to the states after each: [B, L, D].

        A state must not depend on later places, some of which are filled up.
        """
        raise NotImplementedError

    def user(self, batch: Batch) -> Tensor:
        codes_BL, lengths_B = last(feature_of(batch, self.history), self.length)
        states_BLD = self._read(codes_BL)
        place_B1D = lengths_B.long()[:, None, None].expand(-1, 1, states_BLD.shape[2])
        return states_BLD.gather(1, place_B1D).squeeze(1).float()

    def item(self, batch: Batch) -> Tensor:
        return self._vectors(self.item_codes(batch))

    def loss(self, batch: Batch) -> Tensor:
        """Of a row with an item, of its prediction. Of one without, the sum over its items divided by `length`: so
        every item counts alike."""
        if self.item_column.name in batch.features:
            own: Tensor = self.objective(self.user(batch), self.item_codes(batch), self._vectors, self.counts)
            return own
        lists = as_ragged(feature_of(batch, self.history))
        whole = self.length + 1  # items of a piece: `length` are read, one more is predicted
        cut_B = torch.full_like(lists.lengths, self.length)
        if self.training:
            drawn_B = torch.randint(1, whole, cut_B.shape, device=cut_B.device)
            cut_B = torch.where(lists.lengths > whole, drawn_B, cut_B)
        cut, row_W, is_first_W = pieces(lists, self.length, cut_B)
        codes_WL, lengths_W = last(cut, whole)
        states_WLD = self._read(codes_WL[:, :-1])[:, : codes_WL.shape[1]]
        there_WL = torch.arange(codes_WL.shape[1], device=codes_WL.device) < lengths_W[:, None]
        there_WL[:, :1] &= is_first_W[:, None]  # elsewhere the piece before has predicted it
        losses_P = self.objective(states_WLD[there_WL], codes_WL[there_WL], self._vectors, self.counts)
        row_P = row_W[there_WL.nonzero()[:, 0]]
        return torch.zeros(batch.rows, device=losses_P.device).index_add(0, row_P, losses_P) / self.length

    def _read(self, codes_BL: Tensor) -> Tensor:
        """The states after 0, 1, ... items: [B, L + 1, D]."""
        start_B1D = self.start.expand(codes_BL.shape[0], 1, -1)
        return self.states(torch.cat([start_B1D, self._vectors(codes_BL)], dim=1))

    def _vectors(self, codes: Tensor) -> Tensor:
        return self.items.rows(self.history, codes)


def pieces(lists: Ragged, length: int, cut_B: Tensor) -> tuple[Ragged, Tensor, Tensor]:
    """Lists in pieces that each begin with the last item of the one before, and go on for up to `length` items more.

    The first one ends after `cut_B` + 1 items ([B], 1 to `length`). Every list has one piece at least. Gives the
    pieces, the rows that they come from [W], and which are a row's first [W].
    """
    n_B = lists.lengths
    further_B = torch.where(n_B - 2 >= cut_B, (n_B - 2 - cut_B) // length + 1, 0)
    row_W = torch.arange(len(n_B), device=n_B.device).repeat_interleave(further_B + 1)
    first_B = F.pad((further_B + 1).cumsum(0), (1, 0))[:-1]  # the place of each row's first piece
    number_W = torch.arange(len(row_W), device=n_B.device) - first_B[row_W]
    begin_W = torch.where(number_W > 0, cut_B[row_W] + (number_W - 1) * length, 0)
    end_W = torch.minimum(cut_B[row_W] + number_W * length + 1, n_B[row_W])
    offsets = F.pad((end_W - begin_W).cumsum(0), (1, 0))
    shift_W = lists.offsets[row_W] + begin_W - offsets[:-1]
    place_V = torch.arange(int(offsets[-1]), device=n_B.device)
    source_V = place_V + shift_W.repeat_interleave(end_W - begin_W)
    return Ragged(lists.values[source_V], offsets), row_W, number_W == 0


def last(history: Feature, length: int) -> tuple[Tensor, Tensor]:
    """The last `length` codes of each list from the first place on, filled up with 0: [B, L], and how many: [B].

    L is the longest of what is left; `length` in a program of torch.export, which can look at no value.
    """
    lists = as_ragged(history)
    lengths_B = lists.lengths.clamp(max=length)
    longest = length
    if not torch.compiler.is_exporting():
        longest = int(lengths_B.max()) if len(lengths_B) else 0
    place_L = torch.arange(longest, device=lengths_B.device)
    there_BL = place_L < lengths_B[:, None]
    source_BL = (lists.offsets[1:] - lengths_B)[:, None] + place_L
    codes_V = F.pad(lists.values.long(), (0, 1))  # a place to read from where there is none
    codes_BL = codes_V[source_BL.masked_fill(~there_BL, -1).long()]
    return codes_BL, lengths_B
