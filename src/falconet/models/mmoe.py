"""Experts that all tasks share, mixed for each task by a gate of its own.

Ma et al., "Modeling task relationships in multi-task learning with multi-gate mixture-of-experts", KDD 2018.

Shapes: B rows, W width of all inputs side by side, E experts, H width of an expert's output.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from falconet.batch import Batch
from falconet.models.base import MODELS
from falconet.models.multi_task import MultiTask, Towers
from falconet.models.ranker import at_least, some
from falconet.nn.experts import Experts, Gate
from falconet.nn.inputs import module_key
from falconet.schema import Schema


@MODELS.register()
class MMoE(MultiTask):
    """Experts that all tasks share; each task's gate chooses its mixture of them by the row's inputs."""

    @dataclass(frozen=True, kw_only=True)
    class Config(MultiTask.Config):
        experts: int = 4
        expert: tuple[int, ...] = (64,)  # layers of each expert

        def __post_init__(self) -> None:
            super().__post_init__()
            at_least(self, 1, "experts")
            some(self, "expert")

    config: Config

    def __init__(self, schema: Schema, config: Config) -> None:
        super().__init__(schema, config)
        width = self.inputs.width
        self.experts = Experts(
            width, config.experts, config.expert, dropout=config.dropout, batch_norm=config.batch_norm
        )
        self.gates = nn.ModuleDict({module_key("task", task): Gate(width, config.experts) for task in self.tasks})
        self.towers = Towers(self.tasks, config.expert[-1], config)

    @classmethod
    def debug(cls) -> Config:
        return cls.Config(dim=4, experts=2, expert=(8,), towers=(4,))

    def represent(self, batch: Batch) -> dict[str, Tensor]:
        x_BW = self.inputs(batch)
        experts_BEH = self.experts(x_BW)
        return {task: self.gates[module_key("task", task)](x_BW, experts_BEH) for task in self.tasks}
