"""What the tests of embedding tables run in other processes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from falconet.batch import Batch
from falconet.loader.loader import Loader
from falconet.nn.collective import from_all
from falconet.nn.embedding import Tables
from falconet.nn.loss import bce
from falconet.schema import Tag
from falconet.train import exchange as exchanges
from falconet.train.board import Board, Network, Way
from falconet.train.callbacks import Callback
from falconet.train.exchange import Exchange, Layout
from falconet.train.gradients import RowGradient
from falconet.train.runtime import Runtime
from falconet.train.trainer import Trainer
from train.workers import SCHEMA, CutOff, Rows, Wide, assert_equal_replicas, config, net, train, weights, wide_batch

PLACEMENTS = ("replicated", "table", "row", "apart")  # apart: replicated, and no memory in common
SGD = {"optimizer": "sgd", "learning_rate": 0.01, "table_optimizer": "sgd", "table_learning_rate": 0.05}
RULES: dict[str, dict[str, Any]] = {"sgd": SGD, "adam": {}, "bfloat16": {"table_dtype": "bfloat16"}}
CLIPPED = {"clip_norm": 0.05, "accumulate": 3, "table_weight_decay": 0.1}
WAYS = ("board", "network")
LAYOUTS = {"row": None, "table": 1}  # owners
ROWS, WIDTH = 11, 3

Trained = tuple[dict[str, Tensor], list[float], float]


class Flat(nn.Module):
    """Embeddings and a linear layer: without BatchNorm it does not matter in which parts a batch goes through."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = Tables([c for c in SCHEMA if Tag.CATEGORICAL in c.tags], 6)
        self.last = nn.Linear(self.tables.width, 1)

    def loss(self, batch: Batch) -> Tensor:
        return bce(self.tables.project(batch, self.last).squeeze(1), batch.targets["liked"])


def train_flat(data: Path, settings: dict[str, Any]) -> dict[str, Tensor]:
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = Flat()
    Trainer(config(**settings)).fit(model, Loader(data, batch_size=64, shuffle=True, seed=7))
    assert_equal_replicas(model)
    return weights(model)


def touched(rank: int) -> RowGradient:
    """What a process touches: rank 1 nothing, all others rows 0 and 7, and one of their own."""
    ids = torch.tensor([] if rank == 1 else sorted({0, 7, 2 + rank}), dtype=torch.int64)
    values = torch.randn(len(ids), WIDTH, generator=torch.Generator().manual_seed(rank))
    return RowGradient(ROWS, ids, values)


def dense(gradient: RowGradient, places: Tensor | None = None) -> Tensor:
    whole = torch.zeros(ROWS, WIDTH)
    whole[gradient.ids if places is None else places] = gradient.values
    return whole


def ways(runtime: Runtime) -> dict[str, Way]:
    board = Board.of(runtime)
    assert board is not None
    return {"board": board, "network": Network(runtime)}


def exchange_all(runtime: Runtime, way: Way) -> dict[str, Any]:
    """What every process has after each kind of exchange, by rank; and bytes that the first one sent."""
    exchange, mine = Exchange(runtime, way=way), touched(runtime.rank)
    empty = RowGradient(5, torch.empty(0, dtype=torch.int64), torch.empty(0, 2))
    summed = {name: g.formed() for name, g in exchange.add_up({"a": mine, "empty": empty, "b": mine}).items()}
    assert torch.equal(summed["a"].values, summed["b"].values)
    assert len(summed["empty"].ids) == 0
    found: dict[str, Any] = {"sent": exchange.sent, "add_up": from_all(dense(summed["a"]))}
    table = torch.arange(ROWS * WIDTH, dtype=torch.float32).view(ROWS, WIDTH)
    for kind, owner in LAYOUTS.items():
        layout = Layout(ROWS, runtime.world, owner)
        route = exchange.route(layout, mine.ids)
        delivered = exchange.deliver(layout, route, mine.values).formed()
        found[kind] = from_all(dense(delivered, layout.ids(delivered.ids, runtime.rank)))
        for dtype in (torch.float32, torch.bfloat16):
            held = table[layout.of(runtime.rank)].to(dtype)
            rows = torch.empty(len(mine.ids), WIDTH, dtype=dtype)
            exchange.fetch(route, held, rows)
            assert torch.equal(rows, table[mine.ids].to(dtype)), (kind, runtime.rank)
    return found


@contextmanager
def placed(kind: str) -> Iterator[str]:
    """`table_placement` for a run whose tables lie as one of PLACEMENTS says."""
    if kind != "apart":
        yield kind
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Board, "of", lambda runtime: None)
        yield "replicated"


def in_common(runtime: Runtime, board: Board) -> dict[str, Tensor]:
    """What each process has of a tensor in common, into which the second one wrote; and of a table after training,
    which the second one then filled with zeros."""
    shared = board.common(torch.full((3, 2), runtime.rank + 1.0))
    if runtime.rank == 1:
        shared[1] = 5
    runtime.barrier()
    model = Wide()
    Trainer(config(**SGD)).fit(model, Rows([[wide_batch(slice(0, 4))] * runtime.world]))
    table = model.tables.weight("code").data
    if runtime.rank == 1:
        table.zero_()
    runtime.barrier()
    return {"shared": from_all(shared), "own": from_all(table)}


