"""The demo's data: made once, and made again where it is not whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from falconet.recipe.demo import prepare_demo


def test_damaged_demo_data_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    from falconet.datasets import synthetic

    whole = synthetic.synthesize

    def small(folder: Path) -> Path:
        made.append(folder)
        return whole(folder, users=20, items=10, rows=100)

    monkeypatch.setattr(synthetic, "synthesize", small)
    assert prepare_demo(tmp_path).data.path == str(tmp_path / "raw")
    prepare_demo(tmp_path)
    assert len(made) == 1
    (tmp_path / "raw/movies.parquet").unlink()
    prepare_demo(tmp_path)
    assert len(made) == 2
    assert (tmp_path / "raw/movies.parquet").is_file()
