"""Which way of fetching is taken, what is said of it, and how batches get to a GPU."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conftest import need
from falconet import progress
from falconet.batch import Batch, Ragged
from falconet.columns import Table
from falconet.errors import ConfigError
from falconet.loader import modes
from falconet.loader.loader import Loader, Memory
from falconet.loader.modes import choose, deliver
from falconet.loader.source import Source
from falconet.train.runtime import Runtime

Make = Callable[..., Path]
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("need", "device", "budget", "processes", "mode", "room"),
    [
        (2 << 30, CPU, None, 1, "memory", 2 << 30),  # a quarter of 8 GiB
        ((2 << 30) + 1, CPU, None, 1, "stream", 2 << 30),
        (2 << 30, CPU, None, 2, "stream", 1 << 30),
        (1000, CPU, 1000, 1, "memory", 1000),
        (1000, CPU, 1999, 2, "stream", 999),
        (1 << 30, GPU, None, 4, "device", 1 << 30),  # a quarter of 4 GiB, on a GPU of its own
        ((1 << 30) + 1, GPU, None, 1, "memory", 2 << 30),
        (1000, GPU, 1000, 1, "device", 1000),
        (1000, GPU, 999, 1, "stream", 999),
    ],
)
def test_the_fastest_mode_that_fits_is_taken(
    monkeypatch: pytest.MonkeyPatch,
    need: int,
    device: torch.device,
    budget: int | None,
    processes: int,
    mode: str,
    room: int,
) -> None:
    monkeypatch.setattr(modes, "machine_memory", lambda: 8 << 30)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (4 << 30, 80 << 30))
    assert choose(need, device, budget, processes) == (mode, room)


def test_no_more_than_four_gib_are_taken_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes, "machine_memory", lambda: 512 << 30)
    assert choose(5 << 30, CPU, None, 1) == ("stream", 4 << 30)


def test_the_choice_is_said_once_by_the_first_process(
    numbered_folder: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_quiet", False)
    folder = numbered_folder([1000])
    loader = Loader(folder, batch_size=100, budget="1MB")
    list(loader.batches(0, 0, 1, 2))
    assert capsys.readouterr().err == ""
    list(loader)
    list(loader)
    size = loader.bytes
    assert 40_000 < size < 60_000
    told = f"`{folder}`: 1,000 rows, {size / 1000:.1f} KB as tensors, kept in memory: within the budget of 1.0 MB\n"
    assert capsys.readouterr().err == told
    list(Loader(folder, batch_size=100, budget=1000).batches())
    assert "read in every epoch: more than the budget of 1.0 KB" in capsys.readouterr().err
    list(Loader(folder, batch_size=100, memory="stream").batches())
    assert capsys.readouterr().err == ""


def test_processes_of_a_machine_share_the_budget_and_lanes_the_data(numbered_folder: Make) -> None:
    folder = numbered_folder([400], row_group=100)
    size = Loader(folder, batch_size=10).bytes

    def mode(lanes: int, world: int, local: int, budget: int) -> str:
        runtime = Runtime(rank=0, world=world, local_world=local)
        return Loader(folder, batch_size=10, lanes=lanes, budget=budget, runtime=runtime).mode

    assert (mode(1, 2, 2, 2 * size), mode(1, 2, 2, 2 * size - 2), mode(1, 2, 1, size)) == ("memory", "stream", "memory")
    assert (mode(4, 2, 2, size + 100), mode(4, 2, 2, size // 2)) == ("memory", "stream")


def test_batches_are_made_by_one_thread_of_torch_and_all_others_keep_theirs(numbered_folder: Make) -> None:
    before, found = torch.get_num_threads(), list[int]()
    torch.set_num_threads(3)
    try:
        loader = Loader(
            numbered_folder([100]),
            batch_size=50,
            transforms=[lambda batch: found.append(torch.get_num_threads()) or batch],
        )
        for _ in loader:
            assert torch.get_num_threads() == 3
        with ThreadPoolExecutor(1) as later:
            assert later.submit(torch.get_num_threads).result() == 3
    finally:
        torch.set_num_threads(before)
    assert found == [1, 1]


@pytest.mark.parametrize("memory", ["memory", "stream"])
def test_batches_come_out_on_the_device(numbered_folder: Make, memory: Memory) -> None:
    """The device `meta` has shapes and types alone."""
    loader = Loader(numbered_folder([30], row_group=10), batch_size=8, memory=memory, device="meta")
    for batch in loader.batches():
        found: list[Tensor] = []
        batch.apply(lambda x: (found.append(x), x)[1])  # noqa: B023
        assert [x.device.type for x in found] == ["meta"] * 8


def test_columns_kept_on_a_device_give_the_same_batches(numbered_folder: Make) -> None:
    """The CPU stands for the device here; `scripts/gpu_check.py` and the last test do the same on a GPU."""
    folder = numbered_folder([30], row_group=10)
    wanted = Loader(folder, batch_size=8, shuffle=True, memory="stream").batches()
    for a, b in zip(wanted, Loader(folder, batch_size=8, shuffle=True, memory="device").batches(), strict=True):
        assert torch.equal(a.features["row"], b.features["row"])  # type: ignore[arg-type]


def test_row_groups_pasted_in_any_order_are_as_they_were_read(numbered_folder: Make) -> None:
    loader = Loader(numbered_folder([7, 0, 5, 9], row_group=4), batch_size=3)
    source = loader._source
    groups = range(len(source.groups))
    sizes, values = [source.groups[i].rows for i in groups], [source.room([i])["genres"] for i in groups]
    pasted = Table(source.fields, sum(sizes) + len(sizes), source.room(groups))
    for i in reversed(groups):
        pasted.seek(sum(sizes[:i]) + i, {"genres": sum(values[:i])})
        pasted.paste(source.read([i]))
    rows = torch.tensor([sum(sizes[:i]) + i + row for i in groups for row in range(sizes[i])])
    found, wanted = pasted.take(rows), source.read(groups).take(torch.arange(21))
    assert found["genres"].to_lists() == wanted["genres"].to_lists()  # type: ignore[union-attr]
    assert torch.equal(found["vector"], wanted["vector"])  # type: ignore[arg-type]


def test_a_device_that_is_not_there_is_refused(numbered_folder: Make) -> None:
    folder = numbered_folder([3])
    with pytest.raises(ConfigError, match="`device` is 'gpu', which torch does not know\n\nhint: cpu, cuda or cuda:0"):
        Loader(folder, batch_size=1, device="gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="`device` is 'cuda', but there is no GPU that this torch can use"):
            Loader(folder, batch_size=1, device="cuda")
    with pytest.raises(ConfigError, match="'lots' is not a size"):
        Loader(folder, batch_size=1, budget="lots")


class FakeStream:
    """Writes down what is asked of it."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def record_event(self) -> str:
        self.log.append(f"{self.name} records")
        return "event"

    def wait_event(self, event: str) -> None:
        self.log.append(f"{self.name} waits for {event}")


