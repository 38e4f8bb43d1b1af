"""How items and answers read: ids, titles, attributes, and one reason for each place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from falconet.serve.answers import Met, Named, RecommendedItem
from falconet.serve.engine import Answer, Engine, Place
from falconet.serve.events import Id

_VERBS = {"like": "liked", "rating": "rated", "click": "looked at"}


class Words:
    """What people read of a catalogue. `verb`: what is done to its items where no event says it better."""

    def __init__(self, engine: Engine, verb: str) -> None:
        self._catalogue, self._nearness, self._verb = engine.catalogue, engine.nearness, verb

    def item(self, row: int) -> tuple[Id, str, dict[str, Any]]:
        """The id, title and attributes of a row of the catalogue."""
        return self._catalogue.ids.values[row], self._catalogue.titles[row], self._catalogue.attributes(row)

    def met(self, met: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
        """Codes and kinds of events, as rows of the catalogue and kinds; those of other items are left out."""
        rows = self._catalogue.find([code for code, _ in met]).tolist()
        return [(row, kind) for row, (_, kind) in zip(rows, met, strict=True) if row >= 0]

    def history(self, met: Sequence[tuple[int, str]]) -> list[Met]:
        """Rows and kinds of events, as items."""
        ids, titles = self._catalogue.ids.values, self._catalogue.titles
        return [Met(ids[row], titles[row], kind) for row, kind in met]

    def places(self, answer: Answer, met: Sequence[tuple[int, str]], *, explain: bool) -> list[RecommendedItem]:
        """The places of an answer, each with the nearest item of what a person met, rows and kinds, as its reason.

        `explain`: with what each retriever says of them.
        """
        past = met[::-1]  # of equally near items the latest is the better reason
        rows = [place.row for place in answer.places]
        nearest: list[tuple[float, int]] = []
        if past and rows and answer.source != "popular":
            with torch.inference_mode():
                near_KH = self._nearness.between(rows, [row for row, _ in past])
                best = near_KH.max(dim=1)
            nearest = list(zip(best.values.tolist(), best.indices.tolist(), strict=True))
        items = []
        for i, place in enumerate(answer.places):
            if nearest and nearest[i][0] > 0:
                row, kind = past[nearest[i][1]]
                because = self._catalogue.ids.values[row]
                reason = f"Because you {_VERBS.get(kind, self._verb)} {self._catalogue.titles[row]}"
            else:
                because, reason = None, self._popular(place)
            scores = (place.retriever_score, place.retriever_rank, place.score)
            named = {name: Named(*said) for name, said in place.named.items()} if explain else {}
            items.append(RecommendedItem(*self.item(place.row), *scores, i + 1, answer.source, reason, because, named))
        return items

    def _popular(self, place: Place) -> str:
        people = self._catalogue.counts[place.row]
        return f"Popular with {people:,} people" if people else "New"
