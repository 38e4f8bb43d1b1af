"""Embedding tables on two and four processes, wherever their rows lie, beside the same on one.

What one process and several come to differs by the order of additions alone; what placements on the same number of
processes come to does not differ by a bit, but where a layer narrower than its tables multiplies their rows.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from falconet.train.launch import launch
from train.table_workers import (
    CLIPPED,
    LAYOUTS,
    PLACEMENTS,
    ROWS,
    RULES,
    WAYS,
    WIDTH,
    Trained,
    dense,
    on_four,
    on_two,
    touched,
    train_flat,
    train_until,
    train_wide,
)
from train.workers import train, write_rows

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4,000 rows in three files."""
    return write_rows(tmp_path_factory.mktemp("rows") / "train", (2000, 700, 1300))


@pytest.fixture(scope="module")
def one(rows: Path) -> dict[str, Trained]:
    return {name: train(rows, 200, rule) for name, rule in RULES.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that two processes began, by placement, cut off after step 7 of 10, with a snapshot at 5."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def two(rows: Path, data: Path, folder: Path) -> dict[Any, Any]:
    return launch(on_two, 2, (rows, data, folder))


@pytest.fixture(scope="module")
def four(rows: Path, data: Path, folder: Path, two: dict[Any, Any]) -> dict[Any, Any]:
    return launch(on_four, 4, (rows, data, folder))


def apart(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a)


def agree(one: Trained, many: Trained) -> None:
    assert len(many[1]) == 20
    assert many[1] == pytest.approx(one[1], rel=1e-5)
    assert many[2] == pytest.approx(one[2], rel=1e-3)


def assert_padding_is_zero(weights: dict[str, Tensor]) -> None:
    tables = [x for name, x in weights.items() if ".table_" in name]
    assert tables
    assert not any(x[0].any() for x in tables)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_two_processes_agree_with_one(one: dict[str, Trained], two: dict[Any, Any], rule: str, placement: str) -> None:
    agree(one[rule], two[rule, placement])
    assert_padding_is_zero(two[rule, placement][0])


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "placement"), [*(("adam", p) for p in PLACEMENTS), ("sgd", "row")])
def test_four_processes_agree_with_one(
    one: dict[str, Trained], four: dict[Any, Any], rule: str, placement: str
) -> None:
    agree(one[rule], four[rule, placement])
    assert_padding_is_zero(four[rule, placement][0])


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_parameters_agree_after_one_step(rows: Path, two: dict[Any, Any], placement: str) -> None:
    wanted = train(rows, 4000, {"table_learning_rate": 0.001})[0]
    assert apart(wanted, two["first_step", placement]) <= 1e-6


# Not "clipped", whose tables are wider than the layer that follows: where they are dealt, gradients of the layer are
# added up and then multiplied by its weights, where they are replicated it is the other way round.
@pytest.mark.parametrize("name", [*RULES, "first_step", "wide"])
def test_placements_do_not_change_a_bit(two: dict[Any, Any], name: str) -> None:
    found = [two[name, placement] for placement in PLACEMENTS]
    first, *others = [x if isinstance(x, dict) else x[0] for x in found]
    for other in others:
        assert apart(first, other) == 0


def test_bfloat16_rows_agree_within_their_digits(one: dict[str, Trained], two: dict[Any, Any]) -> None:
    """The order of additions may turn a draw, and then a number has its other neighbour: rarely, and one place off."""
    _, losses, loss = one["bfloat16"]
    found, many_losses, many_loss = two["bfloat16", "row"]
    assert many_losses == pytest.approx(losses, rel=2e-3)
    assert many_loss == pytest.approx(loss, rel=1e-3)
    assert losses == pytest.approx(one["adam"][1], rel=2e-2)
    for name in (name for name in found if ".table_" in name):
        assert torch.equal(found[name].bfloat16().float(), found[name])
    assert_padding_is_zero(found)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_clipping_and_parts_of_a_batch_are_those_of_one_process(
    data: Path, two: dict[Any, Any], placement: str
) -> None:
    wanted = train_flat(data, CLIPPED)
    assert apart(wanted, two["clipped", placement]) <= 2e-6
    assert apart(wanted, train_flat(data, {**CLIPPED, "accumulate": 1})) <= 2e-6
    assert apart(wanted, train_flat(data, {**CLIPPED, "clip_norm": None})) > 1e-4


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_process_may_touch_nothing_but_padding(two: dict[Any, Any], placement: str) -> None:
    assert apart(train_wide("replicated"), two["wide", placement]) <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_processes_may_have_no_row(four: dict[Any, Any], placement: str) -> None:
    assert apart(train_wide("replicated"), four["wide", placement]) <= 1e-6


