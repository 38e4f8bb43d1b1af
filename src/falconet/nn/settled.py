"""A network that only answers: what its BatchNorms do at rest becomes a part of the linear layers after them, ids are
looked up one by one, and what is said of a catalogue's lists is kept.

Shapes: B rows, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from falconet.nn.answering import AnsweringTables
from falconet.nn.batchnorm import BatchNorm
from falconet.nn.embedding import Tables
from falconet.nn.mlp import MLP


def settle(model: nn.Module) -> None:
    """Put a network in evaluation mode for good: fewer operations, the same values but for their last bits.

    It cannot learn afterwards. A BatchNorm without running statistics stays.
    """
    read_each(model)
    for module in list(model.modules()):
        if isinstance(module, MLP):
            module.rest = _Row(_folded(module.rest))
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, BatchNorm) and (moved := _as_line(child)) is not None:
                setattr(module, name, _Line(*moved))
            if isinstance(child, Tables):
                setattr(module, name, AnsweringTables.of(child))
    model.requires_grad_(False)


def read_each(model: nn.Module) -> None:
    """Have a network look up ids one by one, for a few rows at a time: the same values, bit for bit."""
    model.eval()
    for module in model.modules():
        if isinstance(module, Tables):
            module.read_each()


def _folded(layers: nn.Sequential) -> list[nn.Module]:
    """The layers without dropout, with BatchNorms in the linear layers behind them."""
    kept: list[nn.Module] = []
    pending: tuple[Tensor, Tensor] | None = None
    for layer in layers:
        line = _as_line(layer) if isinstance(layer, BatchNorm) else None
        if isinstance(layer, nn.Dropout):
            continue
        if pending is not None and isinstance(layer, nn.Linear):
            kept.append(_after(layer, *pending))
            pending = None
            continue
        if pending is not None:
            kept.append(_Line(*pending))
        pending = line
        if line is None:
            kept.append(layer)
    if pending is not None:
        kept.append(_Line(*pending))
    return kept


@torch.no_grad()
def _as_line(norm: BatchNorm) -> tuple[Tensor, Tensor] | None:
    """What a BatchNorm at rest multiplies with and adds, float64 of [C]; None without running statistics."""
    if norm.running_mean is None or norm.running_var is None:
        return None
    slope_C = (norm.running_var.double() + norm.eps).rsqrt()
    if norm.weight is not None:
        slope_C = slope_C * norm.weight.double()
    shift_C = -norm.running_mean.double() * slope_C
    return slope_C, shift_C if norm.bias is None else shift_C + norm.bias.double()


@torch.no_grad()
def _after(linear: nn.Linear, slope_C: Tensor, shift_C: Tensor) -> nn.Linear:
    """The layer of x for that of slope · x + shift."""
    weight, dtype = linear.weight.double(), linear.weight.dtype
    made = nn.Linear(linear.in_features, linear.out_features, device=linear.weight.device, dtype=dtype)
    made.weight.copy_(weight * slope_C)
    made.bias.copy_(weight @ shift_C + (0.0 if linear.bias is None else linear.bias.double()))
    return made


class _Row(nn.Sequential):
    """Layers one after the other, of which torch's plain ones are called without what a module does around its step."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__(*layers)
        self.eval()
        self._steps = [_step(layer) for layer in layers]

    def forward(self, x: Tensor) -> Tensor:
        for step in self._steps:
            x = step(x)
        return x


def _step(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    if type(layer) is nn.Linear:
        return partial(F.linear, weight=layer.weight, bias=layer.bias)
    if type(layer) is nn.ReLU:
        return F.relu_ if layer.inplace else F.relu
    return layer


class _Line(nn.Module):
    """slope · x + shift, for each channel: [B, C]."""

    slope: Tensor
    shift: Tensor

    def __init__(self, slope_C: Tensor, shift_C: Tensor) -> None:
        super().__init__()
        self.register_buffer("slope", slope_C.float())
        self.register_buffer("shift", shift_C.float())

    def forward(self, x_BC: Tensor) -> Tensor:
        return torch.addcmul(self.shift, x_BC, self.slope)
