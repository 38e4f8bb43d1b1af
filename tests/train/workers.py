"""What the tests of training share: small data, a small model, and functions that other processes can import."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

from falconet.batch import Batch
from falconet.errors import FalconetError
from falconet.loader.loader import Loader
from falconet.metrics.binary import BinaryMetrics
from falconet.nn.batchnorm import BatchNorm
from falconet.nn.collective import counts, gather
from falconet.nn.embedding import Tables
from falconet.nn.loss import bce, sampled_softmax
from falconet.schema import FOOTER_KEY, Column, Schema, Tag
from falconet.train.callbacks import Callback
from falconet.train.runtime import Runtime
from falconet.train.settings import TrainConfig
from falconet.train.trainer import Trainer

USERS, ITEMS, GENRES = 40, 30, 8
SCHEMA = Schema(
    (
        Column(name="user", dtype="int32", tags=frozenset({Tag.USER, Tag.ID, Tag.CATEGORICAL}), cardinality=USERS),
        Column(name="item", dtype="int32", tags=frozenset({Tag.ITEM, Tag.ID, Tag.CATEGORICAL}), cardinality=ITEMS),
        Column(
            name="genres", dtype="int32", list="ragged", tags=frozenset({Tag.ITEM, Tag.CATEGORICAL}), cardinality=GENRES
        ),
        Column(name="age", dtype="float32", tags=frozenset({Tag.USER, Tag.CONTINUOUS})),
        Column(name="liked", dtype="float32", tags=frozenset({Tag.TARGET, Tag.BINARY})),
    )
)


def write_rows(folder: Path, sizes: tuple[int, ...], seed: int = 0) -> Path:
    """Files of so many rows each, whose target follows hidden tastes."""
    random = np.random.default_rng(seed)
    taste, kind = random.normal(size=USERS), random.normal(size=ITEMS)
    folder.mkdir(parents=True, exist_ok=True)
    for i, n in enumerate(sizes):
        user, item = random.integers(1, USERS, n), random.integers(1, ITEMS, n)
        likes = taste[user] * kind[item] + random.normal(size=n) * 0.3 > 0
        genres = [random.integers(1, GENRES, random.integers(0, 4)).tolist() for _ in range(n)]
        table = pa.table(
            {
                "user": pa.array(user, pa.int32()),
                "item": pa.array(item, pa.int32()),
                "genres": pa.array(genres, pa.list_(pa.int32())),
                "age": pa.array(random.normal(size=n), pa.float32()),
                "liked": pa.array(likes.astype(np.float32), pa.float32()),
            }
        ).replace_schema_metadata({FOOTER_KEY: SCHEMA.to_json()})
        pq.write_table(table, folder / f"part_{i}.parquet")
    return folder


class Net(nn.Module):
    """Embeddings, an MLP with torch's own BatchNorm, and a table that no batch reads."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.tables = Tables([c for c in SCHEMA if Tag.CATEGORICAL in c.tags], 6)
        self.unused = Tables([Column(name="nobody", dtype="int32", cardinality=5)], 3)
        self.first = nn.Linear(self.tables.width + 1, 16)
        nn.init.zeros_(self.first.bias)  # see nn.MLP: no unit is on in every row
        self.rest = nn.Sequential(nn.ReLU(), nn.BatchNorm1d(16), nn.Dropout(dropout), nn.Linear(16, 1))

    def forward(self, batch: Batch) -> Tensor:
        age = batch.features["age"]
        assert isinstance(age, Tensor)
        logits: Tensor = self.rest(self.tables.project(batch, self.first, extra=age.unsqueeze(1))).squeeze(1)
        return logits

    def loss(self, batch: Batch) -> Tensor:
        return bce(self(batch), batch.targets["liked"])


