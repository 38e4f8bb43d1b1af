"""The training loop: the same on one process and on many, for any module with `loss(batch)`.

The gradient of a step is the sum over the rows of all processes, divided by their number (or by the sum of their
weights). What is random is a function of (seed, epoch, step), and every decision is taken from values that are the same
on all processes: so a run may be cut off and taken up, and its processes never part.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from falconet.batch import Batch
from falconet.errors import ConfigError, DataError
from falconet.progress import progress
from falconet.train.checkpoint import Position, Resume
from falconet.train.interfaces import Batches, Metrics
from falconet.train.optimizer import Optimizers
from falconet.train.parallel import Objective, bfloat16_is_fast, trainable, unwrap, wrap
from falconet.train.recovery import Recovery, describe
from falconet.train.runtime import Runtime
from falconet.train.schedule import Schedule, factor, step_seed
from falconet.train.validate import is_better, sums, validate

_LOOK = 16  # steps between two looks at a GPU's losses: each look waits for the device


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How to train. Rates are never scaled by the number of processes, as the batch size is that of all together."""

    epochs: int = 1
    optimizer: Literal["adam", "adamw", "sgd", "adagrad"] = "adam"  # of the dense layers
    learning_rate: float = 0.001
    weight_decay: float = 0.0
    table_optimizer: Literal["rowwise_rmsprop", "rowwise_adagrad", "sgd"] | None = "rowwise_rmsprop"  # None: as dense
    table_learning_rate: float = 0.01
    table_weight_decay: float = 0.0  # of the rows a step touches
    exchange_dtype: Literal["float32", "bfloat16"] = "float32"  # of table gradients between processes
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 where the hardware multiplies it
    schedule: Schedule = "constant"
    warmup: int = 0  # steps
    clip_norm: float | None = None  # of the whole gradient, tables and all
    seed: int = 0
    snapshot_steps: int | None = None  # None: at the end of each epoch; a number: every so many steps as well
    patience: int | None = None  # epochs without a better `monitor` after which training stops
    monitor: str = "loss"  # of the validation: "loss" or one of the metrics

    def __post_init__(self) -> None:
        for name in ("epochs", "snapshot_steps", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"`{name}` is {value}", hint="at least 1")
        for name in ("learning_rate", "table_learning_rate", "clip_norm"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"`{name}` is {value}", hint="above 0")
        for name in ("weight_decay", "table_weight_decay", "warmup", "seed"):
            if getattr(self, name) < 0:
                raise ConfigError(f"`{name}` is {getattr(self, name)}", hint="at least 0")


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """What a run came to. `metrics` are the figures of the epoch whose weights the model has now."""

    metrics: Mapping[str, Any]
    epochs: int
    rows: int  # trained on, of all epochs and processes
    path: Path | None
    history: tuple[Mapping[str, Any], ...]  # the figures of every epoch


class Trainer:
    """Trains models as `config` says. With `folder`, the run is kept there and can be resumed."""

    def __init__(self, config: TrainConfig, folder: str | Path | None = None, runtime: Runtime | None = None) -> None:
        self.config, self.runtime = config, runtime
        self.folder = None if folder is None else Path(folder)

    def fit(
        self,
        model: nn.Module,
        loader: Batches,
        valid: Batches | None = None,
        resume: Resume = "never",
        metrics: Metrics | None = None,
        step_key: str | None = None,
        on_step: Callable[[int, float], None] | None = None,
    ) -> TrainResult:
        """Train a model in place. All processes call it alike; without a `runtime` they are those a launcher started.

        `valid`: what epochs are judged by; the model ends with the weights of the best one, without it of the last.
        `resume`: "auto" goes on where the run in the folder stopped, "must" insists that there is one. `metrics`: more
        figures of the validation, from `model(batch)` and the only target. `step_key` stands in the run's manifest.
        `on_step`: called with the step, from 1 over all epochs, and its mean loss over the rows of all processes.

        Raises ConfigError, DataError (also for a loss that is not a number) and ArtifactError (a run that cannot be
        resumed). When any of the processes gets SIGUSR1, a snapshot is written and training goes on; on SIGTERM one is
        written and SystemExit(143) raised.
        """
        if self.config.patience is not None and valid is None:
            raise ConfigError("`patience` without validation data", hint="fit(..., valid=loader), or no patience")
        if valid is not None and metrics is None and self.config.monitor != "loss":
            raise ConfigError(
                f"`monitor` is {self.config.monitor!r}, but the validation has no figure but the loss",
                hint="fit(..., metrics=...)",
            )
        if resume == "must" and self.folder is None:
            raise ConfigError('`resume="must"` without a folder', hint="Trainer(config, folder)")
        if not len(loader):
            raise DataError("no rows to train on", hint="the loader has no batch")
        if valid is not None and not len(valid):
            raise DataError("no rows to validate on", hint="`valid` has no batch; fit(...) without it trains as well")
        return _Fit(self, unwrap(model), loader, valid, metrics, on_step).run(resume, step_key)

    def evaluate(self, model: nn.Module, data: Batches, metrics: Metrics | None = None) -> dict[str, float]:
        """The mean loss and the metrics of a model, in float32, each row of all processes counted once."""
        runtime = self.runtime or Runtime.start()
        return validate(unwrap(model).to(runtime.device), data, metrics, runtime, nullcontext)


