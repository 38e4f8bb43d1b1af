"""The fixture `executor`: a test that asks for it runs in one thread, in two, and on two Dask processes.

A plug-in's tests get it with `pytest_plugins = ["falconet.testing.executors"]` in their top conftest.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from falconet.compute.dask import DaskExecutor
from falconet.compute.executor import Executor
from falconet.compute.local import LocalExecutor


@pytest.fixture(scope="session")
def dask_executor() -> Iterator[DaskExecutor]:
    """Two worker processes, started once."""
    with DaskExecutor(cluster={"n_workers": 2}) as executor:
        yield executor


@pytest.fixture(params=["local", "threads", "dask"])
def executor(request: pytest.FixtureRequest) -> Executor:
    """Each executor in turn."""
    if request.param == "dask":
        dask: DaskExecutor = request.getfixturevalue("dask_executor")
        return dask
    return LocalExecutor(workers={"local": 1, "threads": 2}[request.param])
