"""The index of scores finds what the exact index finds with a unit vector for each item."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from falconet.batch import Ragged
from falconet.errors import ArtifactError, DataError
from falconet.retrieval.exact import ExactIndex
from falconet.retrieval.scores import ScoreIndex

CODES = torch.tensor([9, 3, 4, 7])
INDEX = ScoreIndex(CODES, 11)


@pytest.mark.parametrize("k", [1, 3, 6])
@pytest.mark.parametrize("exclude", [None, [[4, 3], [], [9, 7, 4, 3, 100]]])
@pytest.mark.parametrize("include", [None, [7, 4, 88], []])
def test_it_is_the_exact_index_of_unit_vectors(
    k: int, exclude: list[list[int]] | None, include: list[int] | None
) -> None:
    torch.manual_seed(0)
    queries = torch.randn(3, 11).round()  # with ties
    exact = ExactIndex(torch.nn.functional.one_hot(CODES, 11).float(), CODES)
    filters = (
        None if exclude is None else Ragged.of(exclude),
        None if include is None else torch.tensor(include, dtype=torch.int64),
    )
    for found, wanted in zip(INDEX.search(queries, k, *filters), exact.search(queries, k, *filters), strict=True):
        assert torch.equal(found, wanted)


def test_it_is_the_same_from_disk(tmp_path: Path) -> None:
    INDEX.save(tmp_path / "index.safetensors")
    loaded = ScoreIndex.load(tmp_path / "index.safetensors")
    assert (loaded.codes.tolist(), loaded.dim, len(loaded)) == ([3, 4, 7, 9], 11, 4)
    ExactIndex(torch.ones(4, 2), CODES).save(tmp_path / "exact.safetensors")
    with pytest.raises(ArtifactError, match="is no ScoreIndex of format 2: it says"):
        ScoreIndex.load(tmp_path / "exact.safetensors")
    with pytest.raises(ArtifactError, match="no index at"):
        ScoreIndex.load(tmp_path / "nothing")
    (tmp_path / "damaged").write_bytes((tmp_path / "index.safetensors").read_bytes()[:-3])
    with pytest.raises(ArtifactError, match="is not a whole index"):
        ScoreIndex.load(tmp_path / "damaged")


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(DataError, match="code 4 is there twice"):
        ScoreIndex(torch.tensor([4, 4]), 9)
    with pytest.raises(DataError, match="numbers from 0 to 8"):
        ScoreIndex(torch.tensor([9]), 9)
    with pytest.raises(DataError, match=r"queries \(2, 5\) are not the scores of 11 codes"):
        INDEX.search(torch.ones(2, 5), 3)
    with pytest.raises(DataError, match="query 1 is not finite"):
        INDEX.search(torch.tensor([[0.0] * 11, [torch.nan] * 11]), 3)
    with pytest.raises(DataError, match="k must be at least 1"):
        INDEX.search(torch.ones(2, 11), 0)
    with pytest.raises(DataError, match="1 lists of codes to exclude for 2 queries"):
        INDEX.search(torch.ones(2, 11), 1, Ragged.of([[3]]))