class Line(nn.Module):
    """Half the squared error of a single weight's prediction; its gradient is easy to write down."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def loss(self, batch: Batch) -> Tensor:
        x = batch.features["x"]
        assert isinstance(x, Tensor)
        return (self.weight * x - batch.targets["y"]).square() / 2


def line_batch(weighted: bool = False) -> Batch:
    x, y = torch.tensor([1.0, 2.0, 3.0]), torch.zeros(3)
    return Batch.of({"x": x}, {"y": y}, torch.tensor([1.0, 0.0, 3.0]) if weighted else None)


SGD = TrainConfig(optimizer="sgd", learning_rate=0.1, precision="float32")


class Each(Callback):
    """Calls a function with the number of each step and its loss."""

    def __init__(self, act: Callable[[int, float], object]) -> None:
        self._act = act

    def step(self, step: int, figures: Mapping[str, float]) -> None:
        self._act(step, figures["loss"])


class Rows:
    """A loader of given steps; each is a batch for every rank, or one batch that only one process takes."""

    def __init__(self, steps: list[Batch] | list[list[Batch]]) -> None:
        self.steps = [step if isinstance(step, list) else [step] for step in steps]
        self.rows = sum(batch.rows for step in self.steps for batch in step)

    def __len__(self) -> int:
        return len(self.steps)

    def batches(self, epoch: int = 0, start: int = 0, rank: int = 0, world: int = 1) -> Generator[Batch]:
        for step in self.steps[start:]:
            assert len(step) == world
            yield step[rank]

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}


def net(seed: int = 1, dropout: float = 0.0) -> Net:
    torch.manual_seed(seed)
    return Net(dropout)


def config(**changes: Any) -> TrainConfig:
    return TrainConfig(**{"learning_rate": 0.001, "precision": "float32", **changes})


def loader(data: Path, batch_size: int = 32) -> Loader:
    return Loader(data, batch_size=batch_size, shuffle=True, seed=7)


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: x.clone() for name, x in model.state_dict().items()}


def train(data: Path, batch_size: int, settings: Mapping[str, Any]) -> tuple[dict[str, Tensor], list[float], float]:
    """Weights, losses of the steps, loss of the last epoch; the replicas are equal or this fails."""
    torch.set_num_threads(1)
    losses: list[float] = []
    model = net()
    each = Each(lambda step, loss: losses.append(loss))
    result = Trainer(config(**settings), callbacks=[each]).fit(model, loader(data, batch_size))
    assert_equal_replicas(model)
    return weights(model), losses, float(result.metrics["loss"])


def first_step(data: Path) -> dict[str, Tensor]:
    """Weights after one step over all rows, all rates 0.001: normalised steps carry a gradient's relative error."""
    return train(data, 4000, {"table_learning_rate": 0.001})[0]


def assert_equal_replicas(model: nn.Module) -> None:
    with Runtime.start() as runtime:
        for name, x in model.state_dict().items():
            bits = x.double()
            total = runtime.sums(bits)
            assert torch.equal(total, bits * runtime.world), f"rank {runtime.rank}: {name} differs"


def of(batch: Batch, global_rows: int) -> Batch:
    return Batch(batch.features, batch.targets, batch.rows, global_rows, batch.weights)


