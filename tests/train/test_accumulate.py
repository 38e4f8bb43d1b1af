"""A step in parts is the step in one, whose gradient is torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from falconet.batch import Batch
from falconet.nn.embedding import Tables
from falconet.schema import Column
from falconet.train.trainer import Trainer
from train.workers import Rows, Wide, config, of, wide_batch

STEPS = 3


class Smooth(nn.Module):
    """Codes through a table and a number, with nothing that looks at several rows at once."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = Tables([Column(name="code", dtype="int32", cardinality=6)], 3)
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 1)

    def loss(self, batch: Batch) -> Tensor:
        x = batch.features["x"]
        assert isinstance(x, Tensor)
        inputs = torch.cat([x.unsqueeze(1), self.tables(batch)["code"]], dim=1)
        return (self.last(torch.tanh(self.first(inputs))).squeeze(1) - batch.targets["y"]).square()


def reference(model: nn.Module, batch: Batch, parts: list[slice], clip: float | None) -> None:
    """Steps of plain gradient descent by torch, the batch cut in given parts."""
    weights = torch.ones(batch.rows) if batch.weights is None else batch.weights
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for rows in parts:
            part = of(batch[rows], batch.rows)
            ((model.loss(part) * weights[rows]).sum() / weights.sum()).backward()  # type: ignore[operator]
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()


def assert_close(found: nn.Module, wanted: nn.Module) -> None:
    for name, x in wanted.state_dict().items():
        assert torch.allclose(found.state_dict()[name], x, atol=1e-6), name


def made(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind()


def settings(parts: int, clip: float | None = None) -> dict[str, object]:
    rates = {"learning_rate": 0.1, "table_learning_rate": 0.1}
    return {**rates, "optimizer": "sgd", "table_optimizer": "sgd", "accumulate": parts, "clip_norm": clip}


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("parts", [1, 2, 3, 7])  # of four rows: even ones, uneven ones, some without a row
def test_parts_add_up_to_the_gradient_of_the_whole_batch(parts: int, weighted: bool, clip: float | None) -> None:
    batch = wide_batch(slice(0, 4))
    if not weighted:
        batch = Batch(batch.features, batch.targets, batch.rows, batch.global_rows)
    ours, theirs = made(Smooth), made(Smooth)
    result = Trainer(config(**settings(parts, clip))).fit(ours, Rows([batch] * STEPS))
    reference(theirs, batch, [slice(0, 4)], clip)
    assert_close(ours, theirs)
    whole = Trainer(config(**settings(1, clip))).fit(made(Smooth), Rows([batch] * STEPS))
    assert result.metrics["loss"] == pytest.approx(whole.metrics["loss"], rel=1e-6)


def test_batchnorm_takes_the_statistics_of_each_part() -> None:
    batch = wide_batch(slice(0, 4))
    ours, theirs = made(Wide), made(Wide)
    Trainer(config(**settings(2))).fit(ours, Rows([batch] * STEPS))
    reference(theirs, batch, [slice(0, 2), slice(2, 4)], None)
    assert_close(ours, theirs)
    assert ours.norm.num_batches_tracked == 2 * STEPS  # type: ignore[union-attr]
