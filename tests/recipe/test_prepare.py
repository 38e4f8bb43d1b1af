"""What the first step makes of small files whose answers are known."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from falconet.recipe.config import read_recipe
from falconet.recipe.prepare import prepare

DEMO = Path(__file__).parent.parent.parent / "src/falconet/recipe/demo.toml"


@pytest.mark.parametrize(("kind", "expected"), [("leave_last", ["a", "b", "c"]), ("random", None)])
def test_under_leave_last_a_tied_earlier_row_is_history(tmp_path: Path, kind: str, expected: list[str] | None) -> None:
    events = pl.DataFrame(
        {"user": ["u"] * 4 + ["v"] * 4, "item": ["a", "b", "c", "d", "d", "c", "b", "a"], "time": [1, 2, 2, 2] * 2}
    )
    events.write_csv(tmp_path / "events.csv")
    columns = ["columns.user=user", "columns.item=item", "columns.time=time", 'columns.rating=""', 'columns.title=""']
    settings = ["data.reader=files", f"data.path={tmp_path / 'events.csv'}", f"split.kind={kind}"]
    recipe = read_recipe(DEMO, [*settings, *columns, "prepare.history=earlier"])
    prepare(recipe, tmp_path / "work", step="x")
    raw = pl.read_parquet(tmp_path / "work/split/test/*.parquet")
    test = pl.read_parquet(tmp_path / "work/features/test/*.parquet")
    items = pl.read_parquet(tmp_path / "work/features/items/*.parquet")
    names = dict(zip(items["item"], items["item_id"], strict=True))
    found = {user: [names[code] for code in codes] for user, codes in zip(raw["user"], test["history"], strict=True)}
    if expected is not None:
        assert found == {"u": ["a", "b", "c"], "v": ["d", "c", "b"]}
        return
    first = {"u": "a", "v": "d"}  # the only item that is strictly earlier than anything else
    assert all(history in ([], [first[user]]) for user, history in found.items())


@pytest.mark.parametrize("kind", ["users", "items"])
def test_held_out_ids_that_are_texts_are_drawn_by_the_seed(tmp_path: Path, kind: str) -> None:
    people, things = [f"u{i:02d}" for i in range(20)], [f"i{i:02d}" for i in range(20)]
    rows = [(u, t) for n, u in enumerate(people) for t in things[n % 3 :: 2]]
    pl.DataFrame(rows, schema=["user", "item"], orient="row").write_csv(tmp_path / "events.csv")
    columns = ["columns.user=user", "columns.item=item", 'columns.time=""', 'columns.rating=""', 'columns.title=""']
    settings = ["data.reader=files", f"data.path={tmp_path / 'events.csv'}", f"split.kind={kind}", "split.held_out=0.3"]
    held = []
    for seed in (1, 2):
        recipe = read_recipe(DEMO, [*settings, *columns, f"split.seed={seed}"])
        prepare(recipe, tmp_path / f"work{seed}", step="x")
        test = pl.read_parquet(tmp_path / f"work{seed}/split/test/*.parquet")
        held.append(set(test[kind.removesuffix("s")]))
    assert [len(ids) for ids in held] == [6, 6]
    first = set((people if kind == "users" else things)[:6])
    assert held[0] != held[1]
    assert first not in held
