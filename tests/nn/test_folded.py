"""A BatchNorm and the linear layer behind it as one product: what it comes to, and when it is taken."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from falconet.nn import MLP, BatchNorm
from falconet.nn.folded import is_foldable, normalised_linear
from falconet.train.launch import launch
from nn.workers import folded

ROWS, CHANNELS = 3000, 16
if not is_foldable(torch.zeros(2, 3, dtype=torch.bfloat16), BatchNorm(3), nn.Linear(3, 3)):
    pytest.skip("torch has no such product for this processor", allow_module_level=True)


def apart(found: Tensor | None, wanted: Tensor | None) -> float:
    """The size of the difference beside that of what is wanted."""
    assert found is not None
    assert wanted is not None
    return float((found.detach().double() - wanted).norm() / wanted.norm())


def layers(outputs: int) -> tuple[BatchNorm, nn.Linear]:
    torch.manual_seed(0)
    norm, linear = BatchNorm(CHANNELS), nn.Linear(CHANNELS, outputs)
    for weight in norm.parameters():
        nn.init.normal_(weight, 1.0, 0.3)
    return norm, linear


@pytest.mark.parametrize("outputs", [24, 1])
@pytest.mark.parametrize("relu", [False, True], ids=["as it is", "relu"])
@pytest.mark.parametrize("mean", [0.0, 4.0])
def test_it_is_the_layers_one_after_the_other_but_for_rounding(outputs: int, relu: bool, mean: float) -> None:
    norm, linear = layers(outputs)
    x = (torch.randn(ROWS, CHANNELS) * torch.linspace(0.1, 2, CHANNELS) + mean).bfloat16().requires_grad_()
    upstream = torch.randn(ROWS, outputs).bfloat16()
    wide_norm, wide_linear = copy.deepcopy(norm).double(), copy.deepcopy(linear).double()
    found = normalised_linear(x, norm, linear, relu=relu)
    found.backward(upstream)  # type: ignore[no-untyped-call]
    y = x.detach().double().requires_grad_()
    wanted = wide_linear(F.batch_norm(y, None, None, wide_norm.weight, wide_norm.bias, True, 0.0, norm.eps))
    # The same rows pass the ReLU: which side of zero the others are on is rounding.
    (wanted * (found.detach() > 0 if relu else 1)).backward(upstream.double())
    assert found.dtype == torch.bfloat16
    # Up to 40 deviations from zero, what is constant in a channel is large, and so is its rounding.
    assert apart(found, wanted.detach().relu() if relu else wanted.detach()) < (0.03 if mean else 0.008)
    assert x.grad is not None
    assert apart(x.grad, y.grad) < 0.005
    sums_C = x.grad.double().sum(0).abs() / x.grad.double().abs().sum(0)
    assert float(sums_C.max()) < 1e-3  # zero in truth
    for mine, other in zip(
        (*norm.parameters(), *linear.parameters()), (*wide_norm.parameters(), *wide_linear.parameters()), strict=True
    ):
        assert mine.grad is not None
        assert mine.grad.dtype == torch.float32
        assert apart(mine.grad, other.grad) < 0.004


def test_running_statistics_move_as_those_of_a_batchnorm() -> None:
    (norm, linear), x = layers(3), torch.randn(ROWS, CHANNELS).bfloat16() + 1
    other = copy.deepcopy(norm)
    normalised_linear(x, norm, linear, relu=True)
    other(x)
    for mine, theirs in zip(norm.buffers(), other.buffers(), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-5)


def test_a_single_row_and_none_are_normalised_by_the_running_statistics() -> None:
    norm, linear = layers(3)
    before = [x.clone() for x in norm.buffers()]
    for rows in (0, 1):
        x = torch.full((rows, CHANNELS), -2.0, dtype=torch.bfloat16, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            found = normalised_linear(x, norm, linear, relu=True)
            wanted = linear(norm.eval()(x)).relu()
        norm.train()
        assert torch.allclose(found, wanted, rtol=0.02)
        assert found.shape == (rows, 3)
        found.sum().backward()
    assert all(map(torch.equal, before, norm.buffers()))


@pytest.mark.timeout(240)
def test_uneven_shares_of_two_processes_come_to_what_one_has() -> None:
    one, two = folded(), launch(folded, 2)
    assert one.keys() == two.keys()
    for name, wanted in one.items():
        assert apart(two[name], wanted) < 0.004, name


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_an_mlp_takes_it_where_a_linear_layer_follows(activation: str, dropout: float) -> None:
    mlp = MLP(6, (8, 8), 1, activation=activation, dropout=dropout)  # type: ignore[arg-type]
    x = torch.randn(500, 6)

    def made(rows: Tensor) -> set[str]:
        """The steps of the gradient of what the MLP gives."""
        todo, seen = [mlp(rows).grad_fn], set()
        while todo:
            step = todo.pop()
            if step is not None and step not in seen:
                seen.add(step)
                todo += [before for before, _ in step.next_functions]
        return {step.name() for step in seen}

    with torch.autocast("cpu", torch.bfloat16):
        assert ("_NormalisedLinearBackward" in made(x)) == (dropout == 0)
        mlp.eval()
        assert "_NormalisedLinearBackward" not in made(x)
    assert "_NormalisedLinearBackward" not in made(x)


def test_an_mlp_in_bfloat16_learns_as_one_in_float32() -> None:
    torch.manual_seed(1)
    narrow = MLP(6, (32, 32), 1)
    wide = copy.deepcopy(narrow)
    x, y = torch.randn(ROWS, 6), torch.randn(ROWS)
    for mlp, enabled in ((narrow, True), (wide, False)):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            found = mlp(x)
        (found.squeeze(1).float() - y).square().mean().backward()
    for (name, mine), other in zip(narrow.named_parameters(), wide.parameters(), strict=True):
        assert other.grad is not None
        assert apart(mine.grad, other.grad.double()) < 0.15, name


@pytest.mark.parametrize("far", [5.0, -100.0])
def test_channels_that_are_constant_or_far_from_zero_cost_the_others_no_digits(far: float) -> None:
    norm, linear = layers(24)
    x = torch.randn(ROWS, CHANNELS)
    x[:, 3], x[:, 5] = far, x[:, 5] + far
    x = x.bfloat16().requires_grad_()
    wide_norm, wide_linear = copy.deepcopy(norm).double(), copy.deepcopy(linear).double()
    with torch.autocast("cpu", torch.bfloat16):
        found = normalised_linear(x, norm, linear, relu=False)
    upstream = torch.randn(ROWS, 24).bfloat16()
    found.backward(upstream)  # type: ignore[no-untyped-call]
    y = x.detach().double().requires_grad_()
    wanted = wide_linear(F.batch_norm(y, None, None, wide_norm.weight, wide_norm.bias, True, 0.0, norm.eps))
    wanted.backward(upstream.double())
    assert apart(found, wanted.detach()) < 0.008
    assert x.grad is not None
    assert y.grad is not None
    for channel in range(CHANNELS):
        assert apart(x.grad[:, channel], y.grad[:, channel]) < 0.01, channel


@pytest.mark.parametrize("rows", [2, 3, 9])
def test_equal_rows_give_what_a_batchnorm_adds_and_no_more(rows: int) -> None:
    norm, linear = layers(24)
    x = (torch.randn(1, CHANNELS) * 3).bfloat16().expand(rows, CHANNELS)
    wanted = linear(norm.bias.expand(rows, CHANNELS))
    assert torch.allclose(normalised_linear(x, norm, linear, relu=False).float(), wanted, atol=0.01, rtol=0.01)


@pytest.mark.parametrize(
    ("hook", "place"),  # of the first BatchNorm, the linear layer behind it and its ReLU, which is in place
    [
        *((hook, place) for hook in ("forward_hook", "forward_pre_hook") for place in (1, 2, 3)),
        *((hook, 1) for hook in ("full_backward_hook", "full_backward_pre_hook")),
    ],
)
def test_layers_with_hooks_are_called(hook: str, place: int) -> None:
    mlp, seen = MLP(6, (8, 8), 1), list[str]()
    getattr(mlp.rest[place], f"register_{hook}")(lambda *_: seen.append(hook))
    with torch.autocast("cpu", torch.bfloat16):
        mlp(torch.randn(50, 6)).sum().backward()
    assert seen == [hook]


def test_a_layer_of_a_class_of_ones_own_is_called() -> None:
    class Twice(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    mlp = MLP(6, (8,), 1)
    mlp.rest[2] = Twice(8, 1)
    x = torch.randn(500, 6)
    with torch.autocast("cpu", torch.bfloat16):
        narrow = mlp(x)
    assert apart(narrow, mlp(x).detach().double()) < 0.02


@pytest.mark.parametrize("narrow", [True, False])
def test_a_gradient_of_the_gradient_is_refused(narrow: bool) -> None:
    mlp, x = MLP(6, (8, 8), 1), torch.randn(50, 6, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
        found = mlp(x)
    (slope,) = torch.autograd.grad(found.float().square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.square().sum().backward()
