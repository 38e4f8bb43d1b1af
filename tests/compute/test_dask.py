"""Clusters: which is started and how, what its workers must have, and what travels to and from them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import distributed
import polars as pl
import pytest

from falconet import Dataset, Shuffle, Workflow, ops
from falconet.compute import cluster as clusters
from falconet.compute.dask import DaskExecutor
from falconet.compute.exchange import spread
from falconet.compute.executor import Part, reach, reading
from falconet.errors import ConfigError, DistributedError


def test_options_of_the_cluster_and_of_its_workers_pass_through(tmp_path: Path) -> None:
    options = {
        "n_workers": 1,
        "threads_per_worker": 3,
        "protocol": "tcp",
        "host": "127.0.0.1",
        "memory_limit": "300MB",
        "local_directory": str(tmp_path),
        "resources": {"lamps": 2},
    }
    with DaskExecutor(cluster=options) as executor:
        (worker,) = executor._open().scheduler_info()["workers"].values()
        assert executor.workers == 3
        assert (worker["nthreads"], worker["memory_limit"], worker["resources"]) == (3, 300_000_000, {"lamps": 2})
        assert worker["local_directory"].startswith(str(tmp_path))
        assert worker["nanny"].startswith("tcp://127.0.0.1:")


def test_an_option_there_is_not_is_refused_with_the_close_one() -> None:
    with pytest.raises(ConfigError, match=r"LocalCluster has no option `n_worker`[\s\S]*did you mean `n_workers`"):
        DaskExecutor(cluster={"n_worker": 2})
    with pytest.raises(ConfigError, match=r"no option `rmm_pool_size`[\s\S]*those of GPUs need dask-cuda and a GPU"):
        DaskExecutor(cluster={"rmm_pool_size": "1GB"})
    with pytest.raises(ConfigError, match="no option `asynchronous`"):
        DaskExecutor(cluster={"asynchronous": True})


def test_options_of_a_worker_class_are_known() -> None:
    class Worker(distributed.Nanny):
        def __init__(self, *args: Any, lamps: int = 0, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)

    clusters._check(distributed.LocalCluster, {"worker_class": Worker, "lamps": 3})
    with pytest.raises(ConfigError, match=r"no option `lamp`[\s\S]*did you mean `lamps`"):
        clusters._check(distributed.LocalCluster, {"worker_class": Worker, "lamp": 3})


class LocalCUDACluster(distributed.LocalCluster):
    """Stands in for dask-cuda's: some of its options, and no GPU. It remembers what it was given."""

    given: dict[str, Any]

    def __init__(
        self, CUDA_VISIBLE_DEVICES: Any = None, device_memory_limit: Any = 0.8, rmm_pool_size: Any = None, **kwargs: Any
    ) -> None:
        type(self).given = {"rmm_pool_size": rmm_pool_size, **kwargs}
        super().__init__(n_workers=0, **kwargs)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Give the machine some GPUs and dask-cuda."""

    def give(count: int) -> None:
        pynvml, dask_cuda = ModuleType("pynvml"), ModuleType("dask_cuda")
        pynvml.__spec__ = dask_cuda.__spec__ = pytest.__spec__
        error = type("NVMLError", (Exception,), {})

        def init() -> None:
            if count == 0:
                raise error("no driver")

        vars(pynvml).update(NVMLError=error, nvmlInit=init, nvmlDeviceGetCount=lambda: count)
        vars(dask_cuda).update(LocalCUDACluster=LocalCUDACluster)
        monkeypatch.setitem(sys.modules, "pynvml", pynvml)
        monkeypatch.setitem(sys.modules, "dask_cuda", dask_cuda)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return give


def test_with_dask_cuda_and_a_gpu_each_gpu_has_a_worker(gpus: Callable[[int], None]) -> None:
    gpus(2)
    DaskExecutor(cluster={"rmm_pool_size": "1GB", "protocol": "tcp"}).close()
    assert LocalCUDACluster.given == {
        "rmm_pool_size": "1GB",
        "protocol": "tcp",
        "threads_per_worker": 1,
        "processes": True,
        "dashboard_address": "127.0.0.1:0",
    }
    with pytest.raises(ConfigError, match=r"LocalCUDACluster has no option `rmm_pol_size`[\s\S]*`rmm_pool_size`"):
        DaskExecutor(cluster={"rmm_pol_size": "1GB"})


def test_without_a_gpu_dask_cuda_is_not_used(gpus: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(0)
    assert clusters._cuda() == (LocalCUDACluster, 0)
    with pytest.raises(ConfigError, match=r"LocalCluster has no option `rmm_pool_size`"):
        DaskExecutor(cluster={"rmm_pool_size": "1GB"})
    gpus(2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert clusters._cuda() == (None, 0)


def test_the_address_of_the_dashboard_is_said(capsys: pytest.CaptureFixture[str], dask_executor: DaskExecutor) -> None:
    address = dask_executor._open().scheduler_info()["address"]
    with DaskExecutor(address):
        link = dask_executor._open().dashboard_link
        assert capsys.readouterr().err.startswith(f"Dask dashboard: {link}")


class FakeClient:
    """One worker that has what it is said to have."""

    def __init__(self, **have: str | None) -> None:
        self._have = {**clusters._facts()(), **have}

    def run(self, fn: Callable[[], object], workers: Sequence[str]) -> dict[str, dict[str, str | None]]:
        return dict.fromkeys(workers, self._have)


def test_workers_must_have_the_same_falconet_and_polars() -> None:
    clusters.check_workers(FakeClient(), ["tcp://far:1"])
    with pytest.raises(DistributedError, match=r"worker at tcp://far:1 has no falconet\s+hint: pip install falconet=="):
        clusters.check_workers(FakeClient(falconet=None), ["tcp://far:1"])
    with pytest.raises(DistributedError, match=rf"worker at tcp://far:1 has polars 2\.0, here it is {pl.__version__}"):
        clusters.check_workers(FakeClient(polars="2.0"), ["tcp://far:1"])
    with pytest.raises(DistributedError, match=r"has falconet 9\.9, here it is"):
        clusters.check_workers(FakeClient(falconet="9.9"), ["tcp://far:1"])


def test_the_question_reaches_a_python_without_falconet(tmp_path: Path) -> None:
    (tmp_path / "cloudpickle").symlink_to(Path(cloudpickle.__file__).parent)
    ask = "import sys, pickle; sys.path.append(sys.argv[1]); print(pickle.load(sys.stdin.buffer)())"
    asked = cloudpickle.dumps(clusters._facts())
    done = subprocess.run(
        [sys.executable, "-IS", "-c", ask, str(tmp_path)], input=asked, capture_output=True, check=True
    )
    python = ".".join(map(str, sys.version_info[:2]))
    assert done.stdout.decode().strip() == str({"Python": python, "falconet": None, "polars": None})


def test_workers_of_a_scheduler_are_asked_once(dask_executor: DaskExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[set[str]] = []
    real = clusters.check_workers

    def spy(client: Any, addresses: set[str]) -> None:
        asked.append(addresses)
        real(client, addresses)

    monkeypatch.setattr(clusters, "check_workers", spy)
    with DaskExecutor(dask_executor._open()) as executor:
        executor.map(len, ["a"])
        executor.map(len, ["b"])
    assert asked == [set(dask_executor._open().nthreads())]


def test_a_folder_that_a_worker_does_not_see_is_named(dask_executor: DaskExecutor, tmp_path: Path) -> None:
    assert dask_executor.map(reach, [str(tmp_path)]) == [tmp_path]
    with pytest.raises(
        DistributedError, match=r"`/not/there` is not seen on \S+\s+hint: workers on other machines need"
    ):
        dask_executor.map(reach, ["/not/there"])


def test_an_exchange_whose_folder_is_not_shared_says_so(tmp_path: Path) -> None:
    pl.DataFrame({"x": [1]}).write_parquet(tmp_path / "data.parquet")

    class Elsewhere:
        """An executor on a machine that does not see the folder."""

        workers, budget = 1, 1 << 30

        def map(self, fn: Any, parts: Any, *, done: Any = None) -> Any:
            (tmp_path / "room").rename(tmp_path / "here")
            try:
                return [fn(part) for part in parts]
            finally:
                (tmp_path / "here").rename(tmp_path / "room")

        def map_reduce(self, fn: Any, parts: Any, merge: Any) -> Any:
            return merge(self.map(fn, parts))

    part = Part(str(tmp_path / "data.parquet"), 0, 1, 0)
    with pytest.raises(DistributedError, match=rf"`{tmp_path}/room` is not seen on"):
        spread(Elsewhere(), [part], apply=lambda f: f, folder=tmp_path / "room")


def test_data_that_a_worker_does_not_see_are_named(tmp_path: Path) -> None:
    with (
        pytest.raises(DistributedError, match=r"`/far/data.parquet` is not seen on \S+\s+hint: .* under the same path"),
        reading("`/far/data.parquet`"),
    ):
        Part("/far/data.parquet", 0, 1, 0, ("x",)).scan().collect()


def test_rows_stay_on_the_workers(dask_executor: DaskExecutor, tmp_path: Path) -> None:
    """What workers send, to each other and to the client, in a fit and a shuffled write of four megabytes."""

    def sent() -> int:
        found = dask_executor._open().run(lambda dask_worker: dask_worker.transfer_outgoing_bytes_total)
        return int(sum(found.values()))

    frame = pl.DataFrame({"user": [i % 97 for i in range(250_000)], "x": range(250_000)})
    frame.write_parquet(tmp_path / "data.parquet", row_group_size=25_000)
    dataset = Dataset(tmp_path / "data.parquet", part_size="400KB")
    before = sent()
    fitted = Workflow((["user"] >> ops.Categorify()) + (["x"] >> ops.Normalize())).fit(dataset, dask_executor)
    fitted.transform(dataset).to_parquet(tmp_path / "out", shuffle=Shuffle.FULL, output_files=3)
    assert len(dataset.parts()) == 20
    assert before < sent() < before + 200_000
