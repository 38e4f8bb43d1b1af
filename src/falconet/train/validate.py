"""Figures over all rows of all processes, each counted once.

Shapes: R rows of this process.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, closing

import torch
from torch import Tensor, nn

from falconet.batch import Batch
from falconet.errors import ConfigError, suggest
from falconet.nn.collective import counts, gather
from falconet.train.checkpoint import Figures
from falconet.train.interfaces import Batches, Metrics
from falconet.train.parallel import Objective
from falconet.train.runtime import Runtime
from falconet.train.trouble import in_words

LOWER_IS_BETTER = ("loss", "log_loss", "mse", "rmse", "mae")


def sums(losses_R: Tensor, batch: Batch) -> Tensor:
    """Of this process, in float64: the sum of the losses, and the sum of the weights, or the rows: [2]."""
    losses_R = losses_R.detach().double()
    if batch.weights is None:
        return torch.stack([losses_R.sum(), losses_R.new_tensor(float(batch.rows))])
    return torch.stack([(losses_R * batch.weights).sum(), batch.weights.double().sum()])


@torch.no_grad()
def validate(
    model: nn.Module,
    valid: Batches,
    metrics: Metrics | None,
    runtime: Runtime,
    autocast: Callable[[], AbstractContextManager[object]],
) -> Figures:
    """The mean loss and the metrics of a model, the same on every process."""
    objective = Objective(model).eval()
    total = torch.zeros(2, dtype=torch.float64, device=runtime.device)
    states = []
    with closing(valid.batches(0, 0, runtime.rank, runtime.world)) as batches:
        for batch in (b.to(runtime.device) for b in batches):
            with in_words(batch.rows, runtime.device), autocast():
                total += sums(objective(batch), batch)
                if metrics is not None:
                    states.append(metrics.partial(model(batch).float(), _target(batch)))
    loss, weight = runtime.sums(total).tolist()
    figures: Figures = {"loss": loss / weight if weight else 0.0}
    if metrics is not None:
        figures |= metrics.finish({name: _of_all(x, runtime) for name, x in metrics.merge(states).items()})
    # One process's word is all processes' word: none may stop while others go on.
    shared: Figures = runtime.broadcast(figures)
    return shared


def is_better(monitor: str, figures: Figures, best: Figures | None) -> bool:
    """Whether a validation is better than the best one so far. Raises ConfigError for a figure that is not there."""
    if monitor not in figures:
        raise ConfigError(f"the validation has no `{monitor}` to monitor", hint=suggest(monitor, figures))
    if best is None or math.isnan(best[monitor]):
        return True
    sign = -1 if monitor in LOWER_IS_BETTER else 1
    return sign * figures[monitor] > sign * best[monitor]


def _of_all(x: Tensor, runtime: Runtime) -> Tensor:
    x = x.to(runtime.device)
    return gather(x, counts(len(x), x.device)).cpu()


def _target(batch: Batch) -> Tensor:
    if len(batch.targets) != 1:
        raise ConfigError(
            f"metrics need one target, the data has {', '.join(batch.targets) or 'none'}",
            hint="tag one column `target`, or leave `metrics` out",
        )
    return next(iter(batch.targets.values()))