def test_copies_to_a_gpu_run_on_a_stream_of_their_own_and_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    @contextmanager
    def on(stream: FakeStream) -> Iterator[None]:
        log.append(f"on {stream.name}")
        yield
        log.append(f"off {stream.name}")

    def pin(x: Tensor) -> Tensor:
        log.append("pin")
        return x

    def copy(x: Tensor, device: torch.device, non_blocking: bool) -> Tensor:
        log.append(f"to {device}{' without waiting' if non_blocking else ''}")
        return x

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream("side", log))
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: FakeStream("main", log))
    monkeypatch.setattr(Tensor, "pin_memory", pin)
    monkeypatch.setattr(Tensor, "to", copy)
    monkeypatch.setattr(Tensor, "record_stream", lambda x, stream: log.append(f"kept for {stream.name}"))

    def one() -> Generator[Batch]:
        yield Batch({"x": torch.ones(2)}, {}, 2, 2, None)

    (batch,) = deliver(one(), GPU, 1)
    made = ["on side", "pin", "to cuda:0 without waiting", "off side", "side records"]
    assert [line for line in log if line in made][:5] == made
    assert [line for line in log if "main" in line] == ["main waits for event", "kept for main"]
    assert log.index("side records") < log.index("main waits for event")
    assert batch.features["x"].tolist() == [1, 1]  # type: ignore[union-attr]


@pytest.mark.parametrize("memory", ["device", "memory", "stream"])
def test_a_gpu_gets_the_same_batches(numbered_folder: Make, memory: Memory) -> None:
    need("gpu", torch.cuda.is_available())
    folder = numbered_folder([500, 300], row_group=100)
    wanted = list(Loader(folder, batch_size=64, shuffle=True, window=300).batches(1))
    loader = Loader(folder, batch_size=64, shuffle=True, window=300, memory=memory, device="cuda")
    for a, b in zip(wanted, loader.batches(1), strict=True):
        for name, x in b.features.items():
            tensors = (x.values, x.offsets) if isinstance(x, Ragged) else (x,)
            assert {t.device.type for t in tensors} == {"cuda"}
            y = a.features[name]
            for t, u in zip(tensors, (y.values, y.offsets) if isinstance(y, Ragged) else (y,), strict=True):
                assert torch.equal(t.cpu(), u)


def test_a_loader_that_moves_gives_its_batches_there_and_keeps_its_rows_where_it_was_already(
    numbered_folder: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    fill = Source.fill
    monkeypatch.setattr(Source, "fill", lambda self, table, group: (read.append(group), fill(self, table, group)))
    loader = Loader(numbered_folder([12, 8]), batch_size=8, memory="memory")

    def device_of_an_epoch() -> set[str]:
        return {x.device.type for batch in loader.batches() for x in batch.features.values() if isinstance(x, Tensor)}

    assert device_of_an_epoch() == {"cpu"}
    groups = len(read)
    loader.move_to("cpu")
    assert device_of_an_epoch() == {"cpu"}
    assert len(read) == groups > 0
    loader.move_to("meta")
    assert device_of_an_epoch() == {"meta"}
    assert len(read) == 2 * groups
