"""Small trainings that come to the same on any number of processes."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from falconet.batch import Batch
from falconet.loader.loader import Loader
from falconet.loader.map_style import MapLoader
from falconet.metrics.binary import BinaryMetrics
from falconet.nn.embedding import Tables
from falconet.nn.mlp import MLP
from falconet.nn.supervised import Supervised
from falconet.schema import Column
from falconet.train import parallel
from falconet.train.callbacks import Callback
from falconet.train.runtime import Runtime
from falconet.train.trainer import Trainer
from train.workers import (
    USERS,
    CutOff,
    Each,
    OneSided,
    Rows,
    assert_equal_replicas,
    config,
    loader,
    net,
    of,
    walk,
    weights,
)

SIZES = (10, 3, 7, 1, 6)  # rows of files
CONSTANT = config(optimizer="sgd", learning_rate=0.1, table_optimizer="sgd", table_learning_rate=0.1)


def of_all(value: Any) -> list[Any]:
    """A value of every process, by rank."""
    world = Runtime.peek()[1]
    values: list[Any] = [None] * world
    if world == 1:
        return [value]
    dist.all_gather_object(values, value)
    return values


class Seen(Callback):
    """The figures of every step."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.losses: list[float] = []
        self.steps: list[int] = []

    def step(self, step: int, figures: Mapping[str, float]) -> None:
        self.steps.append(step)
        self.rates.append(figures["learning_rate"])
        self.losses.append(figures["loss"])


class Shared(Rows):
    """The steps of whole batches, dealt to however many processes there are."""

    def batches(self, epoch: int = 0, start: int = 0, rank: int = 0, world: int = 1) -> Iterator[Batch]:  # type: ignore[override]
        for (batch,) in self.steps[start:]:
            part = batch[rank * batch.rows // world : (rank + 1) * batch.rows // world]
            yield of(part, batch.rows)


def uneven_files(folder: Path) -> tuple[list[int], list[float]]:
    """Steps of every process through 27 rows in five files, four at a time, and the ages of all rows they had."""
    rows = Loader(folder, batch_size=4)
    rank, world = Runtime.peek()
    steps = of_all(sum(1 for _ in rows.batches(0, 0, rank, world)))
    mine = [batch.features["age"].tolist() for batch in rows.batches(0, 0, rank, world)]  # type: ignore[union-attr]
    return steps, [age for ages in of_all([age for ages in mine for age in ages]) for age in ages]


def train_on_uneven_files(folder: Path) -> tuple[dict[str, Tensor], list[float]]:
    """The weights and losses of two epochs, in three parts a step: the last batch has three rows.

    Without BatchNorm, whose statistics are those of a part, and which rows are in one depends on the processes.
    """
    model, seen = net(), Seen()
    model.rest[1] = nn.Identity()
    chosen = config(optimizer="sgd", table_optimizer="sgd", epochs=2, learning_rate=0.01, accumulate=3)
    with counted_sums() as sums:
        Trainer(chosen, callbacks=[seen]).fit(model, Loader(folder, batch_size=4, shuffle=True, seed=7))
    assert_equal_replicas(model)
    if Runtime.peek()[1] > 1:
        assert len(sums) == len(seen.steps)  # one all-reduce for each step
    return weights(model), seen.losses


@contextlib.contextmanager
def counted_sums() -> Iterator[list[int]]:
    """The sizes of gradients that DistributedDataParallel adds up."""
    sizes: list[int] = []
    real = parallel.all_sum_into

    def counting(gradients: Tensor) -> torch.futures.Future[Tensor]:
        sizes.append(gradients.numel())
        return real(gradients)

    parallel.all_sum_into = counting
    try:
        yield sizes
    finally:
        parallel.all_sum_into = real


class Given(nn.Module):
    """Its loss is in the data; the one weight has no say."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, batch: Batch) -> Tensor:
        return batch.features["error"] + self.weight  # type: ignore[operator]

    def loss(self, batch: Batch) -> Tensor:
        return self(batch)


class Count(BinaryMetrics):
    """How many rows there were."""

    def finish(self, state: dict[str, Tensor]) -> dict[str, float]:
        return {"count": float(len(next(iter(state.values()))))}


def judged() -> list[dict[str, float]]:
    """Loss and number of seven rows, of which the first is wrong, by rank."""
    error = torch.tensor([3.5, 0, 0, 0, 0, 0, 0])
    rows = Shared([Batch.of({"error": error}, {"y": torch.tensor([1.0, 0, 0, 1, 0, 1, 0])})])
    counted = Trainer(CONSTANT).evaluate(Given(), rows, Count())
    return of_all({**counted, **Trainer(CONSTANT).evaluate(Given(), rows, BinaryMetrics())})


class Fork(nn.Module):
    """Two layers and a table of which a row uses one layer, and a layer and a table that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.sides = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)])
        self.tables = Tables([Column(name="code", dtype="int32", cardinality=4)], 1)
        self.never, self.unused = nn.Linear(2, 2), Tables([Column(name="nobody", dtype="int32", cardinality=3)], 2)

    def loss(self, batch: Batch) -> Tensor:
        x, side = batch.features["x"], batch.features["side"]
        assert isinstance(x, Tensor)
        assert isinstance(side, Tensor)
        value = self.tables(batch)["code"].squeeze(1)
        for number, layer in enumerate(self.sides):
            if (side == number).any():
                value = value + torch.where(side == number, layer(x.unsqueeze(1)).squeeze(1), 0.0)
        return (value - batch.targets["y"]).square()


