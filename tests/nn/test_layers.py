"""BatchNorm and the MLP block on one process."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from falconet.errors import ConfigError
from falconet.nn import MLP, BatchNorm


def test_batchnorm_is_torchs_on_one_process() -> None:
    torch.manual_seed(0)
    ours, theirs = BatchNorm(3), nn.BatchNorm1d(3)
    for _ in range(3):
        x = torch.randn(5, 3) * 2 + 1
        assert torch.allclose(ours(x), theirs(x), atol=1e-6)
    for name, value in theirs.state_dict().items():
        assert torch.allclose(ours.state_dict()[name], value, atol=1e-6)
    assert torch.allclose(ours.eval()(x), theirs.eval()(x), atol=1e-6)


def test_batchnorm_takes_one_row_and_none() -> None:
    norm = BatchNorm(2)
    assert norm(torch.full((1, 2), 3.0)).tolist() == [[pytest.approx(3.0, rel=1e-4)] * 2]
    assert norm(torch.zeros(0, 2)).shape == (0, 2)
    assert norm.running_mean is not None and norm.running_mean.tolist() == [0, 0]


def test_batchnorm_says_what_it_takes() -> None:
    with pytest.raises(ValueError, match=r"takes \[rows, 2 channels, ...\], not \[4, 3\]"):
        BatchNorm(2)(torch.zeros(4, 3))


def test_batchnorm_of_images_is_torchs_on_one_process() -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 3, 4, 2) * 2 + 1
    ours, theirs = BatchNorm(3), nn.BatchNorm2d(3)
    assert torch.allclose(ours(x), theirs(x), atol=1e-6)
    assert torch.allclose(ours.running_var, theirs.running_var, atol=1e-6)  # type: ignore[arg-type]
    assert torch.allclose(ours.eval()(x), theirs.eval()(x), atol=1e-6)


def test_mlp_rest_follows_first() -> None:
    torch.manual_seed(0)
    mlp = MLP(4, (8, 8), 1, dropout=0.1).eval()
    x = torch.randn(6, 4)
    assert torch.equal(mlp(x), mlp.rest(mlp.first(x)))
    assert mlp(x).shape == (6, 1)
    assert [type(layer).__name__ for layer in mlp.rest] == [
        "ReLU", "BatchNorm", "Dropout", "Linear", "ReLU", "BatchNorm", "Dropout", "Linear",
    ]  # fmt: skip


def test_mlp_without_hidden_layers_is_linear() -> None:
    assert MLP(4, (), 1)(torch.zeros(2, 4)).tolist() == [[0], [0]]
    assert len(MLP(4, (), 1).rest) == 0


def test_a_bias_that_batchnorm_undoes_has_no_gradient() -> None:
    """Rows: on in all, in all but the last (of more than are looked at first), in none, in half."""
    mlp = copy.deepcopy(MLP(4, (4,), 1))
    x = torch.rand(200, 4) + 1
    with torch.no_grad():
        mlp.first.weight.copy_(torch.eye(4))
    x[-1, 1] = -1
    x[:, 2] *= -1
    x[::2, 3] *= -1
    mlp(x).square().sum().backward()
    gradient = mlp.first.bias.grad
    assert gradient is not None
    assert gradient[[0, 2]].tolist() == [0, 0]
    assert gradient[[1, 3]].abs().min() > 1e-3
    before = gradient.clone()
    mlp(x[:1]).sum().backward()  # normalised by the running statistics, which a shift does not move
    assert gradient[0] != before[0]
    mlp.zero_grad(set_to_none=False)
    (mlp(x)[0] + mlp(x[:100])[0]).sum().backward()  # the second channel is on in all rows of the second alone
    assert gradient[0] == 0
    assert gradient[1].abs() > 1e-6
    mlp.first.bias.requires_grad_(False)
    mlp(x).sum().backward()


def test_mlp_refuses_what_cannot_be() -> None:
    with pytest.raises(ConfigError, match="has nothing to compute"):
        MLP(4, ())
    with pytest.raises(ConfigError, match=r"dropout must be from 0 to below 1, not 1\.0"):
        MLP(4, (3,), dropout=1.0)
    with pytest.raises(ConfigError, match="activation must be one of relu, gelu, tanh, silu, not 'relux'"):
        MLP(4, (3,), activation="relux")  # type: ignore[arg-type]


def test_batchnorm_of_bfloat16_rounds_its_result_alone() -> None:
    torch.manual_seed(0)
    narrow, wide = BatchNorm(3), BatchNorm(3)
    x_BC, upstream_BC = torch.randn(50, 3).bfloat16().requires_grad_(), torch.randn(50, 3).bfloat16()
    y_BC = x_BC.detach().float().requires_grad_()
    found, wanted = narrow(x_BC), wide(y_BC)
    assert torch.equal(found, wanted.bfloat16())
    found.backward(upstream_BC)
    wanted.backward(upstream_BC.float())
    assert x_BC.grad is not None
    assert y_BC.grad is not None
    assert torch.equal(x_BC.grad, y_BC.grad.bfloat16())
    assert torch.allclose(narrow.running_var, wide.running_var)  # type: ignore[arg-type]
