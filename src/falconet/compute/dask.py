"""The executor of a Dask cluster, running already or started on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from falconet.compute import cluster as clusters
from falconet.compute.cluster import distributed
from falconet.compute.engine import Engine, On, check_engine
from falconet.errors import ConfigError, DistributedError
from falconet.memory import SHARE, machine_memory
from falconet.progress import note

if TYPE_CHECKING:
    from distributed import Client, Future

T = TypeVar("T")
R = TypeVar("R")
WIDTH = 8  # states merged by one task


class DaskExecutor:
    """Runs functions on the workers of a Dask cluster. Only parts, functions and states travel, and folders are shared:
    workers on other machines must see the data, the outputs' folders and TMPDIR under the same paths.

    `target` is the address of a scheduler, a `distributed.Client`, or None: worker processes on this machine, made
    with the options in `cluster`, which share the cores between them. They are those of `distributed.LocalCluster` and
    its workers (`n_workers`, `threads_per_worker`, `memory_limit`, `local_directory`, `protocol`, `dashboard_address`
    …), or, where dask-cuda is installed and there is a GPU, those of `dask_cuda.LocalCUDACluster`
    (`CUDA_VISIBLE_DEVICES`, `device_memory_limit`, `rmm_pool_size` …), with one worker for each GPU. A script that
    starts them needs the `if __name__ == "__main__":` of every Python program with processes.

    `engine` is Polars' engine on the workers: "gpu" is for workers that have `cudf_polars`.

    Use it as a context manager, or `close()` it: what it started ends, a client that was handed in stays open.
    Raises ConfigError without the extra, for another target, for an unknown option, and when it is used after `close`;
    DistributedError for workers without falconet, or with another version of it, of Polars or of Python.

    >>> with DaskExecutor(cluster={"n_workers": 2}) as executor:  # doctest: +SKIP
    ...     fitted = workflow.fit(dataset, executor=executor)
    """

    def __init__(
        self,
        target: str | Client | None = None,
        *,
        cluster: Mapping[str, Any] | None = None,
        timeout: float = 30.0,
        engine: Engine = "auto",
    ) -> None:
        check_engine(engine)
        self._engine: Engine = engine
        self._cluster: Any = None
        self._client: Any = None
        self._checked: set[str] = set()  # workers that were asked what they have
        self._owned = not isinstance(target, distributed().Client)
        if target is not None and cluster:
            raise ConfigError(
                f"DaskExecutor was given a target and options for a new cluster ({', '.join(sorted(cluster))})",
                hint="leave one of them out",
            )
        if isinstance(target, distributed().Client):
            self._client = target
        elif isinstance(target, str):
            self._client = clusters.connect(target, timeout)
        elif target is None:
            self._cluster = clusters.start(cluster or {}, engine)
            self._client = distributed().Client(self._cluster, set_as_default=False)
        else:
            raise ConfigError(
                f"DaskExecutor cannot use a {type(target).__name__}",
                hint='an address such as "tcp://host:8786", a distributed.Client, or None for this machine',
            )
        if self._owned:
            note(clusters.dashboard(self._client))

    @property
    def workers(self) -> int:
        """How many functions run at once: the threads of all workers."""
        return sum(self._open().nthreads().values())

    @property
    def budget(self) -> int:
        """Bytes that the states of a fit may take: a share of the smallest worker's memory, and of this machine's."""
        workers = self._open().scheduler_info(n_workers=-1)["workers"].values()
        limits = [worker["memory_limit"] // worker["nthreads"] for worker in workers if worker["memory_limit"]]
        least: int = min([machine_memory(), *limits])
        return least // SHARE

    def map(self, fn: Callable[[T], R], parts: Sequence[T], *, done: Callable[[T], None] | None = None) -> list[R]:
        if not parts:
            return []
        client = self._open()
        function = self._send(fn)
        futures = [client.submit(_call, function, part, pure=False) for part in parts]
        part_of = {future.key: part for future, part in zip(futures, parts, strict=True)}
        with _waiting_for(client, futures):
            for future in distributed().as_completed(futures, loop=client.loop):
                future.result()
                if done is not None:
                    done(part_of[future.key])
            return list(client.gather(futures))

    def map_reduce(self, fn: Callable[[T], R], parts: Sequence[T], merge: Callable[[Sequence[R]], R]) -> R:
        if not parts:
            return merge([])
        client = self._open()
        function, merger = self._send(fn), self._send(merge)
        states = [client.submit(_call, function, part, pure=False) for part in parts]
        while True:
            groups = [states[i : i + WIDTH] for i in range(0, len(states), WIDTH)]
            states = [client.submit(_call, merger, group, pure=False) for group in groups]
            if len(states) == 1:
                break
        with _waiting_for(client, states):
            result: R = states[0].result()
            return result

    def close(self) -> None:
        """End what this executor started. A second call does nothing."""
        client, cluster = self._client, self._cluster
        self._client = self._cluster = None
        if client is not None and self._owned:
            client.close()
        if cluster is not None:
            cluster.close()

    def __enter__(self) -> DaskExecutor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> Any:
        if self._client is None:
            raise ConfigError("this DaskExecutor is closed", hint="use it inside its `with` block")
        return self._client

    def _send(self, fn: Callable[[Any], Any]) -> Future[Any]:
        """The function on the cluster, sent once: it may hold a large table."""
        client = self._open()
        try:
            client.wait_for_workers(1, timeout=60)
        except TimeoutError as error:
            raise DistributedError("the Dask cluster has no workers", hint="`dask worker ADDRESS` adds one") from error
        if self._cluster is None and (new := set(client.nthreads()) - self._checked):
            clusters.check_workers(client, new)
            self._checked |= new
        sent: Future[Any] = clusters.send(client, On(self._engine, fn))
        return sent


def _call(fn: Callable[[Any], Any], value: Any) -> Any:
    return fn(value)


@contextmanager
def _waiting_for(client: Any, futures: list[Future[Any]]) -> Iterator[None]:
    """Wait in its body for tasks: what ends it early ends them too, and workers that die of a part are named."""
    try:
        yield
    except BaseException as error:
        client.cancel(futures)
        if isinstance(error, distributed().KilledWorker):
            raise DistributedError(
                f"workers died {error.allowed_failures + 1} times while they ran a part",
                hint="mostly for lack of memory: a smaller `part_size`, fewer workers, or more `memory_limit`",
            ) from error
        raise