def fork_rows() -> Shared:
    """Steps in which half of the rows use one layer, all of them the other, or, with padding alone, the first."""

    def step(side: list[int], code: list[int]) -> Batch:
        x = torch.tensor([0.5, -1.0, 2.0, 1.0])
        features = {"x": x, "side": torch.tensor(side), "code": torch.tensor(code)}
        return Batch.of(features, {"y": x.square()})

    steps = [step([0, 0, 1, 1], [1, 2, 0, 0]), step([1, 1, 1, 1], [3, 3, 1, 2]), step([0, 0, 0, 0], [0, 0, 0, 0])]
    return Shared(steps * 3)


def train_fork(parts: int) -> dict[str, Tensor]:
    """The weights after nine steps of Adam, which would move a layer whose gradient is zero instead of none."""
    torch.manual_seed(0)
    model = Fork()
    Trainer(config(learning_rate=0.1, table_learning_rate=0.1, accumulate=parts)).fit(model, fork_rows())
    assert_equal_replicas(model)
    return weights(model)


class OnlyTables(nn.Module):
    """A model without a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = Tables([Column(name="code", dtype="int32", cardinality=4)], 2)

    def loss(self, batch: Batch) -> Tensor:
        return (self.tables(batch)["code"].sum(1) - batch.targets["y"]).square()


class OnlyDense(nn.Module):
    """A model without a table."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def loss(self, batch: Batch) -> Tensor:
        x = batch.features["x"]
        assert isinstance(x, Tensor)
        return (self.layer(x.unsqueeze(1)).squeeze(1) - batch.targets["y"]).square()


def train_only(kind: type[nn.Module]) -> dict[str, Tensor]:
    """Weights after an epoch, where each process began with other weights: rank 0's count."""
    torch.manual_seed(Runtime.peek()[0])
    model = kind()
    Trainer(CONSTANT).fit(model, fork_rows())
    assert_equal_replicas(model)
    return weights(model)


def rates(data: Path, held_out: Path) -> dict[str, list[list[float]]]:
    """The learning rates of all steps, by rank: with StepLR(10) of torch's, and on plateaus that only rank 0 sees."""
    found = {}
    for schedule, changes in (("step", {"decay_every": 10, "epochs": 3}), ("plateau", {"decay_every": 1, "epochs": 4})):
        seen = Seen()
        chosen = config(schedule=schedule, monitor="auc", **changes)
        rows = loader(data, 32 if schedule == "step" else 320)
        model = net()
        Trainer(chosen, callbacks=[seen]).fit(model, rows, Loader(held_out, batch_size=4), metrics=OneSided())
        assert_equal_replicas(model)  # all went back to the best epoch
        found[schedule] = of_all(seen.rates)
    return found


