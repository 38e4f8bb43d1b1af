"""Clusters of Dask: which one is started, with which options, and whether its workers can do the work.

Nothing else imports dask, distributed or dask_cuda.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from multiprocessing import current_process
from typing import Any

from falconet.compute.engine import Engine, require_gpu
from falconet.errors import ConfigError, DistributedError, suggest

_OURS = {"self", "asynchronous", "loop", "start", "scheduler_ip", "scheduler_file"}  # what we or the cluster set
_GUARD = 'a script that starts workers does so below `if __name__ == "__main__":`; what else went wrong they say above'


def distributed() -> Any:
    """The module. Raises ConfigError where it is not installed."""
    try:
        import distributed
    except ImportError as error:
        raise ConfigError("DaskExecutor needs Dask", hint='pip install "falconet[dask]"') from error
    return distributed


def connect(address: str, timeout: float) -> Any:
    """A client of the scheduler at an address."""
    try:
        return distributed().Client(address, set_as_default=False, timeout=timeout)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"no Dask scheduler answers at `{address}`: {error}", hint="`dask scheduler` starts one, at tcp://host:8786"
        ) from error


def start(options: Mapping[str, Any], engine: Engine) -> Any:
    """A cluster on this machine: one worker for each GPU where dask-cuda is installed and sees one, else for the CPU.

    The workers' Polars together use each core once.
    """
    import dask

    if getattr(current_process(), "_inheriting", False):
        # This is a worker, which runs the script that started it, to have its names.
        raise ConfigError("a script that starts Dask workers is run by each of them", hint=_GUARD)
    if engine == "gpu":
        require_gpu()
    cuda, gpus = _cuda()
    cluster = cuda if gpus else distributed().LocalCluster
    _check(cluster, options)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    defaults: dict[str, Any] = {"threads_per_worker": 1, "processes": True, "dashboard_address": "127.0.0.1:0"}
    if not gpus:
        defaults["n_workers"] = max(min(cores, 2), cores // 4)
    chosen = defaults | dict(options)
    # Set before the process starts: it may import Polars, which reads it once, before Dask's own settings are applied.
    before = dict(dask.config.get("distributed.nanny.pre-spawn-environ"))
    share = max(1, cores // max(1, chosen.get("n_workers") or gpus or 1))
    before["POLARS_MAX_THREADS"] = (chosen.get("env") or {}).get("POLARS_MAX_THREADS", share)
    with dask.config.set({"distributed.nanny.pre-spawn-environ": before}):
        try:
            return cluster(**chosen)
        except RuntimeError as error:
            reason = str(error.__cause__ or error)
            raise DistributedError(f"the Dask workers did not start: {reason}", hint=_GUARD) from None


def dashboard(client: Any) -> str:
    """What to say of the dashboard: its address."""
    pages = "" if find_spec("bokeh") else " (`pip install bokeh` gives it its pages)"
    return f"Dask dashboard: {client.dashboard_link}{pages}"


def check_workers(client: Any, addresses: Iterable[str]) -> None:
    """Raise DistributedError for a worker that could not run our functions, or would run them differently."""
    here = _facts()()
    for address, there in client.run(_facts(), workers=list(addresses)).items():
        for name, ours in here.items():
            if there[name] is None:
                raise DistributedError(
                    f"the Dask worker at {address} has no {name}",
                    hint=f"pip install {name}=={ours} where `dask worker` runs, in its Python",
                )
            if there[name] != ours:
                raise DistributedError(
                    f"the Dask worker at {address} has {name} {there[name]}, here it is {ours}",
                    hint="the same versions on all machines: results must not depend on which of them does the work",
                )


def send(client: Any, value: Any) -> Any:
    """A future of the value, which functions on all workers may be given.

    It is the result of a task, and the scheduler runs that again where all workers that have it die. What Dask scatters
    is lost then, and where a worker dies meanwhile the client may wait for its answer for ever.
    """
    import dask

    pickle = distributed().protocol.pickle
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TB"}):
        return client.submit(pickle.loads, pickle.dumps(value), pure=False)


def _facts() -> Callable[[], dict[str, str | None]]:
    """A function that says what a process has. It is nested so that it travels as it is, not as a name of falconet."""

    def facts() -> dict[str, str | None]:
        from importlib.metadata import PackageNotFoundError, version
        from importlib.util import find_spec
        from platform import python_version_tuple

        found: dict[str, str | None] = {"Python": ".".join(python_version_tuple()[:2])}
        for name in ("falconet", "polars"):
            try:
                found[name] = version(name) if find_spec(name) else None
            except PackageNotFoundError:
                found[name] = "of a source tree"
        return found

    return facts


def _cuda() -> tuple[Any, int]:
    """`LocalCUDACluster` and the number of GPUs it would use; (None, 0) without dask-cuda."""
    if find_spec("dask_cuda") is None or os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return None, 0
    import dask_cuda
    import pynvml

    try:
        pynvml.nvmlInit()
        return dask_cuda.LocalCUDACluster, int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return dask_cuda.LocalCUDACluster, 0


def _check(cluster: Any, options: Mapping[str, Any]) -> None:
    """Raise ConfigError for an option that neither the cluster nor the workers it starts take."""
    known = _names(cluster, distributed().Nanny, distributed().Worker)
    if inspect.isclass(options.get("worker_class")):
        known |= _names(options["worker_class"])
    for name in options:
        if name not in known:
            hint = suggest(name, known)
            if cluster is distributed().LocalCluster:
                hint += "; those of GPUs need dask-cuda and a GPU"
            raise ConfigError(f"{cluster.__name__} has no option `{name}`", hint=hint)


def _names(*classes: Any) -> set[str]:
    """The options that constructors name: a class that takes others too hands them on, up to LocalCluster."""
    names: set[str] = set()
    for kind in classes:
        for base in inspect.getmro(kind):
            if "__init__" in vars(base):
                named = inspect.signature(vars(base)["__init__"]).parameters.values()
                names |= {p.name for p in named if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
            if base in (distributed().LocalCluster, distributed().Nanny, distributed().Worker):
                break
    return names - _OURS
