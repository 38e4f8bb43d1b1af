"""Every executor gives the same lists and states, in the order of the parts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import distributed
import polars as pl
import pytest

from falconet.compute.dask import DaskExecutor
from falconet.compute.executor import ROW, Executor, Part
from falconet.compute.local import LocalExecutor
from falconet.errors import ConfigError, DataError, DistributedError


def test_results_come_in_the_order_of_the_parts(executor: Executor) -> None:
    assert executor.map(lambda x: x * x, list(range(20))) == [x * x for x in range(20)]


def test_no_parts_give_no_results(executor: Executor) -> None:
    assert executor.map(lambda x: x, []) == []


def test_done_is_called_here_once_for_each_part(executor: Executor) -> None:
    seen: list[int] = []
    executor.map(lambda x: -x, [3, 1, 2], done=seen.append)
    assert sorted(seen) == [1, 2, 3]


@pytest.mark.parametrize("count", [1, 2, 8, 9, 70])
def test_states_of_all_parts_are_merged(executor: Executor, count: int) -> None:
    def merge(states: Sequence[int]) -> int:
        return sum(states)

    assert executor.map_reduce(lambda x: x, list(range(count)), merge) == count * (count - 1) // 2


def test_frames_travel_as_states(executor: Executor) -> None:
    def merge(states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        return pl.concat(states).group_by("x").sum().sort("x")

    got = executor.map_reduce(lambda n: pl.DataFrame({"x": [n % 2], "n": [1]}), list(range(5)), merge)
    assert got.to_dict(as_series=False) == {"x": [0, 1], "n": [3, 2]}


def test_an_error_of_a_function_arrives_with_its_hint(executor: Executor) -> None:
    def fail(x: int) -> int:
        raise DataError(f"`part-{x}` is empty", hint="write it again")

    with pytest.raises(DataError, match=r"`part-7` is empty\n\nhint: write it again"):
        executor.map(fail, [7])
    with pytest.raises(DataError, match="`part-7` is empty"):
        executor.map_reduce(fail, [7], sum)
    assert executor.map(lambda x: x, [1]) == [1]


def test_an_executor_says_how_many_functions_run_at_once(dask_executor: DaskExecutor) -> None:
    assert (LocalExecutor().workers, LocalExecutor(workers=3).workers, dask_executor.workers) == (1, 3, 2)


def test_a_local_executor_needs_a_worker() -> None:
    with pytest.raises(ConfigError, match="workers=0"):
        LocalExecutor(workers=0)


def test_dask_workers_are_processes_whose_polars_share_the_cores(dask_executor: DaskExecutor) -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = dask_executor.map(lambda _: (os.getpid(), pl.thread_pool_size()), list(range(8)))
    assert os.getpid() not in {pid for pid, _ in found}
    told = os.environ.get("POLARS_MAX_THREADS")  # which Dask lets win
    assert {threads for _, threads in found} == {max(1, cores // 2) if told is None else int(told)}


class Counted:
    """A table of a megabyte that counts how often it arrives in a process."""

    arrivals = 0

    def __init__(self) -> None:
        self.table = pl.DataFrame({"x": range(1 << 17)})

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        count = int(os.environ.get("ARRIVALS", "0")) + 1
        os.environ["ARRIVALS"] = str(count)

    def __call__(self, i: int) -> tuple[int, int]:
        return os.getpid(), int(os.environ["ARRIVALS"])


def test_a_table_travels_once_to_a_worker_and_not_with_every_part(dask_executor: DaskExecutor) -> None:
    dask_executor.map(lambda _: os.environ.pop("ARRIVALS", None), list(range(16)))
    assert {count for _, count in dask_executor.map(Counted(), list(range(40)))} == {1}


def test_a_client_that_was_handed_in_stays_open(dask_executor: DaskExecutor) -> None:
    client = dask_executor._open()
    with DaskExecutor(client) as executor:
        assert executor.map(lambda x: x + 1, [1]) == [2]
    assert client.status == "running"
    with pytest.raises(ConfigError, match=r"closed[\s\S]*`with` block"):
        executor.map(lambda x: x, [1])


def test_an_address_is_a_target(dask_executor: DaskExecutor) -> None:
    address = dask_executor._open().scheduler_info()["address"]
    with DaskExecutor(address) as executor:
        assert executor.map_reduce(lambda x: x, [1, 2, 3], sum) == 6
        executor.close()


def test_nobody_at_the_address_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"no Dask scheduler answers at `tcp://127.0.0.1:9`[\s\S]*dask scheduler"):
        DaskExecutor("tcp://127.0.0.1:9", timeout=0.5)


def test_other_targets_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"cannot use a int[\s\S]*tcp://host:8786"):
        DaskExecutor(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"options for a new cluster \(n_workers\)"):
        DaskExecutor("tcp://127.0.0.1:9", cluster={"n_workers": 2})


def test_without_the_extra_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ConfigError, match=r'needs Dask[\s\S]*pip install "falconet\[dask\]"'):
        DaskExecutor()


SCRIPT = """
import polars as pl
from falconet.compute.dask import DaskExecutor
if __name__ == "__main__":
    with DaskExecutor(cluster={"n_workers": 1}) as executor:
        print(executor.map(lambda x: x + 1, [1, 2]))
