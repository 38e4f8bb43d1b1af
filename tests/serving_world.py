"""A tiny world with known structure: 40 items, 24 people, two seeded models, and the bundle of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from falconet import ops
from falconet.etl.dataset import Dataset
from falconet.etl.workflow import FittedWorkflow, Workflow
from falconet.models.base import MODELS
from falconet.models.store import save_model
from falconet.retrieval.candidates import CandidateRows
from falconet.schema import FOOTER_KEY, Column, Schema, Tag
from falconet.serve.bundle import ServingConfig, build_bundle
from falconet.serve.tables import Catalogue

GENRES = ("Comedy", "Drama", "Horror", "Western")
ITEMS, USERS, HISTORY, CANDIDATES = 40, 24, 6, 15
FIRST = 3  # the first code of a vocabulary


@dataclass(frozen=True)
class World:
    """Where the folders are, and the raw ids: `seen[user]` is what a user met, oldest first."""

    folder: Path
    items: list[int | str]
    users: list[int | str]
    seen: dict[int | str, list[int | str]]

    @property
    def bundle(self) -> Path:
        return self.folder / "bundle"

    @property
    def item_codes(self) -> dict[int | str, int]:
        return _codes([item for met in self.seen.values() for item in met])


def make_world(
    folder: Path, *, strings: bool = False, ranker: bool = True, bundle: bool = True, moment: bool = False
) -> World:
    """Ids are strings, or numbers above 2^31. `moment`: the ranker reads device, hour, holiday and time of an event."""
    items: list[int | str] = [f"item-{i:02d}" if strings else 3_000_000_000 + 7 * i for i in range(ITEMS)]
    users: list[int | str] = [f"user-{u:02d}" if strings else 5_000_000_000 + u for u in range(USERS)]
    # User u meets every (1 + u % 3)th item from 2u on; the first users meet few, so everybody differs.
    seen = {
        user: list(dict.fromkeys(items[(2 * u + j * (1 + u % 3)) % ITEMS] for j in range(3 + u % 12)))
        for u, user in enumerate(users)
    }
    seen[users[-1]] = items[:]  # one who has met everything but the last three
    del seen[users[-1]][-3:]
    seen[users[0]] += [item for item in items[-3:] if item not in seen[users[0]]]
    world = World(folder, items, users, seen)
    _write_features(world, moment)
    _write_models(world, ranker)
    if bundle:
        build_world_bundle(world, world.bundle, ranker=ranker)
    return world


def build_world_bundle(
    world: World,
    out: Path,
    *,
    ranker: bool = True,
    index: Literal["exact", "ann"] = "exact",
    runs: Literal["torch", "onnx"] = "torch",
    about: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    build_bundle(
        out,
        workflow=world.folder / "workflow",
        retriever=world.folder / "retriever",
        ranker=world.folder / "ranker" if ranker else None,
        items=world.folder / "items",
        users=world.folder / "users",
        config=ServingConfig(
            user="user", item="item", candidates=CANDIDATES, history=HISTORY, index=index, ranker=runs
        ),
        data={"rows": sum(map(len, world.seen.values())), "from": 0, "to": 99},
        extra={"step": "a step"},
        about=about,
    )


def _codes(values: list[int | str]) -> dict[int | str, int]:
    """Most frequent first, ties by ascending value."""
    counts = Counter(values)
    return {value: FIRST + i for i, value in enumerate(sorted(counts, key=lambda v: (-counts[v], v)))}


def _id_column(name: str, side: Tag, values: int) -> Column:
    tags = frozenset({side, Tag.ID, Tag.CATEGORICAL})
    return Column(name=name, dtype="int32", nullable=False, tags=tags, cardinality=FIRST + values, oov=1, domain=name)


def _schemas(world: World) -> tuple[Schema, Schema]:
    """Of the items and of the users, features first."""
    raw = "string" if isinstance(world.items[0], str) else "int64"
    bag = frozenset({Tag.ITEM, Tag.CATEGORICAL})
    items = Schema(
        (
            _id_column("item", Tag.ITEM, ITEMS),
            Column(name="item_id", dtype=raw),
            Column(name="title", dtype="string"),
            Column(name="show_genres", dtype="string", list="ragged"),
            Column(name="count", dtype="int64"),
            Column(name="genres", dtype="int32", list="ragged", nullable=False, tags=bag, cardinality=FIRST + 4, oov=1),
            Column(name="log_popularity", dtype="float32", nullable=False, tags=frozenset({Tag.ITEM, Tag.CONTINUOUS})),
        )
    )
    history = frozenset({Tag.USER, Tag.SEQUENCE, Tag.CATEGORICAL})
    users = Schema(
        (
            _id_column("user", Tag.USER, USERS),
            Column(name="user_id", dtype=raw),
            Column(
                name="history",
                dtype="int32",
                list="ragged",
                nullable=False,
                tags=history,
                cardinality=FIRST + ITEMS,
                domain="item",
            ),
            Column(name="seen", dtype="int32", list="ragged", nullable=False),
            Column(name="relevant", dtype="int32", list="ragged", nullable=False),
            Column(name="relevant_unknown", dtype="int32", nullable=False),
        )
    )
    return items, users


def _genres(i: int) -> list[int]:
    return [i % 4] if i % 3 else [i % 4, (i + 1) % 4]


def _write_features(world: World, moment: bool) -> None:
    item_schema, user_schema = _schemas(world)
    codes = world.item_codes
    user_codes = _codes([user for user, met in world.seen.items() for _ in met])
    counts = Counter(item for met in world.seen.values() for item in met)
    order = sorted(range(ITEMS), key=lambda i: codes[world.items[i]])
    items = {
        "item": pa.array([codes[world.items[i]] for i in order], pa.int32()),
        "item_id": pa.array([world.items[i] for i in order]),
        "title": pa.array([f"Film {i:02d} ({1960 + i})" for i in order]),
        "show_genres": pa.array([[GENRES[g] for g in _genres(i)] for i in order]),
        "count": pa.array([counts[world.items[i]] for i in order], pa.int64()),
        "genres": pa.array([[FIRST + g for g in _genres(i)] for i in order], pa.list_(pa.int32())),
        "log_popularity": pa.array([float(counts[world.items[i]]) for i in order], pa.float32()),
    }
    people = sorted(world.users, key=lambda user: user_codes[user])
    seen = [[codes[item] for item in world.seen[user]] for user in people]
    users = {
        "user": pa.array([user_codes[user] for user in people], pa.int32()),
        "user_id": pa.array(people),
        "history": pa.array([met[-HISTORY:] for met in seen], pa.list_(pa.int32())),
        "seen": pa.array(seen, pa.list_(pa.int32())),
        "relevant": pa.array([[3]] * USERS, pa.list_(pa.int32())),
        "relevant_unknown": pa.array([0] * USERS, pa.int32()),
    }
    for name, table, schema in (("items", items, item_schema), ("users", users, user_schema)):
        folder = world.folder / name
        folder.mkdir(parents=True)
        footer = {FOOTER_KEY: schema.to_json().encode()}
        pq.write_table(pa.table(table).select(schema.names).replace_schema_metadata(footer), folder / "part.parquet")
    raw = pa.table(
        {
            "user": [user for user, met in world.seen.items() for _ in met],
            "item": [item for met in world.seen.values() for item in met],
            "rating": [float(j % 5) for met in world.seen.values() for j in range(len(met))],
        }
    )
    if moment:
        for name, values in _moments(raw.num_rows).items():
            raw = raw.append_column(name, values)
    pq.write_table(raw, world.folder / "raw.parquet")
    outputs = (
        (["user"] >> ops.Categorify() >> ops.AddTags(tags=("user", "id")))
        + (["item"] >> ops.Categorify() >> ops.AddTags(tags=("item", "id")))
        + (["rating"] >> ops.AddTags(tags=("target", "regression")))
    )
    if moment:
        context = ops.AddTags(tags=("context",))
        number = ops.AddTags(tags=("context", "continuous"))
        outputs += (["device", "holiday"] >> ops.Categorify() >> context) + (["hour"] >> number)
        outputs += ["at"] >> ops.CyclicTime(parts=("hour",)) >> number
    Workflow(outputs).fit(Dataset(world.folder / "raw.parquet")).save(world.folder / "workflow")


def _moments(rows: int) -> dict[str, pa.Array]:
    return {
        "device": pa.array([("tv", "tv", "phone", "tablet")[i % 4] for i in range(rows)]),
        "holiday": pa.array([i % 5 == 0 for i in range(rows)]),
        "hour": pa.array([float(i % 24) for i in range(rows)], pa.float32()),
        "at": pa.array([i * 5_000_000_000 for i in range(rows)], pa.timestamp("us")),
    }


def _write_models(world: World, ranker: bool) -> None:
    torch.manual_seed(5)
    item_schema, user_schema = _schemas(world)
    tagged = Schema(tuple(c for c in (*user_schema, *item_schema) if c.tags))
    retriever = MODELS["TwoTower"].from_schema(tagged.without(["log_popularity"]))
    with torch.no_grad():
        for parameter in retriever.parameters():  # large vectors, so that taste counts for more than popularity
            parameter.normal_()
    save_model(retriever, world.folder / "retriever")
    if ranker:
        context = FittedWorkflow.load(world.folder / "workflow").schema.select(Tag.CONTEXT)
        rows = CandidateRows(tagged + context, Catalogue(world.folder / "items", "item").features)
        taken = Column(name="taken", dtype="float32", nullable=False, tags=frozenset({Tag.TARGET, Tag.BINARY}))
        save_model(MODELS["MLP"].from_schema(Schema((*rows.schema, taken))), world.folder / "ranker")
