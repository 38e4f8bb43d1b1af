"""Figures over all rows of all processes, each counted once.

Shapes: R rows of this process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, closing
from itertools import islice

import torch
from torch import Tensor, nn

from falconet.batch import Batch, target_of
from falconet.errors import ColumnNotFoundError, ConfigError, suggest
from falconet.nn.collective import counts, gather
from falconet.nn.modes import evaluating
from falconet.train.checkpoint import Figures
from falconet.train.interfaces import Batches, Judges, Metrics
from falconet.train.parallel import Objective
from falconet.train.runtime import Runtime
from falconet.train.trouble import in_words, known_ids

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
    metrics: Judges | None,
    runtime: Runtime,
    autocast: Callable[[], AbstractContextManager[object]],
    *,
    steps: int | None = None,
    between: Callable[[int], None] = lambda step: None,
) -> Figures:
    """The mean loss and the metrics of a model, the same on every process. It stays in the mode it is in.

    Metrics by target get the figures names such as "stars/rmse". `steps`: of the first ones alone. `between` is called
    after each, on all processes, with the number of those behind.
    """
    objective = Objective(model)
    total = torch.zeros(2, dtype=torch.float64, device=runtime.device)
    by_target: Mapping[str, Metrics] = _by_target(metrics)
    states: dict[str, list[dict[str, Tensor]]] = {target: [] for target in by_target}
    with evaluating(model), closing(valid.batches(0, 0, runtime.rank, runtime.world)) as batches:
        for step, batch in enumerate(b.to(runtime.device) for b in islice(batches, steps)):
            with in_words(batch.rows, runtime.device), known_ids(model, valid, 0, step), autocast():
                total += sums(objective(batch), batch)
                for target, (predicted, known) in _predictions(model, batch, by_target).items():
                    states[target].append(by_target[target].partial(predicted.float(), known))
            between(step + 1)
    loss, weight = runtime.sums(total).tolist()
    figures: Figures = {"loss": loss / weight if weight else 0.0}
    for target, metric in by_target.items():
        state = {name: _of_all(x, runtime) for name, x in metric.merge(states[target]).items()}
        prefix = target and f"{target}/"
        figures |= {prefix + name: float(value) for name, value in metric.finish(state).items()}
    # One process's word is all processes' word: none may stop while others go on.
    shared: Figures = runtime.broadcast(figures)
    return shared


def is_better(monitor: str, figures: Figures, best: Figures | None) -> bool:
    """Whether a validation is better than the best one so far. Raises ConfigError for a figure that is not there."""
    if monitor not in figures:
        raise ConfigError(f"the validation has no `{monitor}` to monitor", hint=suggest(monitor, figures))
    if best is None or math.isnan(best[monitor]):
        return True
    sign = -1 if monitor.rpartition("/")[2] in LOWER_IS_BETTER else 1
    return sign * figures[monitor] > sign * best[monitor]


def _of_all(x: Tensor, runtime: Runtime) -> Tensor:
    x = x.to(runtime.device)
    return gather(x, counts(len(x), x.device)).cpu()


def _by_target(metrics: Judges | None) -> Mapping[str, Metrics]:
    """Metrics by target, by "" where the model or the data says which."""
    if metrics is None:
        return {}
    return metrics if isinstance(metrics, Mapping) else {"": metrics}


def _predictions(model: nn.Module, batch: Batch, wanted: Iterable[str]) -> dict[str, tuple[Tensor, Tensor]]:
    """Predictions and targets, of the rows where the target is known."""
    own, several = getattr(model, "target", None), getattr(model, "predictions", None)
    own = own if isinstance(own, str) else ""
    made: Mapping[str, Tensor] = {}
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for name in wanted:
        made = made or (several(batch) if several is not None and name else {own: model(batch)})
        target = _target(batch, name or own)
        if (name or own) not in made:
            raise ColumnNotFoundError.of(name, filter(None, made), where="what the model predicts")
        predicted, known = made[name or own], ~target.isnan()
        found[name] = (predicted, target) if bool(known.all()) else (predicted[known], target[known])
    return found


def _target(batch: Batch, name: str) -> Tensor:
    """The values of a target; without a name, of the only one there is."""
    if not name:
        if len(batch.targets) != 1:
            raise ConfigError(
                f"metrics need one target, the data has {', '.join(batch.targets) or 'none'}",
                hint="tag one column `target`, or leave `metrics` out",
            )
        return next(iter(batch.targets.values()))
    return target_of(batch, name)
