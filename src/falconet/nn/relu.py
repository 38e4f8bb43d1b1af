"""A ReLU of bfloat16 on a CPU by the bits: as whole numbers of 16 bits, which order as the numbers do, it takes a third
of the time. The bits of a negative number are at most those of minus infinity; those of a NaN are above."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_MINUS_INFINITY = -128  # its bits


def is_narrow(x: Tensor) -> bool:
    """Whether `relu_` takes this: else torch's own does."""
    narrow = x.device.type == "cpu" and x.dtype == torch.bfloat16 and x.requires_grad and not x.is_leaf
    return narrow and not torch.compiler.is_compiling()


def relu_(x: Tensor) -> Tensor:
    """The ReLU of x in its place; a NaN stays one."""
    result: Tensor = _Relu.apply(x)  # type: ignore[no-untyped-call]
    return result


def back_through(gradient: Tensor, y: Tensor) -> Tensor:
    """The gradient of what a ReLU took, from that of what it gave, `y`, both bfloat16."""
    passed: Tensor = torch.ops.aten.threshold_backward(gradient.view(torch.int16), y.view(torch.int16), 0)
    return passed.view(torch.bfloat16)


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        torch.threshold_(x.view(torch.int16), _MINUS_INFINITY, 0)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return back_through(grads[0], ctx.saved_tensors[0])
