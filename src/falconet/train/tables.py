"""The optimizer of embedding tables, and how processes agree on it: only the touched rows are exchanged and updated.

Placement "replicated": every process holds every table. Per step the processes exchange the ids they touched and the
gradients of those rows, add up what belongs to one id in the order of ranks, and make the same update, so that the
replicas stay equal bit for bit.

Shapes: U distinct ids, D width of a table, V rows of a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from falconet.nn.collective import from_all
from falconet.nn.embedding import Tables, Touched
from falconet.train.runtime import Runtime

DECAY = 0.99  # of the mean square, per touch
EPSILON = 1e-8


@dataclass(frozen=True)
class RowGradient:
    """The gradient of some of the `rows` rows of a table: distinct ids [U], ascending, no padding; values [U, D]."""

    rows: int
    ids: Tensor
    values: Tensor


class TableOptimizer:
    """Updates the touched rows of all `Tables` of a model by one of these rules, g the gradient of a row:

    rowwise_rmsprop   v <- .99 v + .01 mean(g²), row -= lr g / (sqrt(v / (1 - .99^touches)) + 1e-8)
    rowwise_adagrad   v <- v + mean(g²),         row -= lr g / (sqrt(v) + 1e-8)
    sgd               row -= lr g
    None              the gradient goes to the weight, dense, for another optimizer to use

    `weight_decay` shrinks a touched row by lr x weight_decay before its update. The tables are frozen for autograd
    while `hold` is entered, so that DistributedDataParallel leaves them alone.
    """

    def __init__(
        self,
        model: nn.Module,
        rule: str | None,
        runtime: Runtime,
        *,
        weight_decay: float = 0.0,
        exchange_dtype: torch.dtype = torch.float32,
    ) -> None:
        self._modules = {name: m for name, m in model.named_modules() if isinstance(m, Tables)}
        self._rule, self._runtime = rule, runtime
        self._weight_decay, self._exchange_dtype = weight_decay, exchange_dtype
        known = {id(p): name for name, p in model.named_parameters()}
        self.weights: dict[str, nn.Parameter] = {}
        self._names: dict[tuple[str, str], str] = {}
        for module, tables in self._modules.items():
            for table in tables.tables:
                weight = tables.weight(table)
                if weight.requires_grad:  # what was frozen stays as it is
                    self._names[module, table] = known[id(weight)]
                    self.weights[known[id(weight)]] = weight
        self.state: dict[str, dict[str, Tensor]] = {name: {} for name in self.weights}
        for name, weight in self.weights.items():
            if rule in ("rowwise_rmsprop", "rowwise_adagrad"):
                self.state[name]["square"] = torch.zeros(len(weight), device=weight.device)
            if rule == "rowwise_rmsprop":
                self.state[name]["touches"] = torch.zeros(len(weight), device=weight.device)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep autograd, and so DistributedDataParallel, away from the tables within the block."""
        for weight in self.weights.values():
            weight.requires_grad_(False)
        try:
            yield
        finally:
            for weight in self.weights.values():
                weight.requires_grad_(True)

    @contextmanager
    def collect(self) -> Iterator[list[tuple[str, list[Touched]]]]:
        """Within the block, what the tables read is listed, by module."""
        with ExitStack() as stack:
            yield [(name, stack.enter_context(tables.collect())) for name, tables in self._modules.items()]

    @torch.no_grad()
    def gather(self, collected: Sequence[tuple[str, list[Touched]]]) -> dict[str, RowGradient]:
        """The gradients of all processes' touched rows, after `backward`, by table; all processes call it.

        `collected` is what was read in all parts of a batch. Without a rule the gradients go to the weights, and none
        is given back.
        """
        mine = {name: self._nothing(name) for name in self.weights}
        read: dict[str, list[RowGradient]] = {name: [] for name in self.weights}
        for module, touched in collected:
            for one in touched:
                name = self._names.get((module, one.table))
                if name is not None and one.rows.grad is not None:
                    # Padding is always the first of the distinct ids, and learns nothing.
                    read[name].append(RowGradient(len(self.weights[name]), one.ids[1:], one.rows.grad[1:]))
        for name, parts in read.items():
            if parts:
                mine[name] = add_up(parts)
        gathered = exchange(mine, self._runtime, self._exchange_dtype)
        if self._rule is not None:
            return gathered
        for name, gradient in gathered.items():
            weight = self.weights[name]
            weight.grad = torch.zeros_like(weight).index_add_(0, gradient.ids, gradient.values)
        return {}

    @torch.no_grad()
    def step(self, gathered: Mapping[str, RowGradient], learning_rate: float) -> None:
        """Update the rows by the gradients that `gather` gave, which are used up."""
        for name, gradient in gathered.items():
            if len(gradient.ids):
                self._update(name, gradient, learning_rate)

    def _update(self, name: str, gradient: RowGradient, learning_rate: float) -> None:
        ids_U, step_UD = gradient.ids, gradient.values
        weight, state = self.weights[name].data, self.state[name]
        if self._weight_decay:
            rows_UD = weight.index_select(0, ids_U)
            weight.index_copy_(0, ids_U, rows_UD.mul_(1 - learning_rate * self._weight_decay))
        if self._rule == "sgd":
            weight.index_add_(0, ids_U, step_UD, alpha=-learning_rate)
            return
        square_U = torch.linalg.vector_norm(step_UD, dim=1).square() / weight.shape[1]
        before_U = state["square"].index_select(0, ids_U)
        if self._rule == "rowwise_rmsprop":
            touches_U = state["touches"].index_select(0, ids_U) + 1
            state["touches"].index_copy_(0, ids_U, touches_U)
            after_U = before_U.lerp(square_U, 1 - DECAY)
            size_U = (after_U / (1 - DECAY**touches_U)).sqrt()
        else:
            after_U = before_U + square_U
            size_U = after_U.sqrt()
        state["square"].index_copy_(0, ids_U, after_U)
        # In place: the gradient is used up here, and large temporaries cost more than the arithmetic.
        weight.index_add_(0, ids_U, step_UD.mul_((-learning_rate / (size_U + EPSILON)).unsqueeze(1)))

    def _nothing(self, name: str) -> RowGradient:
        weight = self.weights[name]
        ids = torch.empty(0, dtype=torch.int64, device=weight.device)
        return RowGradient(len(weight), ids, weight.new_empty(0, weight.shape[1]))

    def tensors(self) -> dict[str, Tensor]:
        """The tables and the state of their rows, under names for a file."""
        found = {name: weight.detach() for name, weight in self.weights.items()}
        for name, state in self.state.items():
            found |= {f"{name}/{key}": value for key, value in state.items()}
        return found

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the state of rows that `tensors` gave; the weights are loaded with the model's."""
        for name, state in self.state.items():
            for key, value in state.items():
                value.copy_(tensors[f"{name}/{key}"])


