"""Small data for the tests of training."""

from __future__ import annotations

from pathlib import Path

import pytest

from train.workers import write_rows


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """320 rows in two files."""
    return write_rows(tmp_path_factory.mktemp("rows") / "train", (200, 120))


@pytest.fixture(scope="session")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """7 rows."""
    return write_rows(tmp_path_factory.mktemp("held_out") / "valid", (7,), seed=5)
