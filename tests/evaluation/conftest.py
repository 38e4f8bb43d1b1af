"""Features in the form of docs/contracts.md, from lists of what each user has seen and will take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from falconet.io.artifact import write_artifact
from falconet.schema import FOOTER_KEY, Column, Schema, Tag

FIRST = 3  # the first code that is no reserved one


def column(name: str, *tags: str, dtype: str = "int32", **facts: object) -> Column:
    return Column(name=name, dtype=dtype, nullable=False, tags=frozenset(tags), **facts)  # type: ignore[arg-type]


@dataclass(frozen=True)
class World:
    """`seen`, `relevant` and `genres` hold codes; user u has code FIRST + u, item i has code FIRST + i."""

    seen: Sequence[Sequence[int]]
    relevant: Sequence[Sequence[int]]
    unknown: Sequence[int]
    genres: Sequence[Sequence[int]]

    def schema(self) -> Schema:
        users, items = FIRST + len(self.seen), FIRST + len(self.genres)
        return Schema(
            (
                column("user", Tag.USER, Tag.ID, Tag.CATEGORICAL, cardinality=users),
                column("item", Tag.ITEM, Tag.ID, Tag.CATEGORICAL, cardinality=items, domain="item"),
                column("genres", Tag.ITEM, Tag.CATEGORICAL, list="ragged", cardinality=9),
                column(
                    "history", Tag.USER, Tag.SEQUENCE, Tag.CATEGORICAL,
                    list="ragged", cardinality=items, domain="item",
                ),
            )
        )  # fmt: skip

    def write(self, folder: Path) -> Path:
        schema, lists = self.schema(), pa.list_(pa.int32())
        codes = range(FIRST, FIRST + len(self.genres))
        counts = [sum(code in seen for seen in self.seen) for code in codes]
        with write_artifact(folder, "features") as draft:
            for name, rows in (("train", self.seen), ("test", self.relevant)):
                pairs = [(u, item) for u, items in enumerate(rows) for item in items]
                columns = {
                    "user": pa.array([FIRST + u for u, _ in pairs], pa.int32()),
                    "item": pa.array([item for _, item in pairs], pa.int32()),
                    "genres": pa.array([self.genres[item - FIRST] for _, item in pairs], lists),
                    "history": pa.array([[x for x in self.seen[u] if x != item] for u, item in pairs], lists),
                }
                write(draft.path / name, schema, columns)
            popularity = column("log_popularity", Tag.ITEM, Tag.CONTINUOUS, dtype="float32")
            items = Schema((schema["item"], column("count", dtype="int64"), schema["genres"], popularity))
            write(
                draft.path / "items",
                items,
                {
                    "item": pa.array(codes, pa.int32()),
                    "count": pa.array(counts, pa.int64()),
                    "genres": pa.array(self.genres, lists),
                    "log_popularity": pc.ln(pa.array([1 + n for n in counts], pa.float32())),
                },
            )
            plain = [column(name, list="ragged") for name in ("seen", "relevant")]
            users = Schema((schema["user"], schema["history"], *plain, column("relevant_unknown")))
            write(
                draft.path / "users",
                users,
                {
                    "user": pa.array(range(FIRST, FIRST + len(self.seen)), pa.int32()),
                    "history": pa.array(self.seen, lists),
                    "seen": pa.array(self.seen, lists),
                    "relevant": pa.array(self.relevant, lists),
                    "relevant_unknown": pa.array(self.unknown, pa.int32()),
                },
            )
        return folder


def write(folder: Path, schema: Schema, columns: dict[str, pa.Array]) -> None:
    folder.mkdir()
    table = pa.table(columns).replace_schema_metadata({FOOTER_KEY: schema.to_json().encode()})
    pq.write_table(table, folder / "part-00000.parquet")


SMALL = World(
    # Items 3 4 5 6 7 were seen by 3 3 2 1 0 people.
    seen=[[3, 4, 5], [3, 4], [3, 6], [4, 5]],
    relevant=[[6], [5, 7], [], []],
    unknown=[0, 2, 0, 1],
    genres=[[3], [3, 4], [4], [], [4]],
)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return SMALL.write(tmp_path / "features")


@pytest.fixture(scope="session")
def tastes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 users of two tastes over 40 items: each has seen 8 of 20 items and takes 4 more of them."""
    seen, relevant = [], []
    for u in range(60):
        side = FIRST + u % 2 * 20
        order = [side + (u * 7 + i * (3, 7, 9, 11, 13)[u % 5]) % 20 for i in range(20)]
        seen.append(order[:8])
        relevant.append(order[8:12])
    world = World(seen, relevant, [0] * 60, [[3 + i // 20] for i in range(40)])
    return world.write(tmp_path_factory.mktemp("tastes") / "features")
