"""One representation for all tasks, and a tower of each task's own.

Caruana, "Multitask learning", Machine Learning 28, 1997.

Shapes: B rows, H width of the representation.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from falconet.batch import Batch
from falconet.models.base import MODELS
from falconet.models.multi_task import MultiTask, Towers
from falconet.models.ranker import some
from falconet.nn.mlp import MLP
from falconet.schema import Schema


@MODELS.register()
class SharedBottom(MultiTask):
    """All tasks share the layers up to their towers: the one to compare MMoE and PLE with."""

    @dataclass(frozen=True, kw_only=True)
    class Config(MultiTask.Config):
        bottom: tuple[int, ...] = (128, 64)  # shared layers

        def __post_init__(self) -> None:
            super().__post_init__()
            some(self, "bottom")

    config: Config

    def __init__(self, schema: Schema, config: Config) -> None:
        super().__init__(schema, config)
        self.bottom = MLP(self.inputs.width, config.bottom, dropout=config.dropout, batch_norm=config.batch_norm)
        self.towers = Towers(self.tasks, self.bottom.width, config)

    @classmethod
    def debug(cls) -> Config:
        return cls.Config(dim=4, bottom=(8,), towers=(4,))

    def represent(self, batch: Batch) -> dict[str, Tensor]:
        shared_BH: Tensor = self.bottom.rest(self.inputs.project(batch, self.bottom.first))
        return dict.fromkeys(self.tasks, shared_BH)
