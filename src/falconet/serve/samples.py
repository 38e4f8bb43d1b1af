"""People and items picked to try a recommender with. Shapes: N items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from falconet.serve.events import Id
from falconet.serve.nearness import Nearness
from falconet.serve.tables import Catalogue, People


@dataclass(frozen=True)
class Sample:
    """A person worth trying: `kind` is heavy, typical, light or niche; `items` how many items they met in training."""

    user_id: Id
    kind: str
    items: int


def sample_people(people: People, catalogue: Catalogue, each: int = 2) -> list[Sample]:
    """Up to `each` people of each kind, nobody twice. Niche: a typical amount or more, of the least popular items."""
    counts = people.counts()
    if not len(counts):
        return []
    order = np.argsort(-counts, kind="stable")
    middle = len(order) // 2
    popularity = np.zeros(int(catalogue.codes[-1]) + 1 if len(catalogue) else 1)
    popularity[catalogue.codes.numpy()] = np.log1p(np.asarray(catalogue.counts, dtype=np.float64))
    busy = [row for row in order[: middle + 1 : max(1, middle // 2000)].tolist() if counts[row]]
    fame = {row: float(popularity[np.minimum(people.seen(row), len(popularity) - 1)].mean()) for row in busy}
    groups = {
        "heavy": order.tolist(),
        "typical": order[middle:].tolist(),
        "light": order[::-1].tolist(),
        "niche": sorted(busy, key=lambda row: fame[row]),
    }
    taken: set[int] = set()
    samples = []
    for kind, rows in groups.items():
        chosen = [row for row in rows if row not in taken][:each]
        taken.update(chosen)
        samples += [Sample(people.ids.values[row], kind, int(counts[row])) for row in chosen]
    return samples


def spread(rows: Sequence[int], nearness: Nearness, k: int) -> list[int]:
    """k of the rows, each as far as possible from those before it; the first one first."""
    if not rows:
        return []
    near_NN = nearness.between(rows, rows)
    chosen = [0]
    nearest_N = near_NN[0].clone()
    while len(chosen) < min(k, len(rows)):
        nearest_N[chosen] = torch.inf
        chosen.append(int(nearest_N.argmin()))
        nearest_N = torch.maximum(nearest_N, near_NN[chosen[-1]])
    return [rows[i] for i in chosen]
