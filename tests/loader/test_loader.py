"""The loader: whole columns, every row once, the same batches from memory and from the files, no thread left."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import torch

from falconet.batch import Batch, Ragged
from falconet.errors import ColumnNotFoundError, ConfigError, DataError, SchemaError
from falconet.loader.loader import Loader
from falconet.schema import Schema
from falconet.train.runtime import Runtime

Make = Callable[..., Path]


def rows(batches: object) -> list[int]:
    return [int(row) for batch in batches for row in batch.features["row"]]  # type: ignore[attr-defined]


def assert_same(a: Batch, b: Batch) -> None:
    assert (a.rows, a.global_rows, a.features.keys(), a.targets.keys()) == (
        b.rows,
        b.global_rows,
        b.features.keys(),
        b.targets.keys(),
    )
    pairs = [(a.features[k], b.features[k]) for k in a.features] + [(a.targets[k], b.targets[k]) for k in a.targets]
    for x, y in [*pairs, (a.weights, b.weights)]:
        if isinstance(x, Ragged):
            assert isinstance(y, Ragged)
            torch.testing.assert_close((x.values, x.offsets), (y.values, y.offsets), rtol=0, atol=0)
        else:
            torch.testing.assert_close(x, y, rtol=0, atol=0)


def test_columns_arrive_as_tensors_of_the_documented_types(numbered_folder: Make) -> None:
    (batch,) = Loader(numbered_folder([3, 2]), batch_size=10).batches()
    assert list(batch.features) == ["row", "item", "genres", "vector", "price"]
    assert {k: v.dtype for k, v in batch.features.items() if isinstance(v, torch.Tensor)} == {
        "row": torch.int64,
        "item": torch.int32,
        "vector": torch.float32,
        "price": torch.float32,
    }
    genres = batch.features["genres"]
    assert isinstance(genres, Ragged)
    assert genres.to_lists() == [[], [1], [2, 2], [], [4]]
    assert (genres.values.dtype, genres.offsets.dtype) == (torch.int32, torch.int64)
    assert batch.features["vector"].tolist() == [[0, 0], [1, -1], [2, -2], [3, -3], [4, -4]]  # type: ignore[union-attr]
    assert batch.features["price"].tolist() == [0, 0.5, 1, 1.5, 2]  # type: ignore[union-attr]
    assert {k: v.dtype for k, v in batch.targets.items()} == {"liked": torch.float32}
    assert batch.targets["liked"].tolist() == [1, 0, 1, 0, 1]
    assert batch.weights is not None
    assert batch.weights.tolist() == [1, 2, 3, 4, 5]
    assert (batch.rows, batch.global_rows) == (5, 5)


def test_the_schema_of_a_loader_is_that_of_the_loaded_columns(numbered_folder: Make, numbered_schema: Schema) -> None:
    loader = Loader(numbered_folder([3, 2]), batch_size=2)
    assert loader.schema == numbered_schema.without(["title", "count"])
    assert (loader.rows, len(loader), loader.batch_size) == (5, 3, 2)


def test_named_columns_are_loaded_tagged_or_not_and_targets_always(numbered_folder: Make) -> None:
    (batch,) = Loader(numbered_folder([3]), batch_size=10, columns=["count", "row"]).batches()
    assert list(batch.features) == ["count", "row"]
    assert batch.features["count"].tolist() == [0, 1, 4]  # type: ignore[union-attr]
    assert list(batch.targets) == ["liked"]


def test_a_file_without_a_schema_loads_every_column_that_can_be_a_tensor(one_column: Make) -> None:
    path = one_column({"age": [1, 2], "name": ["a", "b"], "score": [0.5, 1.5], "tags": [[1], []]})
    (batch,) = Loader(path, batch_size=5).batches()
    assert list(batch.features) == ["age", "score", "tags"]


@pytest.mark.parametrize("memory", ["memory", "stream"])
def test_every_row_comes_once_tail_included(numbered_folder: Make, memory: str) -> None:
    loader = Loader(numbered_folder([5] * 8), batch_size=5, shuffle=True, seed=7, window=12, memory=memory)  # type: ignore[arg-type]
    epochs = [rows(loader.batches(epoch)) for epoch in range(3)]
    assert all(sorted(order) == list(range(40)) for order in epochs)
    assert len({tuple(order) for order in epochs}) == 3
    assert rows(loader.batches(1)) == epochs[1]


def test_rows_of_all_partitions_mix_within_a_batch(numbered_folder: Make) -> None:
    batches = list(Loader(numbered_folder([5] * 8), batch_size=5, shuffle=True).batches())
    assert [b.rows for b in batches] == [5] * 8
    assert all(len({row // 5 for row in rows([batch])}) > 1 for batch in batches)


def test_another_seed_is_another_order(numbered_folder: Make) -> None:
    folder = numbered_folder([50])
    orders = {tuple(rows(Loader(folder, batch_size=5, shuffle=True, seed=seed).batches())) for seed in range(3)}
    assert len(orders) == 3


def test_without_shuffle_rows_keep_the_order_of_the_files(numbered_folder: Make) -> None:
    assert rows(Loader(numbered_folder([5, 0, 7]), batch_size=5, memory="stream").batches()) == list(range(12))


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_ranks_take_equal_steps_and_together_every_row_once(numbered_folder: Make, world: int) -> None:
    loader = Loader(numbered_folder([10, 3, 7, 1, 6]), batch_size=4, shuffle=True, seed=1, window=9, memory="stream")
    by_rank = [list(loader.batches(2, rank=rank, world=world)) for rank in range(world)]
    assert [len(batches) for batches in by_rank] == [7] * world
    alone = list(loader.batches(2))
    for step, batch in enumerate(alone):
        shares = [batches[step] for batches in by_rank]
        assert rows(shares) == rows([batch])
        assert {share.global_rows for share in shares} == {batch.rows}
    assert sorted(rows(alone)) == list(range(27))


def test_one_partition_serves_two_ranks(numbered_folder: Make) -> None:
    loader = Loader(numbered_folder([50]), batch_size=7, shuffle=True)
    assert sorted(rows(loader.batches(rank=0, world=2)) + rows(loader.batches(rank=1, world=2))) == list(range(50))


def test_a_rank_without_rows_gets_an_empty_batch(numbered_folder: Make) -> None:
    (batch,) = Loader(numbered_folder([1]), batch_size=4).batches(rank=0, world=2)
    assert (batch.rows, batch.global_rows, batch.features["row"].shape, batch.features["vector"].shape) == (  # type: ignore[union-attr]
        0,
        1,
        (0,),
        (0, 2),
    )
    assert batch.features["genres"].offsets.tolist() == [0]  # type: ignore[union-attr]


def test_two_launched_processes_take_seven_steps_and_every_row_once(numbered_folder: Make) -> None:
    folder = numbered_folder([10, 3, 7, 1, 6])
    code = (
        "from falconet.loader.loader import Loader\n"
        f"batches = list(Loader({str(folder)!r}, batch_size=4, shuffle=True))\n"
        "print(len(batches), *[int(row) for batch in batches for row in batch.features['row']])"
    )
    launched = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, **launched, "RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    steps, shares = [], []
    for process in processes:
        step, *share = map(int, process.communicate(timeout=60)[0].split())
        steps.append(step)
        shares.append(share)
    assert [process.returncode for process in processes] == [0, 0]
    assert steps == [7, 7]
    assert sorted(shares[0] + shares[1]) == list(range(27))


def test_a_runtime_given_decides_whose_share_iteration_gives(numbered_folder: Make) -> None:
    loader = Loader(numbered_folder([10]), batch_size=4, runtime=Runtime(rank=1, world=2))
    assert rows(loader) == rows(loader.batches(rank=1, world=2)) == [2, 3, 6, 7, 9]


def test_drop_last_drops_the_rest_alone(numbered_folder: Make) -> None:
    loader = Loader(numbered_folder([10]), batch_size=4, drop_last=True)
    assert (len(loader), loader.rows, rows(loader.batches())) == (2, 8, list(range(8)))


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("window", [1, 9, 1000])
def test_memory_and_stream_give_the_same_batches(numbered_folder: Make, window: int, world: int) -> None:
    folder = numbered_folder([10, 3, 7, 0, 1, 36], row_group=4)
    memory, stream = (
        Loader(folder, batch_size=6, shuffle=True, seed=3, window=window, memory=mode)  # type: ignore[arg-type]
        for mode in ("memory", "stream")
    )
    assert (memory.mode, stream.mode) == ("memory", "stream")
    for rank in range(world):
        pairs = zip(memory.batches(1, rank=rank, world=world), stream.batches(1, rank=rank, world=world), strict=True)
        for a, b in pairs:
            assert_same(a, b)


@pytest.mark.parametrize("memory", ["memory", "stream"])
@pytest.mark.parametrize("start", [0, 1, 4, 6, 7, 9])
def test_an_epoch_can_start_at_any_step(numbered_folder: Make, start: int, memory: str) -> None:
    loader = Loader(numbered_folder([10, 3, 7, 1, 6]), batch_size=4, shuffle=True, window=5, memory=memory)  # type: ignore[arg-type]
    whole = list(loader.batches(1))
    rest = list(loader.batches(1, start))
    assert len(rest) == max(7 - start, 0)
    for a, b in zip(whole[start:], rest, strict=True):
        assert_same(a, b)


def test_iterating_gives_one_epoch_after_the_other(numbered_folder: Make) -> None:
    loader = Loader(numbered_folder([10]), batch_size=4, shuffle=True)
    assert [rows(loader) for _ in range(3)] == [rows(loader.batches(epoch)) for epoch in range(3)]
    loader.set_epoch(1)
    assert rows(loader) == rows(loader.batches(1))


def test_a_loop_that_asks_no_more_after_the_last_batch_has_ended_its_epoch(numbered_folder: Make) -> None:
    loader = Loader(numbered_folder([10]), batch_size=4, shuffle=True)
    for epoch in range(3):
        assert rows(islice(loader, len(loader))) == rows(loader.batches(epoch))
        assert (loader.epoch, loader.step) == (epoch + 1, 0)
    loader.set_epoch(5, step=3)
    assert rows(loader) == rows(loader.batches(6))


def test_an_epoch_that_was_broken_off_starts_again(numbered_folder: Make) -> None:
    loader = Loader(numbered_folder([10]), batch_size=4, shuffle=True)
    peeked = rows([next(iter(loader))])
    assert rows(loader)[:4] == peeked
    assert loader.epoch == 1


def test_a_saved_position_goes_on_in_mid_epoch_on_another_number_of_processes(numbered_folder: Make) -> None:
    folder = numbered_folder([10, 3, 7, 1, 6])

    def fresh() -> Loader:
        return Loader(folder, batch_size=4, shuffle=True, seed=5, window=9)

    first = fresh()
    rows(first)
    batches = iter(first)
    seen = rows([next(batches), next(batches)])
    state = first.state_dict()
    assert (state["epoch"], state["step"]) == (1, 2)
    second = fresh()
    second.load_state_dict(state)
    assert (second.epoch, second.step) == (1, 2)
    shares = [second.batches(second.epoch, second.step, rank, 2) for rank in (0, 1)]
    rest = [row for pair in zip(*shares, strict=True) for row in rows(pair)]
    assert seen + rest == rows(first.batches(1))
    assert rows(second) == rest
    assert rows(second) == rows(first.batches(2))


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("seed", 2, "the saved position has seed = 1, this loader has 2\n\nhint: use seed = 1, or start anew"),
        ("batch_size", 8, "the saved position has batch_size = 4, this loader has 8"),
        ("window", 3, "the saved position has window = 1048576, this loader has 3"),
        ("shuffle", False, "the saved position has shuffle = True, this loader has False"),
        ("drop_last", True, "the saved position has drop_last = False, this loader has True"),
    ],
)
def test_a_position_in_another_order_is_refused(
    numbered_folder: Make, setting: str, value: object, message: str
) -> None:
    folder = numbered_folder([10])
    settings = {"batch_size": 4, "shuffle": True, "seed": 1}
    state = Loader(folder, **settings).state_dict()  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=message):
        Loader(folder, **{**settings, setting: value}).load_state_dict(state)  # type: ignore[arg-type]


def test_a_position_in_other_data_or_of_another_format_is_refused(numbered_folder: Make) -> None:
    loader = Loader(numbered_folder([10]), batch_size=4)
    state = loader.state_dict()
    with pytest.raises(DataError, match="the saved position \\(data\\) belongs to other files than those of"):
        Loader(numbered_folder([5, 5], name="other"), batch_size=4).load_state_dict(state)
    with pytest.raises(ConfigError, match="the saved position has format 1, this version reads 2"):
        loader.load_state_dict({**state, "format": 1})
    with pytest.raises(ConfigError, match="the saved position lacks the key `lanes`"):
        loader.load_state_dict({k: v for k, v in state.items() if k != "lanes"})
    with pytest.raises(ConfigError, match="the saved position has an unknown key `x`"):
        loader.load_state_dict({**state, "x": 1})


def test_a_moved_folder_is_the_same_data(numbered_folder: Make, tmp_path: Path) -> None:
    folder = numbered_folder([10, 5])
    state = Loader(folder, batch_size=4).state_dict()
    folder.rename(tmp_path / "moved")
    Loader(tmp_path / "moved", batch_size=4).load_state_dict(state)


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("falconet-loader")]


@pytest.mark.parametrize("memory", ["memory", "stream"])
def test_no_thread_is_left_whatever_ends_the_loop(numbered_folder: Make, memory: str) -> None:
    loader = Loader(numbered_folder([10] * 4), batch_size=4, window=5, memory=memory)  # type: ignore[arg-type]
    for _ in loader:
        assert ours()
    assert not ours()
    for _ in loader:
        break
    assert not ours()
    with pytest.raises(ZeroDivisionError):
        for _ in loader:
            1 / 0  # noqa: B018
    assert not ours()
    batches = loader.batches()
    next(batches)
    batches.close()
    assert not ours()


def test_no_file_is_left_open(numbered_folder: Make) -> None:
    opened = Path("/proc/self/fd")
    if not opened.is_dir():
        pytest.skip("needs /proc")
    folder = numbered_folder([10] * 4)
    loader = Loader(folder, batch_size=4, window=5, memory="stream")
    next(iter(loader))
    rows(loader)
    assert not [fd for fd in opened.iterdir() if fd.exists() and str(folder) in str(fd.resolve())]


def test_an_interpreter_that_ends_in_mid_epoch_ends_well(numbered_folder: Make) -> None:
    code = (
        "import sys\nfrom falconet.loader.loader import Loader\n"
        f"batches = Loader({str(numbered_folder([100] * 5))!r}, batch_size=3, memory='stream', window=50).batches()\n"
        "next(batches)\nsys.exit(3)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (3, "")


@pytest.mark.parametrize("memory", ["memory", "stream"])
def test_an_error_in_the_thread_is_raised_in_the_loop(one_column: Make, memory: str) -> None:
    path = one_column({"age": [1, None, 3, None]})
    with pytest.raises(
        DataError, match=r"column `age` of `.*one.parquet` \(row group 0\) has 2 missing values among 4"
    ) as error:
        list(Loader(path, batch_size=2, memory=memory).batches())  # type: ignore[arg-type]
    assert error.value.hint == "`FillMissing` fills them, `Dropna` leaves their rows out"
    assert not ours()


def test_a_damaged_file_is_named(numbered_folder: Make) -> None:
    folder = numbered_folder([1000])
    loader = Loader(folder, batch_size=2)
    file = folder / "part-000.parquet"
    data = bytearray(file.read_bytes())
    data[: len(data) // 2] = b"\xff" * (len(data) // 2)
    file.write_bytes(data)
    with pytest.raises(DataError, match=r"row group 0 of `.*part-000.parquet` cannot be read"):
        list(loader.batches())


def test_the_rows_of_a_missing_file_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file or folder"):
        Loader(tmp_path / "nothing", batch_size=2)


def test_a_tagged_string_column_is_refused_with_a_way_out(numbered_folder: Make, numbered_schema: Schema) -> None:
    tagged = Schema(tuple(c.with_tags("item") if c.name == "title" else c for c in numbered_schema))
    folder = numbered_folder([3], schema=tagged)
    with pytest.raises(
        SchemaError,
        match=r"column `title` of `.*` holds string, which cannot become a tensor\n\nhint: `Categorify` turns values",
    ):
        Loader(folder, batch_size=2)
    assert Loader(folder, batch_size=2, columns=["row"]).schema.names == ("row", "liked", "importance")


def test_a_column_that_is_not_there_gets_a_suggestion(numbered_folder: Make) -> None:
    with pytest.raises(ColumnNotFoundError, match=r"has no column `genre`\n\nhint: did you mean `genres`?"):
        Loader(numbered_folder([3]), batch_size=2, columns=["genre"])


def test_settings_are_checked_before_anything_is_read(numbered_folder: Make) -> None:
    folder = numbered_folder([3])
    with pytest.raises(ConfigError, match="`batch_size` must be a whole number of at least 1, not 0"):
        Loader(folder, batch_size=0)
    with pytest.raises(ConfigError, match="`prefetch` must be a whole number of at least 1, not 0"):
        Loader(folder, batch_size=1, prefetch=0)
    with pytest.raises(ConfigError, match="`memory` must be auto, memory, stream or device, not 'gpu'"):
        Loader(folder, batch_size=1, memory="gpu")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="`rank` must be from 0 to 1 where there are 2 processes, not 2"):
        Loader(folder, batch_size=1).batches(rank=2, world=2)
    with pytest.raises(ConfigError, match="`start` must be a step, not -1"):
        Loader(folder, batch_size=1).batches(start=-1)


def test_no_rows_are_no_batches(numbered_folder: Make) -> None:
    loader = Loader(numbered_folder([0]), batch_size=2)
    assert (len(loader), loader.rows, list(loader.batches())) == (0, 0, [])
