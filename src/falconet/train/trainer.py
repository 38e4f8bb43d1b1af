"""The training loop: the same on one process and on many, for any module with `loss(batch)`.

The gradient of a step is the sum over the rows of all processes, divided by their number (or by the sum of their
weights), and less where there are fewer rows than in the other steps, as at the end of an epoch: such rows would count
many times as much as the others. What is random is a function of (seed, epoch, step), and every decision is taken from
values that are the same on all processes: so a run may be cut off and taken up, and its processes never part.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from falconet.arguments import explained
from falconet.batch import Batch
from falconet.errors import ConfigError
from falconet.progress import progress
from falconet.train.callbacks import Callback, Callbacks
from falconet.train.checkpoint import Figures, Position, Resume
from falconet.train.interfaces import Batches, Judges, bring
from falconet.train.optimizer import Optimizers
from falconet.train.parallel import Objective, Parallel, trainable, unwrap
from falconet.train.precision import choose, first_scale, rescale
from falconet.train.recovery import Recovery, describe
from falconet.train.refused import check_data, check_loader, check_metrics, check_model, check_resume, check_trainer
from falconet.train.runtime import Runtime
from falconet.train.schedule import factor, own_random_numbers, sow, step_seed
from falconet.train.settings import TrainConfig
from falconet.train.signals import Signals
from falconet.train.trouble import in_words, known_ids, no_number
from falconet.train.validate import is_better, sums, validate

_LOOK = {"cuda": 16}  # steps after which losses are looked at, where each look waits for the device
_HEED = 16  # steps of a validation after which several processes tell each other what they were asked


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

    @explained
    def __init__(
        self,
        config: TrainConfig,
        folder: str | Path | None = None,
        runtime: Runtime | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        check_trainer(config, folder, runtime, callbacks)
        self.config, self.runtime, self.callbacks = config, runtime, tuple(callbacks)
        self.folder = None if folder is None else Path(folder)

    @explained
    def fit(
        self,
        model: nn.Module,
        loader: Batches,
        valid: Batches | None = None,
        resume: Resume = "never",
        metrics: Judges | None = None,
        step_key: str | None = None,
    ) -> TrainResult:
        """Train a model in place. All processes call it alike; without a `runtime` they are those a launcher started.

        `valid`: what epochs are judged by; the model ends with the weights of the best one, without it of the last.
        `resume`: "auto" goes on where the run in the folder stopped, "must" insists that there is one. `metrics`: more
        figures of the validation, from `model(batch)` and the model's target, or the only one; of a model of several
        targets by target, where the figures are called "stars/rmse". Rows whose target is NaN do not count in them.
        `step_key` stands in the run's manifest.

        Raises ConfigError (also where memory does not suffice), DataError (also for a loss or a gradient that is not a
        number) and ArtifactError (a run that cannot be resumed, or not be written). When any of the processes gets
        SIGUSR1, a snapshot is written and training goes on; on SIGTERM one is written and SystemExit(143) raised, on
        Ctrl-C SystemExit(130). A second Ctrl-C is KeyboardInterrupt, at once.
        """
        check_data(self.config, loader, valid, metrics)
        check_model(model, metrics)
        check_resume(resume, self.folder)
        fit = _Fit(self, unwrap(model), loader, valid, metrics)
        with closing(fit.recovery):
            return fit.run(resume, step_key)

    @explained
    def evaluate(self, model: nn.Module, data: Batches, metrics: Judges | None = None) -> dict[str, float]:
        """The mean loss and the metrics of a model, in float32, each row of all processes counted once."""
        check_loader(data)
        check_metrics(metrics)
        check_model(model, metrics)
        runtime = self.runtime or Runtime.start()
        bring(data, runtime.device)
        return validate(unwrap(model).to(runtime.device), data, metrics, runtime, nullcontext)


class _Fit:
    """One call of `fit`."""

    def __init__(
        self, trainer: Trainer, model: nn.Module, loader: Batches, valid: Batches | None, metrics: Judges | None
    ) -> None:
        self.config, self.folder = trainer.config, trainer.folder
        self.model, self.loader, self.valid, self.metrics = model, loader, valid, metrics
        self.runtime = runtime = trainer.runtime or Runtime.start()
        self.callbacks = Callbacks(trainer.callbacks, runtime)
        for data in (loader, valid):
            if data is not None:
                bring(data, runtime.device)
        self.look = _LOOK.get(runtime.device.type, 1)
        self.objective = Objective(model.to(runtime.device))
        self.optimizers = Optimizers(model, self.config, runtime)
        self.learning, self.parameters = trainable(model)  # before tables are dealt
        if not self.learning:
            raise ConfigError(f"{type(model).__name__} has nothing to learn", hint="no parameter requires a gradient")
        self.recovery = Recovery(trainer.folder, model, self.optimizers, runtime)
        self.dtype = choose(self.config.precision, runtime)
        self.position = Position()
        self.signals = Signals(self.config.snapshot_minutes if runtime.is_main else None)
        self.unread: list[tuple[Tensor, float]] = []
        self.stop = self.save = False  # what any process was asked, known to all

    def run(self, resume: Resume, step_key: str | None) -> TrainResult:
        config = describe(self.config, self.model, self.loader, self.valid, step_key)
        with self.optimizers.tables.hold(), own_random_numbers():
            self.position, finished = self.recovery.open(config, resume)
            if finished:
                epochs = self.position.epoch
                self.runtime.note(f"`{self.folder}` is finished, after {epochs} epochs: its weights are read")
            else:
                self._train(config)
                if self.valid is not None:
                    self.recovery.back_to_best()
        if not finished:
            self.recovery.finish(step_key)
        place = self.position
        figures = place.best if self.valid is not None and place.best else place.history[-1]
        return TrainResult(
            metrics=figures, epochs=place.epoch, rows=place.rows, path=self.folder, history=tuple(place.history)
        )

    def _train(self, config: Mapping[str, Any]) -> None:
        self._announce()
        first_scale(self.position, self.dtype)
        self.parallel = Parallel(self.objective, self.runtime, compiled=self.config.compile)
        with self.signals, self.callbacks.told(config):
            if self.valid is not None and self.metrics is not None and not self.position.done:
                # One batch is judged: a metric that does not fit should be known now, not after an epoch.
                is_better(self.config.monitor, self._judge(steps=1), None)
            while self.position.epoch < self.config.epochs and not self._enough():
                self._epoch()
        self._say_how_it_ended()

    def _enough(self) -> bool:
        """Whether a callback said so, or patience is at its end."""
        patience = self.config.patience
        return self.position.enough or (patience is not None and self.position.stale >= patience)

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
                with (
                    in_words(batch.rows, runtime.device, accumulate=self.config.accumulate),
                    known_ids(self.model, self.loader, place.epoch, place.step),
                ):
                    self._step(batch.to(runtime.device))
                if task is not None:
                    task.advance(batch.global_rows)
                last = place.step == len(self.loader)
                due = every is not None and place.done % every == 0 and not last
                if due or last or len(self.unread) == self.look:
                    self._read()
                if due or self.stop or (self.save and not last):
                    self.parallel.share_buffers()
                    self.recovery.save(place, best=False)
                self.save = False
                self._stop_if(self.stop)
        self._end_epoch(place.rows - before, time.monotonic() - start)

    def _stop_if(self, asked: bool) -> None:
        """End the program as SIGTERM or Ctrl-C asks, after a snapshot; all processes leave together."""
        if asked:
            kept = "nothing is kept without a folder" if self.folder is None else f"a snapshot is in `{self.folder}`"
            self.runtime.note(f"stopped at {self._where()}; {kept}")
            self.runtime.barrier()
            raise SystemExit(self.signals.code or 143)

    def _where(self) -> str:
        place, epochs = self.position, self.config.epochs
        return f"step {place.done:,} of {epochs * len(self.loader):,}, epoch {min(place.epoch + 1, epochs)} of {epochs}"

    def _step(self, batch: Batch) -> None:
        """Forward and back through the parts of a batch, one sum over processes, one update."""
        place, parts, half = self.position, self.config.accumulate, self.dtype == torch.float16
        sow(step_seed(self.config.seed, place.epoch, place.step, self.runtime.rank))
        scale, rate = place.scale or 1.0, self._rate()
        totals = torch.zeros(2, dtype=torch.float64, device=self.runtime.device)
        touched = []
        for i in range(parts):
            part = batch if parts == 1 else batch[i * batch.rows // parts : (i + 1) * batch.rows // parts]
            with self.optimizers.tables.collect() as read, self.parallel.part(last=i == parts - 1):
                with self._autocast():
                    losses_R = self.parallel(part)
                totals += sums(losses_R, part)
                total = losses_R.sum() if part.weights is None else (losses_R * part.weights).sum()
                self.parallel.backward(total * (self._share(batch) * scale / batch.global_rows))
                touched += read
        asked = [float(self.signals.code > 0), float(self.signals.save()), float(self.callbacks.failed)]
        totals = self.parallel.agree(torch.cat([totals, totals.new_tensor(asked)]))
        whole = None  # what makes the gradient that of the mean over rows, or over their weights, again
        if half or batch.weights is not None:
            weight = totals.new_tensor(batch.global_rows) if batch.weights is None else totals[1].clamp(min=1e-30)
            whole = (batch.global_rows / (weight * scale)).float()
        norm = self.optimizers.step(touched, rate, whole, number=place.done, careful=half)
        if half and not rescale(place, fine=math.isfinite(norm)):
            raise no_number("gradient", float(norm), self.loader, place.epoch, place.step)
        place.step, place.done, place.rows = place.step + 1, place.done + 1, place.rows + batch.global_rows
        self.unread.append((torch.cat([totals, norm.to(totals).reshape(1)]), rate * self.config.learning_rate))

    def _share(self, batch: Batch) -> float:
        """What a batch counts beside the others of its epoch: 1 where it is no smaller."""
        return min(batch.global_rows * len(self.loader) / self.loader.rows, 1.0)

    def _rate(self) -> float:
        config, place = self.config, self.position
        steps = config.epochs * len(self.loader)
        return factor(
            config.schedule, place.done, steps, config.warmup,
            decay=config.decay, every=config.decay_every, drops=place.drops,
        )  # fmt: skip

    def _read(self) -> None:
        """Take in the sums of the last steps: what they came to, and what any process was asked."""
        place = self.position
        with known_ids(self.model, self.loader, place.epoch, place.step - 1):
            read = [(values.tolist(), rate) for values, rate in self.unread]
        for behind, (values, rate) in zip(reversed(range(len(read))), read, strict=True):
            loss, weight, stop, save, failures, learns, norm = values
            self.callbacks.check(failures)
            if not learns:
                name = type(self.model).__name__
                raise ConfigError(f"{name} learns nothing: its loss depends on no parameter that requires a gradient")
            skipped = self.dtype == torch.float16 and not math.isfinite(norm)
            if not math.isfinite(loss) or not (math.isfinite(norm) or skipped):
                what, value = ("gradient", norm) if math.isfinite(loss) else ("loss", loss)
                raise no_number(what, value, self.loader, place.epoch, place.step - behind - 1)
            place.loss, place.weight = place.loss + loss, place.weight + weight
            self.stop, self.save = self.stop or stop > 0, self.save or save > 0
            figures = {"loss": loss / weight if weight else 0.0, "learning_rate": rate, "gradient_norm": norm}
            self.callbacks.step(place.done - behind, figures)
        self.unread.clear()

    def _end_epoch(self, rows: int, seconds: float) -> None:
        place = self.position
        line: dict[str, Any] = {"epoch": place.epoch + 1, "step": place.done, "rows": place.rows}
        line["loss"] = place.loss / place.weight if place.weight else 0.0
        better = True
        self.parallel.share_buffers()
        if self.valid is not None:
            line["valid"] = self._judge()
            better = is_better(self.config.monitor, line["valid"], place.best and place.best["valid"])
        place.history.append(line)
        place.best, place.stale = (line, 0) if better else (place.best, place.stale + 1)
        place.drops += place.stale > 0 and place.stale % self.config.decay_every == 0
        place.epoch, place.step, place.loss, place.weight = place.epoch + 1, 0, 0.0, 0.0
        ends = float(self.callbacks.epoch(place.epoch, line))
        asked = [ends, float(self.callbacks.failed), float(self.signals.code > 0)]
        ends, failures, stop = self.runtime.sums(torch.tensor(asked)).tolist()
        place.enough = ends > 0
        self.recovery.save(place, best=better and self.valid is not None)
        self.callbacks.check(failures)
        rate = rows / max(seconds, 1e-9)
        figures = {"loss": line["loss"], **{f"valid {name}": x for name, x in line.get("valid", {}).items()}}
        self.runtime.note(
            f"epoch {place.epoch}: {', '.join(f'{name} {x:.4f}' for name, x in figures.items())}; "
            f"{rows:,} rows in {seconds:.1f} s, {rate:,.0f} rows/s"
        )
        self.recovery.log("epoch", epoch=place.epoch, rows=rows, seconds=seconds, rows_per_s=rate)
        self._stop_if(stop > 0)

    def _judge(self, steps: int | None = None) -> Figures:
        assert self.valid is not None
        return validate(
            self.model, self.valid, self.metrics, self.runtime, self._autocast, steps=steps, between=self._heed
        )

    def _heed(self, step: int) -> None:
        """Between two steps of a validation: do what any process was asked. A resumed run begins it anew."""
        if self.runtime.world > 1 and step % _HEED:
            return
        asked = torch.tensor([float(self.signals.code > 0), float(self.signals.save())])
        stop, save = self.runtime.sums(asked).tolist()
        if stop or save:
            self.recovery.save(self.position, best=False)
        self._stop_if(stop > 0)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.runtime.device.type, self.dtype, enabled=self.dtype != torch.float32)

    def _say_how_it_ended(self) -> None:
        place, config = self.position, self.config
        if place.epoch < config.epochs:
            idle = f"valid {config.monitor} no better for {place.stale} epoch{'s' * (place.stale > 1)}"
            why = "a callback ended it" if place.enough else idle
            self.runtime.note(f"stopped after epoch {place.epoch} of {config.epochs}: {why}")
        if self.valid is not None and place.best and place.stale:
            figure = f"valid {config.monitor} {place.best['valid'][config.monitor]:.4f}"
            self.runtime.note(f"the model has the weights of epoch {place.best['epoch']}, with {figure}")

    def _announce(self) -> None:
        place, runtime, tables = self.position, self.runtime, self.optimizers.tables
        device, precision = runtime.device.type, str(self.dtype).removeprefix("torch.")
        runtime.note(
            f"{type(self.model).__name__}: {self.learning:,} of {self.parameters:,} parameters learn; "
            f"{runtime.world} process{'es' * (runtime.world > 1)} on {device}, {precision}"
        )
        for line in tables.described:
            runtime.note(line)
        if place.done:
            runtime.note(f"going on from {self._where()}")
        self.recovery.log(
            "start", step=place.done, world=runtime.world, device=device, precision=precision,
            accumulate=self.config.accumulate,
        )  # fmt: skip
