"""What models of several targets share: towers, the sum of their losses, targets that are missing.

Shapes: B rows, H width of what a tower reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from falconet.batch import Batch, target_of
from falconet.errors import ColumnNotFoundError, ConfigError, SchemaError
from falconet.models.ranker import LOSSES, Loss, Ranker, at_least, where_known
from falconet.nn.inputs import Inputs, module_key, numbers_of
from falconet.nn.mlp import MLP
from falconet.schema import Schema, Tag


class MultiTask(Ranker):
    """Predicts several targets of a row at once. A subclass gives `represent`, and `towers` to read it.

    The loss of a row is the sum over its tasks of task weight x sample weight x the task's loss. A target that is NaN
    is unknown: it adds nothing, so a task that few rows know has less say. `forward` gives the prediction of the task
    that rows are ranked by: the setting `target`, or the first task.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Ranker.Config):
        dim: int = 16  # width of all embeddings
        towers: tuple[int, ...] = (32,)  # hidden layers of each task's own
        targets: tuple[str, ...] | None = None  # the tasks; None: every target of the schema
        losses: Mapping[str, Loss] = field(default_factory=dict)  # by task; else `loss`
        task_weights: Mapping[str, float] = field(default_factory=dict)  # how much a task counts; else 1
        sample_weights: Mapping[str, str] = field(default_factory=dict)  # the column that weighs the rows of a task

        def __post_init__(self) -> None:
            super().__post_init__()
            at_least(self, 1, "dim", "towers")
            for task, weight in self.task_weights.items():
                if not 0 < weight < float("inf"):
                    raise ConfigError(f"`task_weights` gives `{task}` {weight}", hint="a number above 0")

    config: Config

    def __init__(self, schema: Schema, config: Any) -> None:
        super().__init__(schema, config)
        self.tasks = _tasks(schema, self.config, type(self).__name__)
        self.inputs = Inputs(
            self.columns,
            self.config.dim,
            self.config.pooling,
            soft=self.config.soft_numbers,
            list_weights=self.config.list_weights,
        )
        self.towers: Towers

    def represent(self, batch: Batch) -> dict[str, Tensor]:
        """What the tower of each task reads: [B, H]."""
        raise NotImplementedError

    def predictions(self, batch: Batch) -> dict[str, Tensor]:
        """The prediction of every task, a logit where its loss is "bce": [B] each."""
        found: dict[str, Tensor] = self.towers(self.represent(batch))
        return found

    def forward(self, batch: Batch) -> Tensor:
        assert self.target is not None
        return self.predictions(batch)[self.target]

    def loss(self, batch: Batch) -> Tensor:
        return torch.stack([*self.losses(batch).values()]).sum(0)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """What every task adds to the loss of each row, weights and all: [B] each."""
        found = {}
        for task, prediction_B in self.predictions(batch).items():
            target_B = target_of(batch, task)
            loss = LOSSES[self.loss_of(task)]
            loss_B = where_known(loss, prediction_B, target_B) * self.config.task_weights.get(task, 1.0)
            if task in self.config.sample_weights:
                weight_B = numbers_of(batch, self.config.sample_weights[task])
                loss_B = loss_B * weight_B.where(~target_B.isnan(), 0.0)
            found[task] = loss_B
        return found

    def output(self, target: str) -> nn.Module:
        return self.towers.of(target)

    def loss_of(self, target: str) -> Loss:
        return self.config.losses.get(target) or super().loss_of(target)

    def _choose_target(self, schema: Schema) -> str:
        tasks = _tasks(schema, self.config, type(self).__name__)
        wanted = self.config.target
        if wanted is not None and wanted not in tasks:
            raise ColumnNotFoundError.of(wanted, tasks, where=f"the tasks of {type(self).__name__}")
        return wanted or tasks[0]

    def _choose_columns(self, schema: Schema) -> Schema:
        return super()._choose_columns(schema.without(self.config.sample_weights.values()))


class Towers(nn.Module):
    """A perceptron of each task's own, from what is represented for it to one number."""

    def __init__(self, tasks: Sequence[str], width: int, config: MultiTask.Config) -> None:
        super().__init__()
        self._keys = {task: module_key("task", task) for task in tasks}
        self.layers = nn.ModuleDict(
            {
                key: MLP(width, config.towers, 1, dropout=config.dropout, batch_norm=config.batch_norm)
                for key in self._keys.values()
            }
        )

    def of(self, task: str) -> nn.Module:
        """The perceptron of a task."""
        return self.layers[self._keys[task]]

    def forward(self, seen: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """[B, H] by task to [B] by task."""
        return {task: self.layers[key](seen[task]).squeeze(1) for task, key in self._keys.items()}


def _tasks(schema: Schema, config: MultiTask.Config, who: str) -> tuple[str, ...]:
    """The names of the targets, checked against the settings."""
    targets = schema.select(Tag.TARGET).names
    if config.targets is not None:
        for name in config.targets:
            if name not in targets:
                raise ColumnNotFoundError.of(name, targets, where="the schema's targets")
    tasks = targets if config.targets is None else config.targets
    if not tasks:
        raise SchemaError(f"{who} needs a column tagged `target`, the schema has none", hint="one for each task")
    if len(set(tasks)) < len(tasks):
        raise ConfigError(f"{who} targets={tasks} names a task twice")
    for setting in ("losses", "task_weights", "sample_weights"):
        for name in getattr(config, setting):
            if name not in tasks:
                raise ColumnNotFoundError.of(name, tasks, where=f"{who} {setting}: the model")
    for column in config.sample_weights.values():
        if column not in schema:
            raise ColumnNotFoundError.of(column, schema.names, where="schema")
    return tasks
