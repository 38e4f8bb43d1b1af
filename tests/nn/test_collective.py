"""Several processes: what goes over their line is what torch.distributed gives, and mistakes of one are told to all."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from falconet.errors import DistributedError
from falconet.nn.collective import all_sum, all_sum_into
from falconet.train.launch import launch
from nn.collective_workers import again_and_again, both_ways, dies_in_a_sum, made, parts, sleeps, without_a_line
from nn.workers import compiled_tower

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes meet by torch.distributed alone"),
    pytest.mark.timeout(240),
]


def test_alone_a_sum_is_what_it_was() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    total = all_sum(x)
    assert total.tolist() == [1.0, 2.0]
    assert not total.requires_grad
    assert total.data_ptr() != x.data_ptr()
    assert all_sum_into(total).wait() is total


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)])
def test_the_line_gives_what_torch_gives(world: int) -> None:
    found: dict[str, Any] = launch(both_ways, world)
    assert found["has_line"]
    line, by_torch = found["line"], found["torch"]
    assert line.keys() == by_torch.keys()
    for name, x in line.items():
        wanted = by_torch[name]
        if not isinstance(x, Tensor):
            assert x == wanted, name
        elif world == 2 or "gather" in name or not x.is_floating_point():
            assert x.dtype == wanted.dtype
            assert torch.equal(x, wanted), name
        else:  # torch's order of additions is another one
            close = {torch.bfloat16: 0.05, torch.float16: 0.01}.get(x.dtype, 1e-5)
            assert torch.allclose(x, wanted, rtol=close, atol=close), name
    total = made((7,), torch.float32, 0)
    for rank in range(1, world):
        total = total + made((7,), torch.float32, rank)
    assert torch.equal(line["(7,) torch.float32 sum"], total)  # in the order of ranks


def test_groups_come_and_go_in_one_process_and_leave_no_open_files() -> None:
    found = launch(again_and_again, 2)
    assert [told for _, *told in found] == [[i, 10 + i] for i in range(5)]
    assert len({files for files, *_ in found[1:]}) == 1


def test_where_there_is_no_line_torch_adds_up() -> None:
    assert launch(without_a_line, 2) == ([False, True, False], [3.0, 3.0])


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_killed_process_is_named_at_once_to_all(tmp_path: Path, world: int) -> None:
    with pytest.raises(DistributedError, match=f"process {world - 1} of {world} failed: it was ended by signal 9"):
        launch(dies_in_a_sum, world, (tmp_path, world - 1))
    killed = float((tmp_path / "killed").read_text())
    for rank in range(world - 1):
        when, _, told = (tmp_path / str(rank)).read_text().partition(" ")
        wanted = f"process {world - 1} of {world} has gone, and process {rank} waited for its sum of 3 float32"
        assert told == wanted
        assert float(when) - killed < 5


def test_calls_that_differ_end_with_one_message_that_says_both() -> None:
    both = r"process 0 of 2 has a sum of 2×3 float32 .*, process 1 a gather of 2×3 float32 "
    with pytest.raises(DistributedError, match=both):
        launch(parts, 2)


def test_a_process_that_is_late_is_waited_for() -> None:
    assert launch(sleeps, 2) == [0.0, 1.0]


@pytest.mark.slow
def test_a_compiled_model_asks_the_others_as_it_is() -> None:
    as_it_is, compiled = launch(compiled_tower, 2)
    assert compiled == pytest.approx(as_it_is, rel=1e-5)