def add_up(parts: Sequence[RowGradient]) -> RowGradient:
    """One gradient from several: the values of an id are added in the order of the parts, on every device."""
    if len(parts) == 1:
        return parts[0]
    seen_V = torch.zeros(parts[0].rows, dtype=torch.bool, device=parts[0].ids.device)
    for part in parts:
        seen_V.index_fill_(0, part.ids, True)
    ids_U = seen_V.nonzero().squeeze(1)
    total_UD = parts[0].values.new_zeros(len(ids_U), parts[0].values.shape[1])
    for part in parts:  # the ids of a part are distinct, so each addition has one order
        total_UD.index_add_(0, torch.searchsorted(ids_U, part.ids), part.values)
    return RowGradient(parts[0].rows, ids_U, total_UD)


def exchange(mine: Mapping[str, RowGradient], runtime: Runtime, dtype: torch.dtype) -> dict[str, RowGradient]:
    """The sum over all processes of every table's gradient, the same bits on each of them."""
    if runtime.world == 1 or not mine:
        return dict(mine)
    lengths_T = torch.tensor([len(g.ids) for g in mine.values()], device=runtime.device)
    lengths = from_all(lengths_T).tolist()
    widths = [g.values.shape[1] for g in mine.values()]
    ids = _gather(torch.cat([g.ids for g in mine.values()]), [sum(row) for row in lengths])
    values = _gather(
        torch.cat([g.values.reshape(-1) for g in mine.values()]).to(dtype),
        [sum(n * d for n, d in zip(row, widths, strict=True)) for row in lengths],
    )
    parts: dict[str, list[RowGradient]] = {name: [] for name in mine}
    for row, row_ids, row_values in zip(lengths, ids, values, strict=True):
        each_ids = torch.split(row_ids, row)
        each_values = torch.split(row_values, [n * d for n, d in zip(row, widths, strict=True)])
        for (name, g), some_ids, some_values, d in zip(mine.items(), each_ids, each_values, widths, strict=True):
            parts[name].append(RowGradient(g.rows, some_ids, some_values.view(-1, d).float()))
    return {name: add_up(some) for name, some in parts.items()}


def _gather(x: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """Every process's values, by rank."""
    longest = max(lengths)
    if not longest:
        return [x] * len(lengths)
    padded = x.new_zeros(longest)
    padded[: len(x)] = x
    return [row[:n] for row, n in zip(from_all(padded), lengths, strict=True)]
