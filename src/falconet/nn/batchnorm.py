"""Batch normalisation whose statistics are those of the global batch, on a CPU as on a GPU.

torch's SyncBatchNorm refuses a CPU, and BatchNorm1d refuses one local row and has no answer for none.

Shapes: B rows here, C channels, W processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from falconet.nn.collective import all_sum, from_all, is_shared

_BLOCK = 1024  # rows whose sums a kernel makes at once, of float32
_NARROW_BLOCK = 4096  # of bfloat16, which has lost more before
_NUMBERS = 1 << 16  # that need not leave the processor's cache between the steps of a gradient
_FIRST = 64


class BatchNorm(nn.BatchNorm1d):
    """`nn.BatchNorm1d`, 2d and 3d over the rows of all processes; on one the same as these but
    for the last bits, since sums of float32 are made as on several, in float64. [B, C] or [B, C, ...], float32;
    while it trains, [B, C] of bfloat16 stays that.

    It has no gradient of its gradient, which raises RuntimeError where it is asked for.

    A process may have any number of rows, also none. A global batch of a single row has no spread: it is normalised
    by the running statistics, which it leaves alone.
    """

    _shift: tuple[nn.Parameter] | None = None  # in a tuple, as it is not this module's own
    _hooked = 0  # id of the parameter that has the hook: a copy of a module has copies without
    _unfelt: Tensor | None = None

    def follow_relu(self, bias: nn.Parameter) -> None:
        """Say that what comes in is relu(x + bias).

        In a channel that is above zero in every row the bias is a shift, which makes no difference here. Its gradient,
        zero in truth and rounding in fact, would be scaled up by Adam to a full step, another one on each number of
        processes: so it is made zero.
        """
        self._shift = (bias,)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() < 2 or x.shape[1] != self.num_features:
            raise ValueError(f"BatchNorm takes [rows, {self.num_features} channels, ...], not {list(x.shape)}")
        with torch.autocast(x.device.type, enabled=False):
            if x.dim() == 2:
                return self._normalise(x if self._stays_narrow(x) else x.float())
            places = x.float().movedim(1, -1)  # each place of an image counts as a row
            return self._normalise(places.reshape(-1, self.num_features)).view(places.shape).movedim(-1, 1)

    def _stays_narrow(self, x_BC: Tensor) -> bool:
        """Whether torch's kernels take bfloat16 as it is; statistics and arithmetic are float32 there as well."""
        wide = self.weight is not None and self.weight.dtype == torch.float32
        return x_BC.dtype == torch.bfloat16 and wide and self.training

    def _normalise(self, x_BC: Tensor) -> Tensor:
        if not self.training and self.running_mean is not None:
            return self.by_running(x_BC)
        if not is_shared() and (x_BC.dtype != torch.float32 or x_BC.is_cuda):  # float32 is that of several processes
            self._leave_shifts(self._above_zero(x_BC), len(x_BC))
            return super().forward(x_BC) if len(x_BC) > 1 else self.by_running(x_BC)
        rows, mean_C, variance_C = self.take_in(x_BC)
        if rows < 2:
            return self.by_running(x_BC)
        result: Tensor = _Normalise.apply(x_BC, self.weight, self.bias, mean_C, variance_C, rows, self.eps)  # type: ignore[no-untyped-call]
        return result

    def take_in(self, x_BC: Tensor) -> tuple[int, Tensor, Tensor]:
        """Rows, mean and (biased) variance of the global batch; while it trains, running statistics are moved by them
        unless there are fewer than 2 rows."""
        rows, mean_C, variance_C, above_C = _statistics(x_BC, self._above_zero(x_BC))
        self._leave_shifts(above_C, rows)
        if rows > 1 and self.training:
            self._track(rows, mean_C, variance_C)
        return rows, mean_C, variance_C

    def _above_zero(self, x_BC: Tensor) -> Tensor | None:
        """Whether a channel is above zero in every row, where that makes a difference: [C]."""
        follows = self._shift is not None and self._shift[0].requires_grad and torch.is_grad_enabled()
        return _above_zero(x_BC.detach()) if follows else None

    def _leave_shifts(self, above_C: Tensor | None, rows: int) -> None:
        """In the next gradient of the bias in front, have the channels be zero that are above zero in every row."""
        if self._shift is None or above_C is None:
            return
        (bias,) = self._shift
        if self._hooked != id(bias):
            bias.register_hook(self._without_shifts)  # type: ignore[no-untyped-call]
            self._hooked = id(bias)
        above_C = above_C & (rows > 1)  # one row is normalised by what others were
        self._unfelt = above_C if self._unfelt is None else self._unfelt & above_C

    def _without_shifts(self, gradient_C: Tensor) -> Tensor:
        unfelt_C, self._unfelt = self._unfelt, None
        return gradient_C if unfelt_C is None else gradient_C.masked_fill(unfelt_C, 0)

    def by_running(self, x_BC: Tensor) -> Tensor:
        """Normalised by the running statistics."""
        mean_C = x_BC.new_zeros(self.num_features) if self.running_mean is None else self.running_mean
        variance_C = x_BC.new_ones(self.num_features) if self.running_var is None else self.running_var
        return F.batch_norm(x_BC, mean_C, variance_C, self.weight, self.bias, False, 0.0, self.eps)

    @torch.no_grad()
    def _track(self, rows: int, mean_C: Tensor, variance_C: Tensor) -> None:
        """Move the running statistics, with the unbiased variance, as BatchNorm1d does."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean_C, momentum)
        self.running_var.lerp_(variance_C * (rows / (rows - 1)), momentum)


@torch.no_grad()
def _statistics(x_BC: Tensor, above_C: Tensor | None) -> tuple[int, Tensor, Tensor, Tensor | None]:
    """Rows, mean and (biased) variance of the global batch, from every process's own, and whether all are above."""
    rows, mean_C, squares_C = _merge(*_of_blocks(_blocks(x_BC)))
    if is_shared():
        more = [] if above_C is None else [above_C.double()]
        widths = [len(x) for x in (rows, mean_C, squares_C)]
        rows_W1, means_WC, squares_WC, *aboves_WC = torch.split(
            from_all(torch.cat([rows, mean_C, squares_C, *more])), [*widths, *map(len, more)], dim=1
        )
        rows, mean_C, squares_C = _merge(rows_W1, means_WC, squares_WC)
        above_C = aboves_WC[0].bool().all(0) if aboves_WC else None
    return int(rows), mean_C.float(), (squares_C / rows).float(), above_C