class Wide(nn.Module):
    """A BatchNorm between two layers, and codes through a table: what uneven shares of a batch could break."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = Tables([Column(name="code", dtype="int32", cardinality=6)], 3)
        self.first = nn.Linear(4, 5)
        self.norm = nn.BatchNorm1d(5)
        self.last = nn.Linear(5, 1)

    def forward(self, batch: Batch) -> Tensor:
        x = batch.features["x"]
        assert isinstance(x, Tensor)
        inputs = torch.cat([x.unsqueeze(1), self.tables(batch)["code"]], dim=1)
        logits: Tensor = self.last(torch.tanh(self.norm(self.first(inputs)))).squeeze(1)
        return logits

    def loss(self, batch: Batch) -> Tensor:
        whole = self.tables.weight("code").square().sum()  # a loss may read a table as it is
        return (self(batch) - batch.targets["y"]).square() + 0.1 * whole


def wide_batch(rows: slice) -> Batch:
    """Some of four rows; the codes of the last one are padding."""
    features = {"x": torch.tensor([1.0, -2.0, 0.5, 3.0]), "code": torch.tensor([1, 4, 1, 0])}
    whole = Batch.of(features, {"y": torch.tensor([1.0, 0.0, 2.0, -1.0])}, torch.tensor([1.0, 2.0, 1.0, 0.5]))
    return of(whole[rows], 4)


SHARES = {"three_and_one": (slice(0, 3), slice(3, 4)), "four_and_none": (slice(0, 4), slice(4, 4))}


def train_wide(share: str | None) -> tuple[dict[str, Tensor], float]:
    """Weights and loss after three steps of plain gradient descent, on shares of each batch or on the whole."""
    torch.manual_seed(0)
    model = Wide()
    step = [wide_batch(slice(0, 4))] if share is None else [wide_batch(rows) for rows in SHARES[share]]
    settings = config(optimizer="sgd", learning_rate=0.1, table_optimizer="sgd", table_learning_rate=0.1)
    result = Trainer(settings).fit(model, Rows([step] * 3))
    return weights(model), float(result.metrics["loss"])


class Worse(BinaryMetrics):
    """A metric that is worse each time."""

    calls = 0

    def finish(self, state: dict[str, Tensor]) -> dict[str, float]:
        self.calls += 1
        return {"auc": 1 / self.calls}


class OneSided(BinaryMetrics):
    """A metric that falls on rank 0 and rises elsewhere."""

    def __init__(self) -> None:
        self.calls = 0

    def finish(self, state: dict[str, Tensor]) -> dict[str, float]:
        self.calls += 1
        return {"auc": self.calls * (-1.0 if Runtime.peek()[0] == 0 else 1.0)}


def softmax_gradients(codes: Tensor, users: Tensor, items: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Losses of this process's rows and the gradients of the global sum."""
    rank, world = Runtime.peek()
    rows = slice(rank * len(codes) // world, (rank + 1) * len(codes) // world)
    user, item = users[rows].clone().requires_grad_(), items[rows].clone().requires_grad_()
    losses = sampled_softmax(user, item, codes[rows], torch.arange(5.0)[rows])
    losses.sum().backward()
    assert user.grad is not None and item.grad is not None
    return losses.detach(), user.grad, item.grad


def softmax_inputs() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.tensor([3, 4, 3, 5, 6]), torch.randn(5, 2), torch.randn(5, 2)


NARROW_ROWS = 3000


def normalised(rows: slice, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Some of 3,000 rows through a BatchNorm over all processes, far from zero, and their gradient, in one type."""
    random = torch.Generator().manual_seed(2)
    x, upstream = (torch.randn(2, NARROW_ROWS, 4, generator=random) + torch.tensor([[[4.0]], [[0.5]]])).bfloat16()
    norm = BatchNorm(4)
    torch.nn.init.constant_(norm.weight, 1.5)
    x = x[rows].to(dtype).requires_grad_()
    y = norm(x)
    y.backward(upstream[rows].to(dtype))
    assert x.grad is not None
    assert y.dtype == x.grad.dtype == dtype
    return y.detach(), x.grad


def everything(rows: Path, data: Path, held_out: Path, folder: Path) -> dict[str, Any]:
    """All that the tests of two processes look at, in one group, because starting one takes seconds."""
    torch.set_num_threads(1)
    with Runtime.start() as runtime:
        found: dict[str, Any] = {"train": train(rows, 200, {}), "first_step": first_step(rows)}
        for share in SHARES:
            found[share] = train_wide(share)
        valid = Loader(held_out, batch_size=4)
        patient = config(epochs=9, patience=1, monitor="auc")
        found["patience"] = Trainer(patient).fit(net(), loader(data), valid, metrics=OneSided()).epochs
        found["epochs_of_all"] = runtime.sums(torch.tensor([found["patience"]])).tolist()
        judged = Trainer(config(epochs=1)).fit(net(), loader(data), valid, metrics=BinaryMetrics())
        found["valid"] = judged.metrics["valid"]
        found["softmax"] = softmax_gradients(*softmax_inputs())
        found["loose"] = train_loose(data)
        found["bfloat16"] = exchanged_in_bfloat16(data)
        mine = slice(0, 2500) if runtime.is_main else slice(2500, NARROW_ROWS)
        found["narrow"] = normalised(mine, torch.bfloat16)
        cut_off(data, folder, 7)
        with runtime.main_first():
            there = float((folder / "download").exists())
            (folder / "download").touch()
        found["found_it_there"] = runtime.sums(torch.tensor([there])).tolist()
        (folder / "download").unlink(missing_ok=True)
        try:
            runtime.on_main(lambda: Loader(folder / "nothing", batch_size=1).rows)
        except FalconetError as error:
            found["mistake"] = str(error)
    return found


def exchanged_in_bfloat16(data: Path) -> float:
    model = net()
    result = Trainer(config(exchange_dtype="bfloat16")).fit(model, loader(data))
    assert_equal_replicas(model)
    return float(result.metrics["loss"])


def walk(data: Path, runtime: Runtime, epoch: int) -> list[float]:
    """The ages of all processes' rows, in the order of ranks and steps, and how many steps this one took."""
    ages = [batch.features["age"] for batch in loader(data).batches(epoch, 0, runtime.rank, runtime.world)]
    mine = torch.cat([x for x in ages if isinstance(x, Tensor)])
    return gather(mine, counts(len(mine), mine.device)).tolist()


class CutOff(Exception):  # noqa: N818
    """The run is cut off."""


class Loose(nn.Module):
    """A plain module: an Embedding of its own, BatchNorm, and a layer that its loss does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, 4)
        self.last = nn.Linear(4, 1)
        self.norm = nn.BatchNorm1d(4)
        self.unused = nn.Linear(2, 2)

    def loss(self, batch: Batch) -> Tensor:
        users = batch.features["user"]
        assert isinstance(users, Tensor)
        logits: Tensor = self.last(self.norm(self.users(users.long()))).squeeze(1)
        return bce(logits, batch.targets["liked"])


def train_loose(data: Path) -> tuple[dict[str, Tensor], float]:
    """Weights and loss of an epoch."""
    torch.manual_seed(3)
    model = Loose()
    result = Trainer(config(optimizer="sgd")).fit(model, loader(data))
    assert_equal_replicas(model)
    return weights(model), float(result.metrics["loss"])


def cut_off(data: Path, folder: Path, step: int) -> None:
    """Train into a folder and stop after a step, without a word."""

    def on_step(now: int, loss: float) -> None:
        if now == step:
            raise CutOff

    with contextlib.suppress(CutOff):
        Trainer(config(snapshot_steps=5), folder, callbacks=[Each(on_step)]).fit(net(), loader(data), resume="auto")


def killed(data: Path, folder: Path, step: int, number: int) -> None:
    """Train into a folder and send this process a signal after a step."""
    torch.set_num_threads(1)  # bits are equal for one number of threads

    def on_step(now: int, loss: float) -> None:
        if now == step:
            os.kill(os.getpid(), number)

    trainer = Trainer(config(snapshot_steps=3), folder, callbacks=[Each(on_step)])
    trainer.fit(net(dropout=0.3), loader(data), resume="auto")


def fails_on_one() -> None:
    """Rank 1 fails; rank 0 waits for it."""
    with Runtime.start() as runtime:
        if runtime.rank == 1:
            raise ValueError("rank 1 has had enough")
        runtime.barrier()


def dies_beside_a_fork() -> None:
    """Rank 1 is gone without a word, and a process that it forked lives on for a while; rank 0 waits."""
    with Runtime.start() as runtime:
        if runtime.rank == 1:
            if os.fork() == 0:
                time.sleep(4)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        runtime.barrier()


def leaves_early() -> None:
    """Rank 1 is done; rank 0 waits for it."""
    with Runtime.start() as runtime:
        if runtime.rank == 0:
            runtime.barrier()


def dies_on_one(folder: Path) -> None:
    """Rank 1 is gone without a word; rank 0 notes its process id and waits."""
    with Runtime.start() as runtime:
        (folder / str(runtime.rank)).write_text(str(os.getpid()))
        runtime.barrier()
        if runtime.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)