def share_out(runtime: Runtime, way: Way) -> dict[str, Tensor]:
    """The sums of gradients through a layer, of which only the first process has one, and of plain ones; by rank."""
    exchange, mine, layer = Exchange(runtime, way=way), touched(runtime.rank), torch.eye(WIDTH)
    through = mine if runtime.rank else RowGradient(ROWS, mine.ids, mine.values[:, :2], layer[:2])
    found = {"all through": RowGradient(ROWS, mine.ids, mine.values[:, :2], layer[:2]), "one": through, "plain": mine}
    return {name: from_all(dense(exchange.share_out({"a": g})["a"].formed())) for name, g in found.items()}


def messages(runtime: Runtime, way: Way) -> list[tuple[list[list[int]], list[list[int]]]]:
    """What every process has of messages of several lengths, some longer than the room at first: numbers and bytes."""
    found = []
    for length in (8, 0, 24, 3 << 20, 16):
        length *= runtime.rank  # the first has nothing to say
        message = way.room(length)
        message.fill_(length % 251)
        numbers, gathered = way.gather(message, [length, runtime.rank])
        found.append((numbers, [x.unique(return_counts=True) for x in gathered]))
    return [(n, [[*values.tolist(), *times.tolist()] for values, times in some]) for n, some in found]


def train_wide(placement: str) -> dict[str, Tensor]:
    """Three steps in which the last process has one row, whose only code is padding, and those between have none."""
    torch.manual_seed(0)
    world = Runtime.peek()[1]
    shares = [slice(0, 3), *[slice(3, 3)] * (world - 2), slice(3, 4)] if world > 1 else [slice(0, 4)]
    model = Wide()
    step = [wide_batch(share) for share in shares]
    Trainer(config(**{**SGD, "table_placement": placement})).fit(model, Rows([step] * 3))
    return weights(model)


def resume_settings(placement: str) -> dict[str, Any]:
    return {
        "snapshot_steps": 5,
        "table_placement": placement,
        "table_dtype": "bfloat16",
        "table_optimizer": "lazy_adam",
    }


class Stop(Callback):
    """Breaks a run off after a step."""

    def __init__(self, after: int | None) -> None:
        self.after = after

    def step(self, step: int, figures: Mapping[str, float]) -> None:
        if step == self.after:
            raise CutOff


def train_until(data: Path, folder: Path | None, placement: str, stop: int | None = None) -> dict[str, Tensor]:
    """Weights after an epoch of ten steps, or none after a run that is broken off after step `stop`."""
    model = net(dropout=0.3)
    loader = Loader(data, batch_size=32, shuffle=True, seed=7)
    trainer = Trainer(config(**resume_settings(placement)), folder, callbacks=[Stop(stop)])
    try:
        trainer.fit(model, loader, resume="never" if folder is None else "auto")
    except CutOff:
        return {}
    assert_equal_replicas(model)
    return weights(model)


def copied(runtime: Runtime, source: Path, name: str) -> Path:
    """A copy of a run's folder, beside it."""
    target = source.with_name(name)
    with runtime.main_first():
        if runtime.is_main:
            shutil.copytree(source, target)
    return target


def on_two(rows: Path, data: Path, folder: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    exchanges._RUN = 2  # so that each process has rows of small tables to move
    with Runtime.start() as runtime:
        found: dict[str, Any] = {}
        for name, way in ways(runtime).items():
            found["exchange", name] = exchange_all(runtime, way)
            found["messages", name] = messages(runtime, way)
            found["share_out", name] = share_out(runtime, way)
            if isinstance(way, Board):
                found["common"] = in_common(runtime, way)
        for kind in PLACEMENTS:
            with placed(kind) as placement:
                for name, rule in RULES.items():
                    found[name, kind] = train(rows, 200, {**rule, "table_placement": placement})
                settings = {"table_learning_rate": 0.001, "table_placement": placement}
                found["first_step", kind] = train(rows, 4000, settings)[0]
                found["clipped", kind] = train_flat(data, {**CLIPPED, "table_placement": placement})
                found["wide", kind] = train_wide(placement)
        for placement in ("replicated", "row"):
            train_until(data, folder / placement, placement, stop=7)
        found["whole"] = train_until(data, None, "row")
        found["resumed"] = train_until(data, copied(runtime, folder / "row", "two"), "row")
        found["moved"] = train_until(data, copied(runtime, folder / "row", "moved"), "table")
    return found


def on_four(rows: Path, data: Path, folder: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    exchanges._RUN = 2
    with Runtime.start() as runtime:
        found: dict[str, Any] = {("exchange", name): exchange_all(runtime, way) for name, way in ways(runtime).items()}
        for kind in PLACEMENTS:
            with placed(kind) as placement:
                found["adam", kind] = train(rows, 200, {"table_placement": placement})
                found["wide", kind] = train_wide(placement)
        found["sgd", "row"] = train(rows, 200, {**SGD, "table_placement": "row"})
        found["resumed"] = train_until(data, copied(runtime, folder / "row", "four"), "row")
    return found