def _above_zero(x_BC: Tensor) -> Tensor:
    """Whether a channel is above zero in every row: [C].

    Few are so in many rows, so the first ones rule out most.
    """
    some = len(x_BC) if x_BC.is_cuda else min(len(x_BC), _FIRST)
    above_C = (x_BC[:some] > 0).all(0)
    if some < len(x_BC) and len(left := above_C.nonzero().squeeze(1)):
        above_C[left] = (x_BC[some:, left] > 0).all(0)
    return above_C


def _of_blocks(blocks: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Rows [N, 1], means [N, C] and summed squares around them [N, C] of N blocks of rows, in float64.

    A kernel adds up row after row, so that what it loses grows with their number.
    """
    like = blocks[0]
    if like.is_cuda:
        found = [torch.var_mean(block, 0, correction=0)[::-1] for block in blocks if len(block)]
    else:
        kept_C, too_C = torch.zeros(2, like.shape[1])  # of float32, as the answers are then for rows of bfloat16
        found = [torch.batch_norm_update_stats(block, kept_C, too_C, 0.0) for block in blocks if len(block)]
    if not found:
        found = [(torch.zeros(like.shape[1], device=like.device),) * 2]
    rows_N = torch.tensor([len(block) for block in blocks], dtype=torch.float64, device=like.device)
    means_NC, variances_NC = (torch.stack(some).double() for some in zip(*found, strict=True))
    return rows_N.unsqueeze(1), means_NC, variances_NC * rows_N.unsqueeze(1)


def block_sums(blocks: Sequence[Tensor]) -> Tensor:
    """The sums of the columns of N blocks of rows: [N, C], float32."""
    rows_N1, means_NC, _ = _of_blocks(blocks)
    return (means_NC * rows_N1).float()


def _merge(rows_N1: Tensor, means_NC: Tensor, squares_NC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same of all rows, by Chan's merge: [1], [C], [C]."""
    rows = rows_N1.sum(0)
    mean_C = (means_NC * rows_N1).sum(0) / rows.clamp(min=1)
    return rows, mean_C, (squares_NC + rows_N1 * (means_NC - mean_C).square()).sum(0)


class _Normalise(torch.autograd.Function):
    """The normalisation, and the gradient that goes through the shared mean and variance."""

    @staticmethod
    def forward(
        ctx: Any,
        x_BC: Tensor,
        weight_C: Tensor | None,
        bias_C: Tensor | None,
        mean_C: Tensor,
        variance_C: Tensor,
        rows: int,
        eps: float,
    ) -> Tensor:
        ctx.save_for_backward(x_BC, mean_C, variance_C, weight_C)
        ctx.rows, ctx.eps = rows, eps
        return F.batch_norm(x_BC, mean_C, variance_C, weight_C, bias_C, False, 0.0, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        dy_BC = grads[0].contiguous()
        x_BC, mean_C, variance_C, weight_C = ctx.saved_tensors
        mine_2C = _sums(dy_BC, x_BC, mean_C, variance_C, ctx.eps)
        total_2C = all_sum(mine_2C)
        # With z = (x - mean) scale: dx = weight scale (dy - (sum of dy + z sum of dy z) / rows).
        scale_C = (variance_C + ctx.eps).rsqrt()
        each_C = scale_C if weight_C is None else scale_C * weight_C
        slope_C = each_C * scale_C * total_2C[1] / -ctx.rows
        constant_C = each_C * total_2C[0] / -ctx.rows
        dx_BC = _linear(dy_BC, each_C, x_BC, mean_C, slope_C, constant_C)
        if weight_C is None:
            return dx_BC, None, None, None, None, None, None
        return dx_BC, mine_2C[1], mine_2C[0], None, None, None, None


def _sums(dy_BC: Tensor, x_BC: Tensor, mean_C: Tensor, variance_C: Tensor, eps: float) -> Tensor:
    """The sums, over the rows of this process, of dy and of dy (x - mean) / deviation: [2, C]."""
    ones_C, found = torch.ones_like(mean_C), [mean_C.new_zeros(2, len(mean_C))]
    for dy, x in zip(_blocks(dy_BC), _blocks(x_BC), strict=True):
        if len(x):
            _, products_C, sums_C = torch.ops.aten.native_batch_norm_backward(
                dy, x, ones_C, mean_C, variance_C, None, None, False, eps, [False, True, True]
            )
            found.append(torch.stack([sums_C, products_C]))
    return torch.stack(found).sum(0, dtype=torch.float64).to(mean_C.dtype)


def _linear(dy_BC: Tensor, each_C: Tensor, x_BC: Tensor, mean_C: Tensor, slope_C: Tensor, constant_C: Tensor) -> Tensor:
    """dy each + (x - mean) slope + constant, worked out in float32, in the type of x: [B, C]."""
    x_BC = x_BC.contiguous()
    dx_BC = torch.empty_like(x_BC)
    rows = max(len(x_BC), 1) if x_BC.is_cuda else max(_NUMBERS // x_BC.shape[1], 1)
    narrow = x_BC.dtype != torch.float32
    if narrow:  # float32 has digits to spare for a mean that is many times the deviation, bfloat16 being so few
        constant_C = constant_C - mean_C * slope_C
    total_BC, other_BC = mean_C.new_empty(2, min(rows, len(x_BC)), len(mean_C))  # large new ones cost more than sums
    for dx, dy, x in zip(*(torch.split(some, rows) for some in (dx_BC, dy_BC, x_BC)), strict=True):
        total, other = total_BC[: len(x)], other_BC[: len(x)]
        if narrow:
            torch.addcmul(constant_C, total.copy_(x), slope_C, out=total)
            dx.copy_(total.addcmul_(other.copy_(dy), each_C))
        else:  # the mean is taken off first: among the products it would cost the digits that x has in common with it
            torch.addcmul(constant_C, torch.sub(x, mean_C, out=total), slope_C, out=total)
            torch.addcmul(total, dy, each_C, out=dx)
    return dx_BC


def _blocks(x_BC: Tensor) -> tuple[Tensor, ...]:
    """Rows that fit into a processor's cache; on a GPU all of them, in float32."""
    if x_BC.is_cuda:
        return (x_BC.contiguous().float(),)
    return torch.split(x_BC.contiguous(), _BLOCK if x_BC.dtype == torch.float32 else _NARROW_BLOCK)