"""


def test_a_script_starts_and_ends_workers_and_says_where_the_dashboard_is(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == "[2, 3]\n"
    assert re.fullmatch(r"Dask dashboard: http://127\.0\.0\.1:\d+/status.*\n", done.stderr)


def test_a_script_without_a_guard_is_told_of_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text('from falconet import DaskExecutor\n\nDaskExecutor(cluster={"n_workers": 1})\n')
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert "ConfigError: a script that starts Dask workers is run by each of them" in done.stderr
    last = done.stderr[done.stderr.rindex("Traceback") :]
    assert "DistributedError: the Dask workers did not start" in last
    assert 'below `if __name__ == "__main__":`' in last


def test_a_worker_that_dies_does_not_lose_its_part(tmp_path: Path) -> None:
    """The only worker, so that the function is lost with it and sent again."""

    def die_once(x: int) -> int:
        mark = tmp_path / "died"
        if x == 5 and not mark.exists():
            mark.touch()
            os._exit(1)
        return x

    heard: list[int] = []
    with DaskExecutor(cluster={"n_workers": 1}) as executor:
        assert executor.map(die_once, list(range(10)), done=heard.append) == list(range(10))
    assert sorted(heard) == list(range(10))


def test_a_part_that_kills_every_worker_is_given_up(
    dask_executor: DaskExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(parts: list[int]) -> None:
        raise distributed.KilledWorker("part", None, 3)

    monkeypatch.setattr(distributed.Future, "result", die)
    for run in (partial(dask_executor.map, abs, [1]), partial(dask_executor.map_reduce, abs, [1], sum)):
        with pytest.raises(DistributedError, match=r"workers died 4 times[\s\S]*a smaller `part_size`"):
            run()


def test_parts_run_in_threads_of_this_process() -> None:
    found = LocalExecutor(workers=2).map(lambda _: threading.current_thread() is threading.main_thread(), [0, 1])
    assert found == [False, False]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = str(tmp_path / "part.parquet")
    pl.DataFrame({"a": [10, 11, 12, 13], "b": ["w", "x", "y", "z"]}).write_parquet(path)
    return path


def test_a_part_is_a_slice_of_its_file_with_row_numbers_of_the_data_set(file: str) -> None:
    frame = Part(file, 1, 2, 101, ("b",)).scan(row_numbers=True).collect()
    assert frame.schema == {ROW: pl.UInt64, "b": pl.String}
    assert frame.rows() == [(101, "x"), (102, "y")]


def test_a_part_widens_what_other_files_have_wider(file: str) -> None:
    assert Part(file, 0, 4, 0, casts=(("a", pl.Int128()),)).scan().collect_schema() == {"a": pl.Int128, "b": pl.String}
