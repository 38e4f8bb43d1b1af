"""The two optimizers of a run: one for dense layers, one for embedding tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from falconet.errors import ArtifactError, ConfigError
from falconet.nn.embedding import Tables, Touched
from falconet.nn.projection import Projected
from falconet.train.placement import by_table
from falconet.train.runtime import Runtime
from falconet.train.settings import TABLE_RATE
from falconet.train.tables import TableOptimizer

if TYPE_CHECKING:
    from falconet.train.settings import TrainConfig

_TINY = 1e-6  # as in torch's clip_grad_norm_


class Optimizers:
    """Dense layers by a torch optimizer, tables by a `TableOptimizer`, or by the same where they have no rule."""

    def __init__(self, model: nn.Module, config: TrainConfig, runtime: Runtime) -> None:
        self.tables = TableOptimizer(
            model,
            config.table_optimizer,
            runtime,
            weight_decay=config.table_weight_decay,
            exchange_dtype=getattr(torch, config.exchange_dtype),
            placement=config.table_placement,
            dtype=getattr(torch, config.table_dtype),
            seed=config.seed,
        )
        self._table_rates = by_table(
            config.table_learning_rate, self.tables.tables, TABLE_RATE, setting="table_learning_rate"
        )
        _check_alone(model, self.tables.weights)
        self._config = config
        apart = self.tables.weights if config.table_optimizer is not None else {}
        self._dense = {n: p for n, p in model.named_parameters() if p.requires_grad and n not in apart}
        self._optimizer = _optimizer(config, list(self._dense.values())) if self._dense else None

    @torch.no_grad()
    def step(
        self,
        collected: Sequence[tuple[str, list[Touched | Projected]]],
        rate: float,
        scale: Tensor | None = None,
        *,
        number: int,
        careful: bool = False,
    ) -> Tensor:
        """Update everything after `backward`, with the learning rates times `rate`; gradients are gone afterwards.

        `collected` is what the tables read in all parts of the batch. `number` of the step in the whole run: what is
        drawn by chance follows from it. Gradients are multiplied by `scale`, and clipped to `clip_norm`, tables and
        all. Gives the norm of the whole gradient before clipping, the same on every process. `careful`: nothing is
        updated where it is not finite.
        """
        rows = self.tables.gather(collected)
        dense = [p.grad for p in self._dense.values() if p.grad is not None]
        square = torch.nn.utils.get_total_norm(dense).square()
        table_rate = {name: own * rate for name, own in self._table_rates.items()}
        factor = 1.0 if scale is None else scale
        if self._config.clip_norm is None and not careful:
            norm = (square + self.tables.step(rows, table_rate, number, scale)).sqrt() * factor
            self._dense_step(dense, rate, scale)
            return norm
        rows = {name: gradient.formed() for name, gradient in rows.items()}  # for the norm, and then to be moved by
        norm = (square + self.tables.square_norm(rows)).sqrt() * factor
        if self._config.clip_norm is not None:
            clip = (self._config.clip_norm / (norm + _TINY)).clamp(max=1.0)
            scale = clip if scale is None else scale * clip
        if careful and not bool(norm.isfinite()):
            self._forget()
            return norm
        self.tables.step(rows, table_rate, number, scale)
        self._dense_step(dense, rate, scale)
        return norm

    def _forget(self) -> None:
        if self._optimizer is not None:
            self._optimizer.zero_grad(set_to_none=True)

    def _dense_step(self, gradients: list[Tensor], rate: float, scale: Tensor | None) -> None:
        if self._optimizer is None:
            return
        if scale is not None:
            torch._foreach_mul_(gradients, scale)
        for group in self._optimizer.param_groups:
            group["lr"] = self._config.learning_rate * rate
        self._optimizer.step()
        self._forget()

    def tensors(self) -> dict[str, Tensor]:
        """The dense optimizer's state, under names for a file."""
        if self._optimizer is None:
            return {}
        return {
            f"{name}/{key}": torch.as_tensor(value)
            for name, parameter in self._dense.items()
            for key, value in self._optimizer.state.get(parameter, {}).items()
            if value is not None
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the state that `tensors` gave."""
        if self._optimizer is None:
            return
        state: dict[int, dict[str, Tensor]] = {}
        places = {name: i for i, name in enumerate(self._dense)}
        for name, value in tensors.items():
            parameter, _, key = name.rpartition("/")
            if parameter not in places:
                raise ArtifactError(f"the optimizer's state has an unknown parameter `{parameter}`")
            state.setdefault(places[parameter], {})[key] = value
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": state, "param_groups": groups})


def _check_alone(model: nn.Module, tables: Mapping[str, nn.Parameter]) -> None:
    """Raise ConfigError where a table is also the weight of another layer, whose gradients would be lost."""
    names = {id(weight): name for name, weight in tables.items()}
    own = tuple(
        f"{name}.weights." if name else "weights."
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, Tables)
    )
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in names and not name.startswith(own):
            raise ConfigError(
                f"`{name}` is the table `{names[id(parameter)]}` as well, and would not learn there",
                hint="read the table by its own methods, such as `rows`, or take an nn.Embedding for it",
            )


def _optimizer(config: TrainConfig, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    rate, decay = config.learning_rate, config.weight_decay
    match config.optimizer:
        case "adam":
            return torch.optim.Adam(parameters, lr=rate, weight_decay=decay, fused=True)
        case "adamw":
            return torch.optim.AdamW(parameters, lr=rate, weight_decay=decay, fused=True)
        case "adagrad":
            return torch.optim.Adagrad(parameters, lr=rate, weight_decay=decay)
        case "sgd":
            return torch.optim.SGD(parameters, lr=rate, weight_decay=decay)
