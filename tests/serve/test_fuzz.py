"""Requests made at random: spoiled ones, and ones made from the description of the API."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
)
from soak.fuzz_serve import TOKEN, Fuzz, fuzz

from falconet.serve.http.app import create_app
from falconet.serve.recommender import Recommender
from falconet.serve.serving import Serving
from serving_world import World


@pytest.mark.parametrize("seed", [1, 2])
def test_spoiled_requests_break_nothing(world: World, tmp_path: Path, seed: int) -> None:
    run = Fuzz(world.bundle, tmp_path / "events.db", world.items, world.users, seed)
    assert asyncio.run(fuzz(run, 600)) == []
    assert {200, 404, 422} <= run.statuses.keys()


def test_requests_by_the_description_are_answered_as_it_says(recommender: Recommender) -> None:
    app = create_app(Serving(recommender), token=TOKEN)
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    paths = set()
    for found in schema.get_all_operations():
        operation = found.ok()
        paths.add(operation.path)

        @settings(
            max_examples=6, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
        )
        def ask(case: schemathesis.Case) -> None:
            case.call_and_validate(
                headers={"authorization": f"Bearer {TOKEN}"},
                checks=[not_a_server_error, content_type_conformance, response_schema_conformance],
            )

        given(case=operation.as_strategy())(ask)()
    assert {"/v1/recommend", "/v1/events", "/v1/items/{item_id}", "/v1/admin/reload", "/metrics"} <= paths
