"""From look-ups with repeated ids to moved rows, beside torch's own optimizers of sparse and dense gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from falconet.batch import Batch, Ragged
from falconet.errors import ConfigError
from falconet.nn.embedding import Tables
from falconet.schema import Column
from falconet.train.rowwise import Rule
from falconet.train.runtime import Runtime
from falconet.train.tables import TableOptimizer

USERS, WIDTH = 6, 4
IDS = [[1, 1], [2, 5, 2, 2], [], [3, 4, 1]]  # every row but padding, some more than once
USER = Column(name="user", dtype="int32", list="ragged", cardinality=USERS)
WISHED = torch.randn(len(IDS), WIDTH, generator=torch.Generator().manual_seed(5))


def tables() -> nn.Module:
    torch.manual_seed(0)
    return nn.ModuleList([Tables([USER], WIDTH, "sum", init=1.0)])


def rows_of(model: nn.Module) -> Tensor:
    (table,) = model.parameters()
    return table


def loss_of(pooled: Tensor) -> Tensor:
    return (pooled - WISHED).square().sum()


def moved(rule: Rule, steps: int = 8, **settings: object) -> Tensor:
    """A table after some steps by one of our rules."""
    model = tables()
    batch = Batch.of({"user": Ragged.of(IDS)})
    optimizer = TableOptimizer(model, rule, Runtime(), **settings)  # type: ignore[arg-type]
    with optimizer.hold():
        for step in range(steps):
            with optimizer.collect() as read:
                loss_of(model[0](batch)["user"]).backward()  # type: ignore[index]
            optimizer.step(optimizer.gather(read), 0.05, step)
    return rows_of(model).detach()


def torch_moved(make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], sparse: bool, steps: int = 8) -> Tensor:
    bag = nn.EmbeddingBag(USERS, WIDTH, mode="sum", sparse=sparse, padding_idx=0)
    with torch.no_grad():
        bag.weight.copy_(rows_of(tables()))
    flat = torch.tensor([i for ids in IDS for i in ids])
    offsets = torch.tensor([0, *(len(ids) for ids in IDS)]).cumsum(0)[:-1]
    optimizer = make([bag.weight])
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(bag(flat, offsets)).backward()
        optimizer.step()
    return bag.weight.detach()


def test_lazy_adam_is_torchs_sparse_adam_where_every_row_is_touched() -> None:
    wanted = torch_moved(lambda weights: torch.optim.SparseAdam(weights, lr=0.05), sparse=True)
    assert torch.allclose(moved("lazy_adam"), wanted, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loss_of_the_whole_table_teaches_rows_that_the_batch_does_not_hold(dtype: torch.dtype) -> None:
    model = tables()
    before = rows_of(model).detach().clone()
    optimizer = TableOptimizer(model, "sgd", Runtime(), dtype=dtype)
    with optimizer.hold():
        with optimizer.collect() as read:
            pooled = model[0](Batch.of({"user": Ragged.of([[1, 1]])}))["user"]  # type: ignore[index]
            (pooled.sum() + model[0].weight("user").square().sum()).backward()  # type: ignore[index, operator]
        optimizer.step(optimizer.gather(read), 0.25, 0)
    after = before / 2
    after[1] -= 0.5  # twice in the list
    after[0] = 0
    assert torch.allclose(rows_of(model).detach(), after, atol=1e-6 if dtype == torch.float32 else 0.02)


def test_sgd_is_torchs() -> None:
    wanted = torch_moved(lambda weights: torch.optim.SGD(weights, lr=0.05), sparse=False)
    assert torch.allclose(moved("sgd"), wanted, atol=1e-5)


def test_rowwise_adagrad_of_width_one_is_torchs_adagrad() -> None:
    made = Tables([Column(name="user", dtype="int32", cardinality=USERS)], 1, init=1.0)
    theirs = nn.Embedding(USERS, 1)
    with torch.no_grad():
        theirs.weight.copy_(made.weight("user"))
    ids, wished = torch.tensor([1, 5, 1, 2, 5, 1]), torch.randn(6, 1)
    ours = TableOptimizer(made, "rowwise_adagrad", Runtime())
    adagrad = torch.optim.Adagrad(theirs.parameters(), lr=0.1, eps=1e-8)
    with ours.hold():
        for step in range(5):
            with ours.collect() as read:
                (made.lookup("user", ids) - wished).square().sum().backward()
            ours.step(ours.gather(read), 0.1, step)
            adagrad.zero_grad()
            (theirs(ids) - wished).square().sum().backward()
            adagrad.step()
    assert torch.allclose(made.weight("user"), theirs.weight, atol=1e-6)


@pytest.mark.parametrize("rule", ["rowwise_rmsprop", "lazy_adam", "sgd"])
def test_bfloat16_rows_follow_those_in_float32(rule: Rule) -> None:
    found = moved(rule, dtype=torch.bfloat16)
    assert found.dtype == torch.float32
    assert torch.equal(found.bfloat16().float(), found)
    # Each step is off by less than the gap between neighbours, which near 2 is 2^-7.
    assert 0 < float((found - moved(rule)).abs().max()) < 8 * 2**-7
    assert torch.equal(moved(rule, dtype=torch.bfloat16), found)
    assert not torch.equal(moved(rule, dtype=torch.bfloat16, seed=1), found)


def test_after_an_error_tables_are_parameters_again() -> None:
    model = tables()
    optimizer = TableOptimizer(model, "sgd", Runtime())
    before = rows_of(model).detach().clone()
    with pytest.raises(ZeroDivisionError), optimizer.hold():
        assert not rows_of(model).requires_grad
        raise ZeroDivisionError
    assert rows_of(model).requires_grad
    assert torch.equal(rows_of(model), before)


def test_tables_that_cannot_be_taken_are_parameters_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> dict[str, torch.Tensor]:
        raise MemoryError

    model = tables()
    monkeypatch.setattr("falconet.train.rowwise.fresh_state", full)
    with pytest.raises(MemoryError), TableOptimizer(model, "sgd", Runtime()).hold():
        pass
    assert rows_of(model).requires_grad


def test_an_unknown_placement_is_refused() -> None:
    from falconet.train.settings import TrainConfig

    with pytest.raises(ConfigError, match=r"table_placement.*'replicated', 'table', 'row', 'host'.*not 'rows'"):
        TrainConfig(table_placement="rows")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"table_placement.*one of 'auto'.*'rows'"):
        TrainConfig(table_placement={"user": "rows"})  # type: ignore[dict-item]
