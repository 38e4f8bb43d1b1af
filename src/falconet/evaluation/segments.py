"""Users by how much they have done, and items by how often they were taken: where a model is good, and where not.

Users: thirds by the number of items they had seen (users of one number in one third), and cold ones with at most COLD.
Items: the most popular ones that have a third of all training interactions (head), those that have the next (mid), and
the rest (tail), and cold ones with at most COLD interactions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from falconet.batch import Ragged
from falconet.evaluation.tables import Items, Users

COLD = 5
USER_SEGMENTS = ("low", "middle", "high", "cold")
ITEM_SEGMENTS = ("head", "mid", "tail", "cold")

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Segments:
    """Who is in which segment; a user or an item may be in a third and among the cold ones.

    `users`: one flag per tested user. `items`: one flag per code, of `codes` those that are items, ascending.
    """

    users: dict[str, Flags]
    items: dict[str, Tensor]
    codes: Tensor

    @classmethod
    def of(cls, users: Users, items: Items) -> Segments:
        return cls(_user_segments(users.seen.lengths.numpy()), _item_segments(items), items.codes)

    def relevant(self, segment: str, relevant: Ragged) -> Ragged:
        """The relevant items of every user that are in a segment."""
        inside = self.items[segment][relevant.values.long()]
        return Ragged(relevant.values[inside], F.pad(inside.long().cumsum(0), (1, 0))[relevant.offsets])

    def share(self, segment: str, shown_N: Tensor) -> float | None:
        """The share of all places in lists that a segment's items have. `shown_N`: in the order of `codes`."""
        whole = int(shown_N.sum())
        return int(shown_N[self.items[segment][self.codes]].sum()) / whole if whole else None

    def described(self, users: Users, items: Items) -> dict[str, Any]:
        """How large the segments are, for a report."""
        seen = users.seen.lengths.numpy()
        train = int(items.counts.sum())
        relevant = users.relevant.values.long()
        found: dict[str, Any] = {"users": {}, "items": {}}
        for name, flags in self.users.items():
            span = [int(seen[flags].min()), int(seen[flags].max())] if flags.any() else None
            found["users"][name] = {"users": int(flags.sum()), "seen": span}
        for name, inside in self.items.items():
            here = inside[self.codes]
            found["items"][name] = {
                "items": int(here.sum()),
                "train": int(items.counts[here].sum()) / train if train else None,
                "test": int(inside[relevant].sum()) / len(relevant) if len(relevant) else None,
            }
        return found


def _user_segments(seen: npt.NDArray[np.int64]) -> dict[str, Flags]:
    third = np.searchsorted(np.sort(seen), seen) * 3 // max(len(seen), 1)
    thirds = {name: third == place for place, name in enumerate(USER_SEGMENTS[:3])}
    return {**thirds, USER_SEGMENTS[3]: seen <= COLD}


def _item_segments(items: Items) -> dict[str, Tensor]:
    order = torch.sort(items.counts, descending=True, stable=True).indices
    counts = items.counts[order]
    before, whole = counts.cumsum(0) - counts, int(counts.sum())
    third = torch.full_like(order, 2)  # where nobody took anything, there is no head
    if whole:
        third[order] = (before * 3 // whole).clamp(max=2)
    cardinality = int(items.codes.max()) + 1 if len(items.codes) else 0

    def of(here: Tensor) -> Tensor:
        flags = torch.zeros(cardinality, dtype=torch.bool)
        flags[items.codes[here]] = True
        return flags

    thirds = {name: of(third == place) for place, name in enumerate(ITEM_SEGMENTS[:3])}
    return {**thirds, ITEM_SEGMENTS[3]: of(items.counts <= COLD)}
