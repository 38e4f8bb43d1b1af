"""Requests whose answers a bundle keeps, so that one that answers otherwise on another machine is refused there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from falconet.errors import ArtifactError
from falconet.serve.engine import Engine, Query

_TOLERANCE = 1e-5  # how far a probe's scores may lie from those of the machine that built the bundle


def probe_requests(engine: Engine) -> list[dict[str, Any]]:
    """The person with the most and the one with the fewest items, a stranger with a history, and nobody."""
    people, catalogue = engine.people, engine.catalogue
    requests: list[dict[str, Any]] = [{"k": 10}]
    if len(people):
        counts = people.counts()
        for row in dict.fromkeys((int(counts.argmax()), int(counts.argmin()))):
            requests.append({"user_id": people.ids.values[row], "k": 10})
    if len(catalogue):
        liked = [catalogue.row_of_code(code) for code in engine.popular[:3]]
        requests.append({"history": [catalogue.ids.values[row] for row in liked if row is not None], "k": 10})
    return requests


def answer_probe(engine: Engine, request: Mapping[str, Any]) -> dict[str, Any]:
    """Items and scores for a probe, from the models alone."""
    places = engine.answer(probe_query(engine, request)).places
    ids = engine.catalogue.ids.values
    return {"items": [ids[place.row] for place in places], "scores": [place.score for place in places]}


def probe_query(engine: Engine, request: Mapping[str, Any]) -> Query:
    """What a probe asks, of what training knew."""
    user_id = request.get("user_id")
    person = None if user_id is None else engine.people.row(user_id)
    codes = [engine.catalogue.code(item) for item in request.get("history", [])]
    history = [c for c in codes if c is not None] if person is None else engine.features.history(person)
    seen = history if person is None else engine.people.seen(person).tolist()
    return Query(k=request["k"], person=person, user_id=user_id, history=history, seen=seen, exclude=frozenset(seen))


def check_probe(path: Path, probe: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raise ArtifactError unless items and scores are equal; those of near scores may stand in another order."""
    expected = dict(zip(probe["items"], probe["scores"], strict=True))
    last = probe["scores"][-1] if probe["scores"] else 0.0
    near = len(found["items"]) == len(probe["items"]) and all(
        abs(score - expected.get(item, last)) <= _TOLERANCE * max(1.0, abs(score))
        for item, score in zip(found["items"], found["scores"], strict=True)
    )
    if not near:
        raise ArtifactError(
            f"`{path}` answers the probe {json.dumps(probe['request'])} differently than when it was built",
            hint="another version of falconet or torch may compute otherwise; build the bundle again with this one",
        )
