"""The page, and the calls that only it makes: what the bundle tells of its making, what goes on now, two bundles."""

from __future__ import annotations

from importlib.resources import files

from fastapi import FastAPI, Response

from falconet.errors import ConfigError
from falconet.serve.http.bodies import CompareOut, RecommendIn, WhyIn, WhyOut
from falconet.serve.http.replies import answer
from falconet.serve.live import Live
from falconet.serve.recommender import Recommender
from falconet.serve.serving import Serving

_KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript"}


def add_page(app: FastAPI, serving: Serving, live: Live) -> None:
    """Add the page at `/` and its calls."""
    _add_files(app)

    @app.get("/v1/about")
    def about() -> Response:
        """What the bundles tell of their making: runs and data, as far as they know. The served one first."""
        return answer({"bundles": [_told(one) for one in _both(serving)]})

    @app.get("/v1/live")
    def now() -> Response:
        """What the process that answers does: requests, times of the stages, events, reloads of its last minutes."""
        return answer(live.plain())

    @app.post("/v1/why", response_model=WhyOut)
    def why(request: WhyIn) -> Response:
        """What the ranker reads of an item, what would be without each of that, and what of the past is near."""
        return answer(serving.recommender.closer(**request.model_dump()))

    @app.post("/v1/compare", response_model=CompareOut)
    def compare(request: RecommendIn) -> Response:
        """The answers of the bundle that is served and of the one beside it to one request; nothing is kept of them."""
        if serving.beside is None:
            raise ConfigError("no other bundle is loaded", hint="`falconet serve BUNDLE --beside OTHER`")
        asked = request.model_dump()
        return answer({"answers": [one.preview(**asked) for one in _both(serving)]})


def _both(serving: Serving) -> list[Recommender]:
    return [serving.recommender, *([] if serving.beside is None else [serving.beside])]


def _told(recommender: Recommender) -> dict[str, object]:
    bundle = recommender.bundle
    return {**recommender.describe(), "recall": bundle.manifest.extra.get("ann_recall"), "about": bundle.about}


def _add_files(app: FastAPI) -> None:
    def add(route: str, content: bytes, kind: str) -> None:
        @app.get(route, include_in_schema=False)
        def file() -> Response:
            return Response(content, media_type=f"{kind}; charset=utf-8")

    for one in (files("falconet.serve") / "page").iterdir():
        kind = _KINDS.get(one.name.rpartition(".")[2])
        if kind is not None:
            add("/" if one.name == "index.html" else f"/{one.name}", one.read_bytes(), kind)
