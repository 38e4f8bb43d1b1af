"""How to train: the settings that a recipe's [train] and a run's config.json hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from falconet.config import with_types
from falconet.errors import ConfigError
from falconet.train.placement import Asked, check_placement
from falconet.train.precision import Precision
from falconet.train.rowwise import RULE, Rule
from falconet.train.schedule import Schedule

TABLE_RATE = 0.01


@with_types
@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How to train. Rates are never scaled by the number of processes, as the batch size is that of all together."""

    epochs: int = 1
    optimizer: Literal["adam", "adamw", "sgd", "adagrad"] = "adam"  # of the dense layers
    learning_rate: float = 0.001
    weight_decay: float = 0.0
    table_optimizer: Rule | Mapping[str, Rule] | None = RULE  # of all tables, or by name; None: as dense
    table_learning_rate: float | Mapping[str, float] = TABLE_RATE  # likewise
    table_weight_decay: float = 0.0  # of the rows a step touches
    table_placement: Asked | Mapping[str, Asked] = "auto"  # of all tables, or by name; see train/placement.py
    table_dtype: Literal["float32", "bfloat16"] = "float32"  # what rows are kept in while they train
    exchange_dtype: Literal["float32", "bfloat16"] = "float32"  # of table gradients between processes
    precision: Precision = "auto"  # of the dense layers; auto: the fastest that the hardware has
    accumulate: int = 1  # parts in which a batch goes through the model: the same step, in less memory
    schedule: Schedule = "constant"
    warmup: int = 0  # steps
    decay: float = 0.1  # of the rate, where `schedule` is "step" or "plateau",
    decay_every: int = 10  # after so many steps, or so many epochs without a better `monitor`
    clip_norm: float | None = None  # of the whole gradient, tables and all
    compile: bool = False  # by torch.compile, which on a CPU needs a C++ compiler and takes its time at first
    seed: int = 0
    snapshot_steps: int | None = None  # None: at the end of each epoch; a number: every so many steps as well
    snapshot_minutes: float | None = None  # likewise
    patience: int | None = None  # epochs without a better `monitor` after which training stops
    monitor: str = "loss"  # of the validation: "loss" or one of the metrics

    def __post_init__(self) -> None:
        check_placement(self.table_placement)
        for name in ("epochs", "accumulate", "decay_every", "snapshot_steps", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"`{name}` is {value}", hint="at least 1")
        rates = self.table_learning_rate
        by_table = rates if isinstance(rates, Mapping) else {"": rates}
        for table, rate in by_table.items():
            if not 0 < rate < math.inf:
                where = f"table_learning_rate.{table}" if table else "table_learning_rate"
                raise ConfigError(f"`{where}` is {rate}", hint="a number above 0")
        for name in ("learning_rate", "clip_norm", "decay", "snapshot_minutes"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"`{name}` is {value}", hint="a number above 0")
        for name in ("weight_decay", "table_weight_decay", "warmup", "seed"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"`{name}` is {getattr(self, name)}", hint="at least 0")