class _Fit:
    """One call of `fit`."""

    def __init__(
        self,
        trainer: Trainer,
        model: nn.Module,
        loader: Batches,
        valid: Batches | None,
        metrics: Metrics | None,
        on_step: Callable[[int, float], None] | None,
    ) -> None:
        self.config, self.folder, self.on_step = trainer.config, trainer.folder, on_step
        self.model, self.loader, self.valid, self.metrics = model, loader, valid, metrics
        self.runtime = trainer.runtime or Runtime.start()
        self.gpu = self.runtime.device.type == "cuda"
        self.plain = Objective(model.to(self.runtime.device))
        self.objective: nn.Module | None = None  # `plain` for many processes, from the first batch on
        self.optimizers = Optimizers(model, self.config, self.runtime)
        if not self.optimizers.tables.weights and not trainable(model)[0]:
            raise ConfigError(f"{type(model).__name__} has nothing to learn", hint="no parameter requires a gradient")
        self.recovery = Recovery(self.folder, model, self.optimizers, self.runtime)
        self.bfloat16 = self._use_bfloat16()
        self.position = Position()
        self.unread: list[Tensor] = []
        self.told_to_stop = self.told_to_save = False  # by a signal, and perhaps this process alone
        self.stop = self.save = False  # the same, known to all processes

    def run(self, resume: Resume, step_key: str | None) -> TrainResult:
        config = describe(self.config, self.model, self.loader, self.valid, step_key)
        with self.optimizers.tables.hold(), torch.random.fork_rng(range(torch.cuda.device_count() if self.gpu else 0)):
            self.position, finished = self.recovery.open(config, resume)
            if not finished:
                self._announce()
                with self._on_signals():
                    while self.position.epoch < self.config.epochs and not self._out_of_patience():
                        self._epoch()
                if self.valid is not None:
                    self.recovery.back_to_best()
                self.recovery.finish(step_key)
        place = self.position
        figures = place.best if self.valid is not None and place.best else place.history[-1]
        return TrainResult(
            metrics=figures, epochs=place.epoch, rows=place.rows, path=self.folder, history=tuple(place.history)
        )

    def _epoch(self) -> None:
        place, runtime, every = self.position, self.runtime, self.config.snapshot_steps
        before, start = place.rows, time.monotonic()
        left = self.loader.rows - (before - (place.history[-1]["rows"] if place.history else 0))
        with (
            closing(self.loader.batches(place.epoch, place.step, runtime.rank, runtime.world)) as batches,
            progress(f"epoch {place.epoch + 1}", left) if runtime.is_main else nullcontext() as task,
        ):
            self.model.train()
            for batch in batches:
                self._step(batch)
                if task is not None:
                    task.advance(batch.global_rows)
                last = place.step == len(self.loader)
                due = every is not None and place.done % every == 0 and not last
                if due or last or not self.gpu or len(self.unread) == _LOOK:
                    self._read()
                if due or self.stop or (self.save and not last):
                    self.recovery.save(place, best=False)
                self.save = False
                if self.stop:
                    runtime.barrier()
                    raise SystemExit(143)
        self._end_epoch(place.rows - before, time.monotonic() - start)

    def _step(self, batch: Batch) -> None:
        place, runtime = self.position, self.runtime
        batch = batch.to(runtime.device)
        if self.objective is None:
            self.objective = wrap(self.plain, runtime, batch)
        torch.manual_seed(step_seed(self.config.seed, place.epoch, place.step, runtime.rank))
        with self.optimizers.tables.collect() as touched:
            with self._autocast():
                losses_R = self.objective(batch)
            to_save, self.told_to_save = self.told_to_save, False
            global_sums = runtime.sums(sums(losses_R, batch, self.told_to_stop, to_save))
            total = losses_R.sum() if batch.weights is None else (losses_R * batch.weights).sum()
            (total / global_sums[1].clamp(min=1e-30).float()).backward()  # gradients are added up over processes
        steps = self.config.epochs * len(self.loader)
        self.optimizers.step(touched, factor(self.config.schedule, place.done, steps, self.config.warmup))
        place.step, place.done, place.rows = place.step + 1, place.done + 1, place.rows + batch.global_rows
        self.unread.append(global_sums)

    def _read(self) -> None:
        """Take in the sums of the last steps: loss, weight, and what any process was told to do."""
        place = self.position
        for behind, values in zip(reversed(range(len(self.unread))), self.unread, strict=True):
            loss, weight, stop, save = values.tolist()
            if not math.isfinite(loss):
                raise DataError(
                    f"the loss is {loss} at step {place.step - behind} of epoch {place.epoch + 1}",
                    hint="a smaller learning rate, `clip_norm`, or a look for infinite values in the features",
                )
            place.loss, place.weight = place.loss + loss, place.weight + weight
            self.stop, self.save = self.stop or stop > 0, self.save or save > 0
            if self.on_step is not None:
                self.on_step(place.done - behind, loss / weight if weight else 0.0)
        self.unread.clear()

    def _end_epoch(self, rows: int, seconds: float) -> None:
        place = self.position
        line: dict[str, Any] = {"epoch": place.epoch + 1, "step": place.done, "rows": place.rows}
        line["loss"] = place.loss / place.weight if place.weight else 0.0
        better = True
        if self.valid is not None:
            line["valid"] = validate(self.model, self.valid, self.metrics, self.runtime, self._autocast)
            better = is_better(self.config.monitor, line["valid"], place.best and place.best["valid"])
        place.history.append(line)
        place.best, place.stale = (line, 0) if better else (place.best, place.stale + 1)
        place.epoch, place.step, place.loss, place.weight = place.epoch + 1, 0, 0.0, 0.0
        self.recovery.save(place, best=better and self.valid is not None)
        rate = rows / max(seconds, 1e-9)
        figures = {"loss": line["loss"], **{f"valid {name}": x for name, x in line.get("valid", {}).items()}}
        self.runtime.note(
            f"epoch {place.epoch}: {', '.join(f'{name} {x:.4f}' for name, x in figures.items())}; "
            f"{rows:,} rows in {seconds:.1f} s, {rate:,.0f} rows/s"
        )
        self.recovery.log("epoch", epoch=place.epoch, rows=rows, seconds=seconds, rows_per_s=rate)

    def _out_of_patience(self) -> bool:
        return self.config.patience is not None and self.position.stale >= self.config.patience

    def _use_bfloat16(self) -> bool:
        if self.config.precision != "auto":
            return self.config.precision == "bfloat16"
        able = torch.tensor([float(bfloat16_is_fast(self.runtime.device))])
        return int(self.runtime.sums(able)) == self.runtime.world  # all processes, or none

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.runtime.device.type, torch.bfloat16, enabled=self.bfloat16)

    def _announce(self) -> None:
        learn, total = trainable(self.model)
        learn += sum(weight.numel() for weight in self.optimizers.tables.weights.values())
        world, device, precision = self.runtime.world, self.runtime.device.type, "bf16" if self.bfloat16 else "fp32"
        self.runtime.note(
            f"{type(self.model).__name__}: {learn:,} of {total:,} parameters learn; {world} process(es) on {device}, "
            f"{precision}; tables replicated{', touched rows exchanged' if world > 1 else ''}"
        )
        self.recovery.log("start", step=self.position.done, world=world, device=device, precision=precision)

    @contextmanager
    def _on_signals(self) -> Iterator[None]:
        """Within the block SIGTERM asks for a stop and SIGUSR1 for a snapshot; the loop does it after the step."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: FrameType | None) -> None:
            self.told_to_stop = True

        def save(number: int, frame: FrameType | None) -> None:
            self.told_to_save = True

        before = {signal.SIGTERM: signal.signal(signal.SIGTERM, stop)}
        if hasattr(signal, "SIGUSR1"):  # not on Windows
            before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, save)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