def assert_exchanged(found: dict[str, Any], world: int) -> None:
    wanted = sum(dense(touched(rank)).double() for rank in range(world))
    assert isinstance(wanted, Tensor)
    for rank in range(world):  # the same bits everywhere
        assert torch.equal(found["add_up"][rank], found["add_up"][0])
    assert torch.allclose(found["add_up"][0].double(), wanted, atol=1e-6)
    ids = torch.arange(ROWS)
    for kind, owner in LAYOUTS.items():
        owners = ids % world if owner is None else torch.full((ROWS,), owner)
        for rank in range(world):
            mine = found["add_up"][0] * (owners == rank).unsqueeze(1)
            assert torch.equal(found[kind][rank], mine), (kind, rank)
    assert found["sent"] == (world - 1) * 2 * 3 * (4 + 4 * WIDTH)  # to each other one: ids and rows, twice


@pytest.mark.parametrize("way", WAYS)
def test_gradients_and_rows_go_where_they_belong(two: dict[Any, Any], way: str) -> None:
    assert_exchanged(two["exchange", way], 2)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_gradients_and_rows_go_where_they_belong_among_four(four: dict[Any, Any], way: str) -> None:
    assert_exchanged(four["exchange", way], 4)


@pytest.mark.parametrize("way", WAYS)
def test_each_process_has_the_sums_of_the_rows_that_it_moves(two: dict[Any, Any], way: str) -> None:
    plain = sum(dense(touched(rank)) for rank in range(2))
    assert isinstance(plain, Tensor)
    narrow = plain.clone()
    narrow[:, 2] = 0  # what goes through two rows of a unit matrix
    one = plain.clone()
    one[:, 2] = dense(touched(1))[:, 2]
    moves = torch.arange(ROWS) // 2 % 2
    for name, wanted in {"all through": narrow, "one": one, "plain": plain}.items():
        for rank, found in enumerate(two["share_out", way][name]):
            assert torch.equal(found, wanted * (moves == rank).unsqueeze(1)), (name, rank)


def test_memory_in_common_is_one_until_the_end_of_training(two: dict[Any, Any]) -> None:
    shared, own = two["common"]["shared"], two["common"]["own"]
    assert shared.tolist() == [[[1, 1], [5, 5], [1, 1]]] * 2  # the first one's values, and what the second wrote
    assert own[0].any()
    assert not own[1].any()


@pytest.mark.parametrize("way", WAYS)
def test_messages_of_any_length_arrive(two: dict[Any, Any], way: str) -> None:
    lengths = [8, 0, 24, 3 << 20, 16]
    wanted = [([[0, 0], [n, 1]], [[], [n % 251, n] if n else []]) for n in lengths]
    assert two["messages", way] == wanted


def test_shards_are_the_whole_tables_state_and_all(two: dict[Any, Any], folder: Path) -> None:
    whole = load_file(folder / "replicated/snapshots/00000005/tables-0.safetensors")
    assert not (folder / "replicated/snapshots/00000005/tables-1.safetensors").exists()
    shards = [load_file(folder / f"row/snapshots/00000005/tables-{shard}.safetensors") for shard in (0, 1)]
    assert {name.rpartition("/")[2] for name in whole if "/" in name} == {"touches", "mean", "square"}
    for name, x in whole.items():
        assert x.dtype == (torch.bfloat16 if "/" not in name else torch.float32)
        for shard, found in enumerate(shards):
            assert torch.equal(found[name], x[shard::2]), name


def test_a_run_of_shards_goes_on_bit_for_bit_on_as_many_processes(two: dict[Any, Any]) -> None:
    assert apart(two["whole"], two["resumed"]) == 0
    assert apart(two["whole"], two["moved"]) == 0  # its rows dealt in another way


def test_a_run_of_shards_goes_on_on_one_process(data: Path, folder: Path, two: dict[Any, Any]) -> None:
    found = []
    for placement in ("replicated", "row"):  # whose tables at the snapshot are the same
        shutil.copytree(folder / placement, folder / f"one-{placement}")
        found.append(train_until(data, folder / f"one-{placement}", "auto"))
    assert apart(*found) == 0
    assert 0 < apart(found[0], train_until(data, None, "auto")) < 0.2  # dropout is drawn by process


@pytest.mark.slow
def test_a_run_of_shards_goes_on_on_four_processes(two: dict[Any, Any], four: dict[Any, Any]) -> None:
    assert 0 < apart(two["whole"], four["resumed"]) < 0.2
