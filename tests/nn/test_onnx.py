"""Programs as ONNX models: steps of lists, whatever the rows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from falconet.batch import Batch, Ragged
from falconet.errors import ArtifactError, ConfigError
from falconet.nn.export import export, flat

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("falconet.nn.onnx")


class Lists(nn.Module):
    """Sums, means and weighed sums of the vectors of lists, and what stands in the last row of each value."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(20.0).view(5, 4))

    def forward(self, batch: Batch) -> Tensor:
        lists, numbers = batch.features["lists"], batch.features["number"]
        assert isinstance(lists, Ragged)
        assert isinstance(numbers, Tensor)
        values, of_rows = lists.values.long(), numbers[lists.row_of_value()]

        def pooled(mode: str, weights: Tensor | None = None, padding: int | None = 0) -> Tensor:
            return F.embedding_bag(
                values, self.weight, lists.offsets, mode=mode, include_last_offset=True,
                padding_idx=padding, per_sample_weights=weights,
            )  # fmt: skip

        return torch.cat([pooled("sum"), pooled("mean"), pooled("sum", of_rows, None)], dim=1)


def batch(*lists: list[int]) -> Batch:
    numbers = torch.arange(1.0, len(lists) + 1)
    return Batch.of({"number": numbers, "lists": Ragged.of(list(lists), torch.int32)})


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> object:
    file = tmp_path_factory.mktemp("onnx") / "lists.onnx"
    example = batch([1, 2], [3])
    file.write_bytes(onnx.to_onnx(export(Lists(), example), tuple(flat(example))))
    assert str(Path(__file__).parent).encode() not in file.read_bytes()
    return onnx.OnnxProgram(file)


@pytest.mark.parametrize(
    "lists", [[[]], [[4]], [[], [1, 1, 0], [], [2, 0, 4, 3], []], [[], []], [[0], [0, 0]], []], ids=str
)
@torch.no_grad()
def test_lists_are_pooled_as_torch_does_it(program: object, lists: list[list[int]]) -> None:
    rows = batch(*lists)
    found = program(flat(rows))  # type: ignore[operator]
    assert found.shape == (len(lists), 12)
    torch.testing.assert_close(found, Lists()(rows))


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(ArtifactError, match=r"bad\.onnx` is no ONNX model"):
        onnx.OnnxProgram(tmp_path / "bad.onnx")


@pytest.mark.parametrize("name", ["onnx", "onnxscript", "onnxruntime"])
def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"need {name}, which is not installed[\s\S]*falconet\[onnx\]"):
        onnx.needs_onnx()
