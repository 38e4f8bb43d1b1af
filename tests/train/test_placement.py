"""Where rows of tables lie: the plan, and the arithmetic of who holds what."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from falconet.errors import ConfigError
from falconet.nn.embedding import Tables
from falconet.schema import Column
from falconet.train.exchange import Layout
from falconet.train.placement import Placed, Size, describe, make_plan
from falconet.train.runtime import Runtime
from falconet.train.tables import TableOptimizer

SIZES = {  # 7,000, 1,000, 130 and 4 bytes
    "m.user": Size("user", 70, 25, 100),
    "m.item": Size("item", 100, 2, 10),
    "m.genre": Size("genre", 13, 2, 10),
    "m.one": Size("one", 1, 1, 4),
}


def placements(plan: dict[str, Placed]) -> list[str]:
    return [placed.placement for placed in plan.values()]


@pytest.mark.parametrize("rows", [1, 2, 5, 12, 13])
@pytest.mark.parametrize(("world", "owner"), [(1, None), (2, None), (5, None), (3, 0), (3, 2), (1, 0)])
def test_every_row_has_one_place(rows: int, world: int, owner: int | None) -> None:
    layout, ids = Layout(rows, world, owner), torch.arange(rows)
    owners, places = layout.owners(ids), layout.places(ids)
    held = [ids[layout.of(rank)] for rank in range(world)]
    assert torch.cat(held).sort().values.tolist() == ids.tolist()
    for rank, mine in enumerate(held):
        assert torch.equal(ids[owners == rank], mine)
        assert torch.equal(layout.places(mine), torch.arange(len(mine)))  # dense, in order
        assert torch.equal(layout.ids(places[owners == rank], rank), mine)


def test_auto_replicates_what_fits_into_half_of_the_memory() -> None:
    assert placements(make_plan(SIZES, "auto", world=2, memory=2 * 8134, on_gpu=False)) == ["replicated"] * 4


def test_auto_deals_the_largest_that_do_not_fit() -> None:
    plan = make_plan(SIZES, "auto", world=4, memory=2 * 8133, on_gpu=False)
    assert placements(plan) == ["row", "replicated", "replicated", "replicated"]
    assert [plan["m.user"].bytes_of(rank) for rank in range(4)] == [1800, 1800, 1700, 1700]  # 70 rows among 4
    plan = make_plan(SIZES, "auto", world=4, memory=2 * 2500, on_gpu=False)
    assert placements(plan) == ["row", "row", "replicated", "replicated"]


def test_what_is_not_dealt_is_in_common_where_processes_can_have_it_so() -> None:
    plan = make_plan(SIZES, {"item": "row"}, world=4, memory=2100, on_gpu=False, common=True)
    assert placements(plan) == ["common", "row", "common", "common"]
    held = [sum(placed.bytes_of(rank) for placed in plan.values()) for rank in range(4)]
    assert held == [sum(placed.size.bytes // 4 for placed in plan.values())] * 4
    assert plan["m.user"].is_split
    assert not plan["m.user"].is_dealt
    with pytest.raises(ConfigError, match="would take"):
        make_plan(SIZES, "auto", world=4, memory=2000, on_gpu=False, common=True)
    assert describe(make_plan(SIZES, "auto", world=2, memory=9000, on_gpu=False, common=True), 2) == [
        "tables in common: user 70 x 25, item 100 x 2, genre 13 x 2, one 1 x 1",
        "tables and their state take 4.1 KB on each process",
    ]


def test_auto_on_one_process_keeps_large_tables_off_the_gpu() -> None:
    assert placements(make_plan(SIZES, "auto", world=1, memory=3000, on_gpu=True))[:2] == ["host", "replicated"]
    assert placements(make_plan(SIZES, "auto", world=1, memory=9000, on_gpu=False)) == ["replicated"] * 4


def test_tables_go_largest_first_to_the_process_that_holds_least() -> None:
    plan = make_plan(SIZES, "table", world=2, memory=8000, on_gpu=False)
    assert [placed.layout.owner for placed in plan.values()] == [0, 1, 1, 1]
    assert [sum(placed.bytes_of(rank) for placed in plan.values()) for rank in (0, 1)] == [7000, 1134]
    assert placements(make_plan(SIZES, "table", world=1, memory=9000, on_gpu=False)) == ["replicated"] * 4
    assert placements(make_plan(SIZES, "row", world=1, memory=9000, on_gpu=False)) == ["replicated"] * 4


def test_tables_may_be_placed_one_by_one() -> None:
    plan = make_plan(SIZES, {"item": "row", "genre": "table", "user": "host"}, world=3, memory=9000, on_gpu=False)
    assert placements(plan) == ["host", "row", "table", "replicated"]
    assert plan["m.genre"].layout.owner == 1  # of all processes equally full but the first, which has one row more
    with pytest.raises(ConfigError, match=r"`table_placement` names `items`, no table of the model(?s:.*)`item`"):
        make_plan(SIZES, {"items": "row"}, world=3, memory=9000, on_gpu=False)


def test_the_plan_is_told_in_words() -> None:
    plan = make_plan(SIZES, {"user": "row", "genre": "table"}, world=2, memory=9000, on_gpu=False)
    assert describe(plan, 2) == [
        "tables replicated: item 100 x 2, one 1 x 1",
        "tables table: genre 13 x 2",
        "tables row: user 70 x 25",
        "tables and their state take 4.5 KB to 4.6 KB on each process",
    ]
    assert describe(make_plan(SIZES, "auto", world=1, memory=99_999, on_gpu=False), 1)[-1] == (
        "tables and their state take 8.1 KB on this process"
    )


def test_tables_of_one_column_in_two_parts_of_a_model_are_told_apart() -> None:
    sizes = {f"{part}.weights.table_item": Size("item", 100, 2, 8) for part in ("wide", "deep")}
    plan = make_plan(sizes, "auto", world=1, memory=9000, on_gpu=False)
    assert describe(plan, 1)[0] == "tables replicated: wide.item 100 x 2, deep.item 100 x 2"


@pytest.mark.parametrize(("world", "memory"), [(1, 8133), (2, 3500)])
def test_what_no_process_can_hold_is_refused_with_its_size(world: int, memory: int) -> None:
    with pytest.raises(
        ConfigError, match=r"would take .* KB of a process, which has .* KB; the largest is `user`: 70 "
    ):
        make_plan(SIZES, "auto", world=world, memory=memory, on_gpu=False)


def test_tables_larger_than_the_machine_are_refused_before_they_are_made() -> None:
    with pytest.raises(ConfigError, match=r"take 4096\.0 GB(?s:.*)`user`: 1,000,000,000 rows of 1024 numbers"):
        Tables([Column(name="user", dtype="int32", cardinality=10**9)], 1024)


def test_tables_that_fit_alone_but_not_with_their_state_are_refused() -> None:
    model = nn.ModuleList([Tables([Column(name="user", dtype="int32", cardinality=1000)], 8)])
    TableOptimizer(model, "rowwise_adagrad", Runtime(), memory=36_000)
    with pytest.raises(ConfigError, match=r"would take 100\.0 KB of a process, which has 36\.0 KB"):
        TableOptimizer(model, "lazy_adam", Runtime(), memory=36_000)


def test_dense_tables_are_replicated_and_in_float32() -> None:
    model = nn.ModuleList([Tables([Column(name="user", dtype="int32", cardinality=10)], 2)])
    with pytest.raises(ConfigError, match=r'without a `table_optimizer` cannot be placed "row"(?s:.*)"replicated"'):
        TableOptimizer(model, None, Runtime(), placement={"user": "row"})
    with pytest.raises(ConfigError, match=r"cannot be kept in bfloat16(?s:.*)float32"):
        TableOptimizer(model, None, Runtime(), dtype=torch.bfloat16)
