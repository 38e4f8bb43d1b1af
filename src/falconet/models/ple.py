"""Experts of each task's own beside experts that all share, mixed level by level.

Tang et al., "Progressive layered extraction (PLE): a novel multi-task learning model for personalized
recommendations", RecSys 2020.

Shapes: B rows, W width of the input of a level, E experts, H width of an expert's output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from falconet.batch import Batch
from falconet.models.base import MODELS
from falconet.models.multi_task import MultiTask, Towers
from falconet.models.ranker import at_least, some
from falconet.nn.experts import Experts, Gate
from falconet.nn.inputs import module_key
from falconet.schema import Schema


@MODELS.register()
class PLE(MultiTask):
    """Levels of experts, some shared and some of one task alone, so that tasks that disagree do not hurt each other.

    With one level it is the customized gate control (CGC) of the same paper.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(MultiTask.Config):
        levels: int = 2
        shared_experts: int = 2  # on each level
        task_experts: int = 2  # of each task, on each level
        expert: tuple[int, ...] = (64,)  # layers of each expert

        def __post_init__(self) -> None:
            super().__post_init__()
            at_least(self, 1, "levels", "shared_experts", "task_experts")
            some(self, "expert")

    config: Config

    def __init__(self, schema: Schema, config: Config) -> None:
        super().__init__(schema, config)
        width, outputs = self.inputs.width, config.expert[-1]
        self.levels = nn.ModuleList(
            Extraction(self.tasks, outputs if level else width, config, last=level == config.levels - 1)
            for level in range(config.levels)
        )
        self.towers = Towers(self.tasks, outputs, config)

    @classmethod
    def debug(cls) -> Config:
        return cls.Config(dim=4, shared_experts=1, task_experts=1, expert=(8,), towers=(4,))

    def represent(self, batch: Batch) -> dict[str, Tensor]:
        shared_BW = self.inputs(batch)
        seen = dict.fromkeys(self.tasks, shared_BW)
        for level in self.levels:
            seen, shared_BW = level(seen, shared_BW)
        return seen


class Extraction(nn.Module):
    """One level: a task's gate mixes its own experts and the shared ones, the shared gate mixes all of them.

    The last level has no shared gate: nothing would read it.
    """

    def __init__(self, tasks: Sequence[str], width: int, config: PLE.Config, *, last: bool) -> None:
        super().__init__()
        self._keys = {task: module_key("task", task) for task in sorted(tasks)}

        def experts(count: int) -> Experts:
            return Experts(width, count, config.expert, dropout=config.dropout, batch_norm=config.batch_norm)

        own, shared = config.task_experts, config.shared_experts
        self.shared = experts(shared)
        self.experts = nn.ModuleDict({key: experts(own) for key in self._keys.values()})
        self.gates = nn.ModuleDict({key: Gate(width, own + shared) for key in self._keys.values()})
        self.shared_gate = None if last else Gate(width, own * len(self._keys) + shared)

    def forward(self, seen: Mapping[str, Tensor], shared_BW: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """What each task and what all see, [B, W] each, to the same of the next level, [B, H] each."""
        shared_BEH = self.shared(shared_BW)
        own = {task: self.experts[key](seen[task]) for task, key in self._keys.items()}
        mixed = {
            task: self.gates[key](seen[task], torch.cat([own[task], shared_BEH], dim=1))
            for task, key in self._keys.items()
        }
        if self.shared_gate is None:
            return mixed, shared_BW
        return mixed, self.shared_gate(shared_BW, torch.cat([*own.values(), shared_BEH], dim=1))
