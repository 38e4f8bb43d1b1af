"""Budgets: what a fit may use of the memory there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from falconet import memory
from falconet.compute.dask import DaskExecutor
from falconet.compute.local import LocalExecutor
from falconet.errors import ConfigError
from falconet.memory import machine_memory


def test_a_container_that_is_allowed_less_has_less(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "_LIMITS", (str(tmp_path / "none"), str(limit)))
    whole = machine_memory()
    limit.write_text("max\n")
    assert machine_memory() == whole
    limit.write_text("1048576\n")
    assert machine_memory() == 1_048_576


def test_states_may_take_a_quarter() -> None:
    assert LocalExecutor(memory="1GB").budget == 250_000_000
    assert LocalExecutor(memory=4096).budget == 1024
    assert LocalExecutor().budget == machine_memory() // 4


def test_a_memory_that_is_no_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="'lots' is not a size"):
        LocalExecutor(memory="lots")


def test_states_of_a_cluster_fit_its_smallest_worker(dask_executor: DaskExecutor) -> None:
    limit = dask_executor.map(lambda _: __import__("distributed").get_worker().memory_manager.memory_limit, [1])[0]
    assert dask_executor.budget == min(limit, machine_memory()) // 4


def test_workers_without_a_limit_have_the_machine() -> None:
    with DaskExecutor(cluster={"n_workers": 1, "memory_limit": 0}) as executor:
        assert executor.budget == machine_memory() // 4
