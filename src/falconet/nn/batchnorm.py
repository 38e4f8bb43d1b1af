"""Batch normalisation whose statistics are those of the global batch, on a CPU as on a GPU.

torch's SyncBatchNorm refuses a CPU, and BatchNorm1d refuses one local row and has no answer for none.

Shapes: B rows here, C channels, W processes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from falconet.nn.collective import from_all, is_shared


class BatchNorm(nn.BatchNorm1d):
    """`nn.BatchNorm1d`, 2d and 3d over the rows of all processes; equal to them on one. [B, C] or [B, C, ...], float32;
    while it trains on one process, [B, C] of bfloat16 stays that.

    A process may have any number of rows, also none. A global batch of a single row has no spread: it is normalised
    by the running statistics, which it leaves alone.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() < 2 or x.shape[1] != self.num_features:
            raise ValueError(f"BatchNorm takes [rows, {self.num_features} channels, ...], not {list(x.shape)}")
        with torch.autocast(x.device.type, enabled=False):
            if x.dim() == 2:
                return super().forward(x) if self._stays_narrow(x) else self._normalise(x.float())
            places = x.float().movedim(1, -1)  # each place of an image counts as a row
            return self._normalise(places.reshape(-1, self.num_features)).view(places.shape).movedim(-1, 1)

    def _stays_narrow(self, x_BC: Tensor) -> bool:
        """Whether torch's kernel takes bfloat16 as it is; statistics and arithmetic are float32 there as well."""
        wide = self.running_mean is None or self.running_mean.dtype == torch.float32
        return x_BC.dtype == torch.bfloat16 and wide and self.training and len(x_BC) > 1 and not is_shared()

    def _normalise(self, x_BC: Tensor) -> Tensor:
        if not self.training and self.running_mean is not None:
            return self._by_running(x_BC)
        if not is_shared():
            return super().forward(x_BC) if len(x_BC) > 1 else self._by_running(x_BC)
        rows, mean_C, variance_C = _statistics(x_BC)
        if rows < 2:
            return self._by_running(x_BC)
        if self.training:
            self._track(rows, mean_C, variance_C)
        result: Tensor = _Normalise.apply(x_BC, self.weight, self.bias, mean_C, variance_C, rows, self.eps)  # type: ignore[no-untyped-call]
        return result

    def _by_running(self, x_BC: Tensor) -> Tensor:
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
def _statistics(x_BC: Tensor) -> tuple[int, Tensor, Tensor]:
    """Rows, mean and (biased) variance of the global batch, by Chan's merge of every process's own."""
    count, channels = x_BC.shape
    mean_C = x_BC.sum(0) / max(count, 1)
    mine = torch.cat([mean_C, (x_BC - mean_C).square().sum(0), mean_C.new_full((1,), count)])
    all_WX = from_all(mine).double()  # so that the merge adds no rounding of its own
    means_WC, squares_WC, counts_W1 = torch.split(all_WX, [channels, channels, 1], dim=1)
    rows = counts_W1.sum()
    total_C = (means_WC * counts_W1).sum(0) / rows
    squares_C = (squares_WC + counts_W1 * (means_WC - total_C).square()).sum(0)
    return int(rows), total_C.to(x_BC.dtype), (squares_C / rows).to(x_BC.dtype)


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
        scale_C = (variance_C + eps).rsqrt()
        z_BC = (x_BC - mean_C) * scale_C
        ctx.save_for_backward(z_BC, scale_C, weight_C)
        ctx.rows = rows
        y_BC = z_BC if weight_C is None else z_BC * weight_C
        return y_BC.clone() if weight_C is None else y_BC if bias_C is None else y_BC + bias_C

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (dy_BC,) = grads
        z_BC, scale_C, weight_C = ctx.saved_tensors
        mine_2C = torch.stack([dy_BC.sum(0), (dy_BC * z_BC).sum(0)])
        total_2C = mine_2C.clone()
        dist.all_reduce(total_2C)
        dx_BC = (dy_BC - (total_2C[0] + z_BC * total_2C[1]) / ctx.rows) * scale_C
        if weight_C is None:
            return dx_BC, None, None, None, None, None, None
        return dx_BC * weight_C, mine_2C[1], mine_2C[0], None, None, None, None
