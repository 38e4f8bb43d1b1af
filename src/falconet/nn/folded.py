"""A BatchNorm and the linear layer behind it as one product, while they learn in bfloat16 on a CPU.

With s = 1 / deviation: W (γ s (x - mean) + β) + b is W' x + b', where W' = W γ s. So x is read once on its way, and the
two sums of BatchNorm's gradient follow from the gradient of W': a step takes less than half the time.

Shapes: B rows, C channels, O of them behind the layer.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from falconet.nn.batchnorm import BatchNorm, block_sums
from falconet.nn.collective import all_sum
from falconet.nn.products import in_blocks, over_rows
from falconet.nn.relu import back_through


def is_foldable(x: Tensor, norm: BatchNorm, linear: nn.Linear) -> bool:
    """Whether `normalised_linear` takes these: else the layers do it one after the other."""
    return (
        is_plain(norm)
        and is_plain(linear)
        and x.device.type == "cpu"
        and x.dtype == torch.bfloat16
        and x.dim() == 2
        and norm.training
        and norm.weight is not None
        and linear.bias is not None
        and torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and _has_product()
    )


def is_plain(layer: nn.Module) -> bool:
    """Whether nobody sees that a layer is not called: it has no hooks, and is of no class with more to do."""
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return type(layer) in (BatchNorm, nn.Linear, nn.ReLU) and not any(hooks)


@cache
def _has_product() -> bool:
    """Whether torch has the product with bias and ReLU that its compiler uses, for this processor."""
    return hasattr(torch.ops.mkldnn, "_linear_pointwise") and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def normalised_linear(x_BC: Tensor, norm: BatchNorm, linear: nn.Linear, *, relu: bool) -> Tensor:
    """`linear(norm(x))`, of which `relu` is taken if so asked: bfloat16 of [B, O]."""
    rows, mean_C, variance_C = norm.take_in(x_BC)
    if rows < 2:
        y_BO: Tensor = linear(norm.by_running(x_BC))
        return y_BO.relu() if relu else y_BO
    scale_C = (variance_C + norm.eps).rsqrt()
    with torch.autocast("cpu", enabled=False):  # what is constant has the digits of float32
        result: Tensor = _NormalisedLinear.apply(  # type: ignore[no-untyped-call]
            x_BC, norm.weight, norm.bias, linear.weight, linear.bias, mean_C, scale_C, rows, relu
        )
    return result


class _NormalisedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_BC: Tensor,
        gamma_C: Tensor,
        beta_C: Tensor,
        weight_OC: Tensor,
        bias_O: Tensor,
        mean_C: Tensor,
        scale_C: Tensor,
        rows: int,
        relu: bool,
    ) -> Tensor:
        folded_OC = (weight_OC * (gamma_C * scale_C)).bfloat16()
        shift_O = bias_O + weight_OC @ beta_C - folded_OC.float() @ mean_C
        y_BO = _product(x_BC, folded_OC, shift_O, "relu" if relu else "none")
        ctx.save_for_backward(x_BC, gamma_C, beta_C, weight_OC, mean_C, scale_C, folded_OC, y_BO if relu else None)
        ctx.rows = rows
        return y_BO

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        dy_BO = grads[0].contiguous()
        x_BC, gamma_C, beta_C, weight_OC, mean_C, scale_C, folded_OC, y_BO = ctx.saved_tensors
        if y_BO is not None:
            dy_BO = back_through(dy_BO, y_BO)
        sums_NO = block_sums(in_blocks(dy_BO))
        dbias_O = sums_NO.sum(0)
        # Of the product of a block's rows and x the mean's part is taken off before it is rounded, and not again after.
        less_NOC = sums_NO.unsqueeze(2) * mean_C
        narrow_NOC = less_NOC.bfloat16()
        dfolded_OC = over_rows(dy_BO, x_BC, -narrow_NOC) + (narrow_NOC.float() - less_NOC).sum(0)
        wide_OC = folded_OC.float()
        total_2C = all_sum(torch.stack([dbias_O @ wide_OC, (dfolded_OC * wide_OC).sum(0)]))
        # dx = W'ᵀ dy less its mean and its share of x - mean. The mean of x is taken off first: a channel may lie so
        # far from zero that beside it nothing would be left of what differs. What is constant is added in two parts,
        # that no row is off by the same: in the sum over all rows that would be many times what is left of it.
        slope_C = (total_2C[1] * scale_C.square() / -ctx.rows).bfloat16()
        constant_C = total_2C[0] / -ctx.rows
        most_C = constant_C.bfloat16()
        part_BC = _product(x_BC, slope_C.diag(), constant_C - most_C.float() - slope_C.float() * mean_C, "none")
        columns_CO = folded_OC.T.contiguous()
        dx_BC = torch.ops.mkldnn._linear_pointwise.binary(dy_BO, part_BC, columns_CO, most_C, "add")
        dweight_OC = (dfolded_OC * (gamma_C * scale_C)).addr_(dbias_O, beta_C)
        dgamma_C, dbeta_C = (dfolded_OC * weight_OC).sum(0) * scale_C, dbias_O @ weight_OC
        return dx_BC, dgamma_C, dbeta_C, dweight_OC, dbias_O, None, None, None, None


def _product(x_BI: Tensor, weight_OI: Tensor, bias_O: Tensor, then: str) -> Tensor:
    """That of bfloat16 with a bias of float32, which is added before the sum is rounded."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x_BI, weight_OI, bias_O, then, [], "")
    return result
