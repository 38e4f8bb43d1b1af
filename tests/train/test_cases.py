"""Two processes, and four, come to what one comes to, whatever the rows; mistakes of one are mistakes of all."""

from __future__ import annotations

import json
import math
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from falconet.io.artifact import read_artifact
from falconet.loader.loader import Loader
from falconet.train.launch import launch
from falconet.train.trainer import Trainer
from train.cases import SIZES, Fork, OnlyDense, Seen, agreeing
from train.mistakes import alone, said, several, stopped
from train.workers import config, loader, net, same, weights, write_rows

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.name == "nt", reason="processes are told by signals, and a disk is full by a file's limit"),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("files") / "train", SIZES)


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 rows in order, of which the last has an age that is no number."""
    folder = write_rows(tmp_path_factory.mktemp("spoilt") / "train", (64,))
    table = pq.read_table(folder / "part_0.parquet")
    ages = [*table["age"].to_pylist()[:-1], math.nan]
    place = table.schema.get_field_index("age")
    pq.write_table(table.set_column(place, "age", pa.array(ages, pa.float32())), folder / "part_0.parquet")
    return folder


@pytest.fixture(scope="module")
def one(files: Path, data: Path, held_out: Path) -> dict[str, Any]:
    return agreeing(files, data, held_out)


@pytest.fixture(scope="module")
def begun(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """Where one process began a run and was stopped after the fourth of ten steps; and the rows it took."""
    folder, taken = tmp_path_factory.mktemp("several"), []  # type: ignore[var-annotated]
    assert stopped(data, folder / "run", 3, taken) == 143
    return folder, taken[: 4 * 32]  # the loader is ahead of the steps


@pytest.fixture(scope="module")
def two(files: Path, data: Path, held_out: Path, spoilt: Path, begun: tuple[Path, list[float]]) -> dict[str, Any]:
    """What two processes found, beside another group on this machine, where MASTER_PORT is taken."""
    found: list[int] = []
    with socket.socket() as taken, pytest.MonkeyPatch.context() as patch:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        patch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        other = threading.Thread(target=lambda: found.append(launch(alone, 2)))
        other.start()
        result = launch(several, 2, (files, data, held_out, spoilt, begun[0]))
        other.join(120)
    return {**result, "beside": found}


@pytest.fixture(scope="module")
def four(files: Path, data: Path, held_out: Path) -> dict[str, Any]:
    return launch(agreeing, 4, (files, data, held_out))


def assert_agrees(one: dict[str, Any], many: dict[str, Any], world: int) -> None:
    steps, ages = many["uneven_files"]
    assert steps == [7] * world
    assert sorted(ages) == sorted(one["uneven_files"][1])
    assert len(ages) == sum(SIZES)
    assert many["train_on_uneven_files"][1] == pytest.approx(one["train_on_uneven_files"][1], rel=1e-4)
    assert many["few_rows"] == pytest.approx(one["few_rows"], rel=1e-3)
    for name in ("train_on_uneven_files", "fork_1", "fork_3", "only_tables", "only_dense", "two_names"):
        wanted, found = one[name], many[name]
        wanted, found = (wanted[0], found[0]) if isinstance(wanted, tuple) else (wanted, found)
        assert wanted.keys() == found.keys()
        for key, x in wanted.items():
            assert torch.allclose(found[key], x, atol=2e-6), (name, key)


def test_two_processes_agree_with_one(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert_agrees(one, two, 2)


@pytest.mark.slow
def test_four_processes_agree_with_one(one: dict[str, Any], four: dict[str, Any]) -> None:
    assert_agrees(one, four, 4)
    assert four["judged"] == one["judged"] * 4


def test_parts_of_a_batch_agree_where_a_layer_is_used_in_one_of_them(one: dict[str, Any]) -> None:
    for key, x in one["fork_1"].items():
        assert torch.allclose(one["fork_3"][key], x, atol=2e-6), key


def test_a_layer_that_no_row_uses_stays(one: dict[str, Any], two: dict[str, Any]) -> None:
    torch.manual_seed(0)
    before = Fork().state_dict()
    for name in ("never.weight", "never.bias", "unused.weights.table_nobody"):
        assert torch.equal(two["fork_1"][name], before[name])
    assert not torch.equal(two["fork_1"]["sides.1.weight"], before["sides.1.weight"])


def test_every_row_is_used_once_in_an_order_that_changes_with_the_epoch(data: Path, two: dict[str, Any]) -> None:
    alone = [age for batch in loader(data).batches(0) for age in batch.features["age"].tolist()]  # type: ignore[union-attr]
    first, second, third, again = two["order"]
    assert first == again
    assert sorted(first) == sorted(second) == sorted(third) == sorted(alone)
    assert first != second != third != first


def test_a_validation_counts_seven_rows_and_is_exact(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert one["judged"][0]["count"] == 7
    assert one["judged"][0]["loss"] == 0.5
    assert two["judged"] == one["judged"] * 2


def test_rates_are_one_processes_and_equal_on_all(one: dict[str, Any], two: dict[str, Any]) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.001)
    scheduler, wanted = torch.optim.lr_scheduler.StepLR(optimizer, 10), []
    for _ in range(30):
        wanted.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert two["rates"]["step"] == [pytest.approx(wanted)] * 2
    assert one["rates"]["step"] == [pytest.approx(wanted)]
    # The metric falls on rank 0 alone, whose word counts: no epoch after the first is better.
    assert two["rates"]["plateau"] == [pytest.approx([1e-3, 1e-3, 1e-4, 1e-5])] * 2


def test_processes_skip_float16_steps_together(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert two["half"] == pytest.approx(one["half"], rel=1e-2)


def test_two_groups_on_one_machine_both_finish(two: dict[str, Any]) -> None:
    assert two["beside"] == [1]


def test_a_run_goes_from_one_process_to_two_and_back(
    data: Path, begun: tuple[Path, list[float]], two: dict[str, Any]
) -> None:
    folder, rows_of_one = begun
    assert two["stopped"] == [143, 143]
    seen, whole, model = Seen(), net(), net(seed=9)
    wanted = Trainer(config()).fit(whole, loader(data))
    result = Trainer(config(), folder / "run", callbacks=[seen]).fit(model, loader(data), resume="must")
    assert seen.steps == [9, 10]
    assert result.rows == 320
    assert result.metrics["loss"] == pytest.approx(wanted.metrics["loss"], rel=1e-5)
    for name, x in weights(whole).items():
        assert torch.allclose(model.state_dict()[name], x, atol=1e-4), name
    order = [age for batch in loader(data).batches(0) for age in batch.features["age"].tolist()]  # type: ignore[union-attr]
    assert rows_of_one == order[: 4 * 32]
    for step in range(4, 8):  # what two processes took next, in steps of sixteen rows each
        batch = sorted(order[step * 32 : (step + 1) * 32])
        half = len(two["taken"]) // 2
        first, second = two["taken"][:half], two["taken"][half:]
        place = slice((step - 4) * 16, (step - 3) * 16)
        assert sorted(first[place] + second[place]) == batch


def test_a_signal_to_any_process_makes_all_write_a_snapshot(two: dict[str, Any]) -> None:
    assert two["saved_on_signal"] == ["00000005"]


def test_a_callback_that_fails_on_one_process_ends_the_training_of_all(two: dict[str, Any]) -> None:
    found = two["callbacks"]
    other = "DistributedError: a callback failed on another process"
    for name in ("start", "step", "epoch", "end"):
        assert found[name] == [other, "ValueError: the last one has had enough"], name
    assert found["main"] == ["ValueError: the main process has had enough", other]
    for name in ("start", "step", "epoch"):
        assert found[f"ends_{name}"] == [1, 1]


def test_some_callbacks_are_for_the_main_process_alone(two: dict[str, Any]) -> None:
    assert two["callbacks"]["steps"] == [10, 0]


def test_a_callback_of_any_process_ends_the_training_of_all(two: dict[str, Any]) -> None:
    assert two["callbacks"]["epochs"] == [1, 1]


def test_a_folder_that_cannot_be_written_is_an_error_on_all(two: dict[str, Any]) -> None:
    mistakes = two["mistakes"]["file"]
    assert [mistake.partition(":")[0] for mistake in mistakes] == ["ArtifactError", "DistributedError"]
    assert all("cannot be written: [Errno 20] Not a directory" in mistake for mistake in mistakes)


def test_a_full_disk_is_an_error_on_all_and_what_was_saved_is_whole(
    begun: tuple[Path, list[float]], data: Path, two: dict[str, Any]
) -> None:
    folder = begun[0] / "full"
    mistakes = two["mistakes"]["full"]
    assert [mistake.partition(":")[0] for mistake in mistakes] == ["ArtifactError", "DistributedError"]
    assert all("cannot be written: " in mistake for mistake in mistakes)
    assert not (folder / "manifest.json").exists()
    last = json.loads((folder / "last.json").read_text())["snapshot"]
    assert last == "00000003"
    assert read_artifact(folder / "snapshots" / last, "snapshot")
    seen, whole, model = Seen(), net(), net(seed=9)
    Trainer(config(snapshot_steps=3), folder, callbacks=[seen]).fit(model, loader(data), resume="must")
    assert seen.steps == [4, 5, 6, 7, 8, 9, 10]
    Trainer(config()).fit(whole, loader(data))
    for name, x in weights(whole).items():
        assert torch.allclose(model.state_dict()[name], x, atol=1e-4), name


def test_a_run_that_is_there_or_another_one_is_refused_by_all(two: dict[str, Any]) -> None:
    assert all("holds a run already" in mistake for mistake in two["mistakes"]["again"])
    assert all("train.epochs = 1 there, 5 given" in mistake for mistake in two["mistakes"]["other"])


def test_a_row_that_is_no_number_is_named_on_all(spoilt: Path, two: dict[str, Any]) -> None:
    assert two["mistakes"]["nan"] == ["DataError: the loss is nan at step 2 of epoch 1"] * 2


def test_one_process_says_the_same(spoilt: Path) -> None:
    alone = said(lambda: Trainer(config()).fit(net(), Loader(spoilt, batch_size=32)))
    assert alone == ["DataError: the loss is nan at step 2 of epoch 1"]


def test_all_begin_with_the_weights_of_the_first(one: dict[str, Any], two: dict[str, Any]) -> None:
    torch.manual_seed(1)
    other = OnlyDense()
    torch.manual_seed(0)
    assert not same(other, OnlyDense())  # rank 1 began elsewhere, and came to what one process comes to
    for name, x in one["only_dense"].items():
        assert torch.allclose(two["only_dense"][name], x, atol=2e-6)
