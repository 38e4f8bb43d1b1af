"""Products over many rows, a ReLU by the bits, and room for rows that are added up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from falconet.nn import MLP
from falconet.nn.products import in_blocks, over_rows
from falconet.nn.projection import Stack, add_rows
from falconet.nn.relu import back_through, relu_


@pytest.fixture(params=[1, 3], ids=["one thread", "three threads"])
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("rows", [0, 1, 1024, 2500, 3072, 9001])
def test_products_over_rows_are_those_of_all_blocks(rows: int) -> None:
    torch.manual_seed(0)
    y, x = torch.randn(rows, 6), torch.randn(rows, 4)
    wanted = y.double().T @ x.double()
    torch.testing.assert_close(over_rows(y, x).double(), wanted, rtol=1e-4, atol=1e-3)
    y, x = y.bfloat16(), x.bfloat16()
    starts = torch.randn(len(in_blocks(y)), 6, 4).bfloat16()
    assert sum(map(len, in_blocks(y))) == rows
    wanted = y.double().T @ x.double()
    size = max(rows, 1) ** 0.5
    found = over_rows(y, x)
    assert found.dtype == torch.float32
    assert float((found - wanted).abs().max()) < 0.01 * size
    if rows:
        assert float((over_rows(y, x, starts) - wanted - starts.double().sum(0)).abs().max()) < 0.02 * size


def test_what_products_begin_with_leaves_the_digits_of_the_difference() -> None:
    torch.manual_seed(0)
    y, x = torch.ones(1000, 1).bfloat16(), (torch.randn(1000, 1) * 0.1 + 100).bfloat16()
    wanted = float(x.double().sum()) - 100_000
    found = float(over_rows(y, x, torch.full((1, 1, 1), -100_352.0).bfloat16())) + 352  # 100,352 is a bfloat16
    assert abs(found - wanted) < 2
    assert abs(float(over_rows(y, x)) - wanted - 100_000) > 50


def special() -> Tensor:
    """All numbers of bfloat16."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16)


def test_a_relu_by_the_bits_is_a_relu_and_keeps_what_is_no_number() -> None:
    x = special().clone().requires_grad_() * 1
    wanted = special().relu()
    found = relu_(x)
    assert found.data_ptr() == x.data_ptr()
    assert torch.equal(found.nan_to_num(nan=-1.0), wanted.nan_to_num(nan=-1.0))
    assert int(found.isnan().sum()) == int(special().isnan().sum()) == 254
    finite = ~found.isnan()
    gradient = torch.randn(2**16).bfloat16()
    passed = back_through(gradient, found.detach())
    assert torch.equal(passed[finite], torch.where(found.detach() > 0, gradient, 0)[finite])


def test_layers_take_it_with_the_same_gradients() -> None:
    torch.manual_seed(0)
    mlp, x = MLP(6, (16, 8), 1, batch_norm=False), torch.randn(50, 6)
    found = []
    for hooked in (False, True):  # with a hook torch's own ReLU is called
        if hooked:
            for layer in mlp.rest:
                if isinstance(layer, nn.ReLU):
                    layer.register_forward_hook(lambda *_: None)
        mlp.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            y = mlp(x)
            assert (mlp.rest[:1](mlp.first(x)).grad_fn.name() == "_ReluBackward") == (not hooked)
        y.float().square().sum().backward()
        found.append([y.detach(), *(p.grad.clone() for p in mlp.parameters() if p.grad is not None)])
    assert len(found[0]) == 7
    assert all(map(torch.equal, *found))


def test_rows_in_a_stack_are_not_copied_and_others_are_where_there_is_room() -> None:
    weight = nn.Parameter(torch.zeros(3, 5))
    for room in (100, 12, 9, 2, 0):
        stack = Stack(room, weight, torch.float32)
        first, second = stack.take(4).fill_(1), stack.take(2).fill_(2)
        other = torch.full((6, 3), 3.0)
        whole, starts = stack.put([second, other, first])
        for part, start in zip((second, other, first), starts, strict=True):
            assert torch.equal(whole[start : start + len(part)], part)
        assert (whole.data_ptr() == first.data_ptr()) == (room >= 12)


@pytest.mark.parametrize("room", [100, 0])
def test_sums_of_rows_in_a_stack_and_their_gradients(room: int) -> None:
    torch.manual_seed(0)
    weight, bias, beside = nn.Parameter(torch.zeros(3, 5)), torch.randn(3), torch.randn(7, 3, requires_grad=True)
    stack = Stack(room, weight, torch.float32)
    rows, places = torch.randn(4, 3), torch.tensor([0, 3, 1, 1, 0, 2, 3])
    taken = stack.take(4).copy_(rows).requires_grad_()
    found = add_rows([(taken, places)], [beside], bias, torch.float32, stack)
    torch.testing.assert_close(found, rows[places] + beside + bias)
    found.square().sum().backward()
    assert taken.grad is not None
    torch.testing.assert_close(taken.grad, torch.zeros(4, 3).index_add_(0, places, 2 * found.detach()))
    torch.testing.assert_close(beside.grad, 2 * found.detach())
