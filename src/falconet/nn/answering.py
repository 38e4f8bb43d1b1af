"""Tables of a network that only answers: what they say of a catalogue's lists is made once.

Shapes: N rows of a catalogue, R rows of a batch, D width of a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from falconet.batch import Batch, Ragged, TakenRows, feature_of
from falconet.nn.embedding import Tables

_MOST = 2**22  # numbers that are kept of one column: those of larger catalogues are pooled anew each time


class AnsweringTables(Tables):
    """Tables that learn no more. Columns whose rows are taken from other lists, such as those of a catalogue, are
    pooled once for all of these: the same vectors, bit for bit."""

    @classmethod
    def of(cls, tables: Tables) -> AnsweringTables:
        """The same tables, in evaluation mode for good; they share their weights."""
        made = cls.__new__(cls)
        vars(made).update(vars(tables), _known={})
        made.read_each()
        return made.eval()

    _known: dict[str, tuple[Ragged, Tensor]]

    def forward(self, batch: Batch, columns: Sequence[str] | None = None) -> dict[str, Tensor]:
        names = tuple(self.columns) if columns is None else tuple(columns)
        known = {name: vectors_RD for name in names if (vectors_RD := self._taken(batch, name)) is not None}
        if not known:
            return super().forward(batch, columns)
        rest = [name for name in names if name not in known]
        found = super().forward(batch, rest) if rest else {}
        return {name: known[name] if name in known else found[name] for name in names}

    def _taken(self, batch: Batch, name: str) -> Tensor | None:
        """The vectors of a column whose rows are taken from lists that are pooled; None of others."""
        feature: Any = feature_of(batch, name)
        if not isinstance(feature, TakenRows) or name in self.list_weights:
            return None
        lists, vectors_ND = self._known.get(name, (None, None))
        if lists is not feature.lists:
            if len(feature.lists) * self.width_of(name) > _MOST:
                return None
            with torch.inference_mode():
                vectors_ND = self.lookup(name, feature.lists)
            self._known[name] = feature.lists, vectors_ND
        assert vectors_ND is not None
        return vectors_ND.index_select(0, feature.rows)