def half(data: Path) -> float:
    """The loss of an epoch in float16, whose first steps overflow on the process that has the steep rows alone."""
    rows = [Batch.of({"x": torch.tensor([1.0, 1.0, 1.0, 300.0])}, {"y": torch.zeros(4)})] * 12
    torch.manual_seed(0)
    model = OnlyDense()
    Trainer(config(optimizer="sgd", learning_rate=1e-6, precision="float16")).fit(model, Shared(rows))
    assert_equal_replicas(model)
    tables = net()
    result = Trainer(config(precision="float16")).fit(tables, loader(data))
    assert_equal_replicas(tables)
    return float(result.metrics["loss"])


def few_rows() -> list[float]:
    """The losses of 12 steps of Adam on rows of six kinds, in which most units of the first layer are on in all."""
    random = torch.Generator().manual_seed(0)
    kinds, seen = 0.3 + 0.05 * torch.randn(6, 8, generator=random), Seen()
    y = torch.arange(120) % 6 % 2
    torch.manual_seed(0)
    model = Supervised(nn.Sequential(MLP(8, (64, 64), 1), nn.Flatten(0)), nn.BCEWithLogitsLoss(reduction="none"))
    rows = MapLoader(TensorDataset(kinds[torch.arange(120) % 6], y.float()), batch_size=32, shuffle=True)
    Trainer(config(epochs=3, learning_rate=0.01), callbacks=[seen]).fit(model, rows)
    assert_equal_replicas(model)
    return seen.losses


class TwoNames(nn.Module):
    """A table that stands in the model twice, a layer of two names, and a buffer that follows a process's own rows."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = Tables([Column(name="user", dtype="int32", cardinality=USERS)], 4)
        self.again = self.tables
        self.layer = nn.Linear(4, 1)
        self.same = self.layer
        self.register_buffer("taken", torch.zeros(()))

    def loss(self, batch: Batch) -> Tensor:
        if self.training:
            self.taken += batch.rows
        return (self._side(batch, self.tables, self.layer) - self._side(batch, self.again, self.same) / 2).square()

    def _side(self, batch: Batch, tables: Tables, layer: nn.Linear) -> Tensor:
        logits: Tensor = layer(tables(batch)["user"]).squeeze(1)
        return logits - batch.targets["liked"]


def train_two_names(data: Path, held_out: Path, runtime: Runtime) -> dict[str, Tensor]:
    """Weights after a run that was cut off after step 7 and went on elsewhere, and that was then opened once more."""
    with contextlib.ExitStack() as stack:
        made = runtime.on_main(lambda: stack.enter_context(tempfile.TemporaryDirectory()))
        for placement, stop in (("row", 7), ("replicated", None), ("table", None)):
            torch.manual_seed(2)
            model = TwoNames()

            def cut_off(step: int, loss: float, stop: int | None = stop) -> None:
                if step == stop:
                    raise CutOff

            chosen = replace(CONSTANT, snapshot_steps=5, table_placement=placement)
            trainer = Trainer(chosen, Path(made) / "run", runtime, [Each(cut_off)])
            with contextlib.suppress(CutOff):
                trainer.fit(model, loader(data), loader(held_out), resume="auto")
                assert_equal_replicas(model)
        runtime.barrier()
    return {name: x for name, x in weights(model).items() if name != "taken"}


def agreeing(files: Path, data: Path, held_out: Path) -> dict[str, Any]:
    """All that comes to the same on any number of processes."""
    torch.set_num_threads(1)
    with Runtime.start() as runtime:
        return {
            "uneven_files": uneven_files(files),
            "train_on_uneven_files": train_on_uneven_files(files),
            "order": [walk(data, runtime, epoch) for epoch in (0, 1, 2, 0)],
            "judged": judged(),
            **{f"fork_{parts}": train_fork(parts) for parts in (1, 3)},
            "only_tables": train_only(OnlyTables),
            "only_dense": train_only(OnlyDense),
            "rates": rates(data, held_out),
            "half": half(data),
            "few_rows": few_rows(),
            "two_names": train_two_names(data, held_out, runtime),
        }
