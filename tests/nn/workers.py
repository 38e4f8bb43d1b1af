"""What two processes do with a batch of eight rows, four each, and one process with all of them."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from falconet.batch import Batch
from falconet.models import TwoTower
from falconet.nn import BatchNorm, ItemLoss, ItemLossConfig
from falconet.nn.folded import normalised_linear
from falconet.testing.models import EXAMPLE, example_batch
from falconet.train.parallel import Objective, Parallel
from falconet.train.runtime import Runtime

ITEMS, DIM, FIRST = 30, 4, 3
CODES = torch.tensor([4, 9, 4, 12, 29, 9, 7, 4])
SETTINGS = {
    "all": ItemLossConfig(),
    "batch": ItemLossConfig(negatives="batch"),
    "uniform": ItemLossConfig(negatives="uniform", samples=6),
    "popularity": ItemLossConfig(negatives="popularity", samples=6, power=0.5),
    "mixed": ItemLossConfig(negatives="mixed", samples=6),
    "per row": ItemLossConfig(loss="gbce", negatives="uniform", samples=5, per_row=True),
    "queue": ItemLossConfig(negatives="batch", queue=5),
    "hard": ItemLossConfig(loss="bpr", negatives="batch", hard=2),
}


def item_losses() -> dict[str, dict[str, Tensor]]:
    """For every setting, losses of all rows after three steps, and the gradients of their sum over processes."""
    torch.set_num_threads(1)
    with Runtime.start() as runtime:
        share = slice(runtime.rank * 8 // runtime.world, (runtime.rank + 1) * 8 // runtime.world)
        return {name: one_item_loss(config, share, runtime) for name, config in SETTINGS.items()} | {
            "two_tower": two_tower(share, runtime)
        }


def one_item_loss(config: ItemLossConfig, share: slice, runtime: Runtime) -> dict[str, Tensor]:
    torch.manual_seed(5)
    table, users = torch.randn(ITEMS, DIM), torch.randn(8, DIM)
    counts_N = torch.arange(ITEMS).float()
    loss = ItemLoss(config, FIRST, DIM)
    torch.manual_seed(100 + runtime.rank)  # rank 0's random numbers decide
    for _ in range(3):
        items, user = table.clone().requires_grad_(), users[share].clone().requires_grad_()
        losses = loss(user, CODES[share], lambda codes, items=items: items[codes], counts_N)
        losses.sum().backward()
    assert items.grad is not None and user.grad is not None
    return {
        "losses": of_all(losses.detach(), share, runtime),
        "users": of_all(user.grad, share, runtime),
        "items": runtime.sums(items.grad.double()),
    }


def two_tower(share: slice, runtime: Runtime) -> dict[str, Tensor]:
    torch.manual_seed(6)
    model = TwoTower.from_schema(EXAMPLE, TwoTower.Config(dim=DIM, history_dropout=0.0)).train()
    whole = example_batch(rows=8)
    mine = Batch.of({name: x[share] for name, x in whole.features.items()})
    losses = model.loss(mine)
    losses.sum().backward()
    found = {name: runtime.sums(p.grad.double()) for name, p in model.named_parameters() if p.grad is not None}
    return found | {"losses": of_all(losses.detach(), share, runtime)}


def of_all(mine: Tensor, share: slice, runtime: Runtime) -> Tensor:
    """Every process's rows in their places."""
    whole = torch.zeros(8, *mine.shape[1:], dtype=torch.float64)
    whole[share] = mine.double()
    if runtime.world > 1:
        dist.all_reduce(whole)
    return whole


def folded() -> dict[str, Tensor]:
    """A BatchNorm and a linear layer as one product of 900 rows, of which the first process has 700 or all where there
    are two: what comes out, and the gradients of its sum over processes."""
    torch.set_num_threads(1)
    with Runtime.start() as runtime:
        return {f"{first}/{name}": x for first in (700, 900) for name, x in share_of_folded(first, runtime).items()}


def share_of_folded(first: int, runtime: Runtime) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(3)
    x, upstream = (torch.randn(2, 900, 16, generator=random) + 0.5).bfloat16()
    share = (slice(900) if runtime.world == 1 else slice(first), slice(first, 900))[runtime.rank]
    torch.manual_seed(4)
    norm, linear = BatchNorm(16), nn.Linear(16, 16)
    mine = x[share].requires_grad_()
    y = normalised_linear(mine, norm, linear, relu=True)
    y.backward(upstream[share])  # type: ignore[no-untyped-call]
    assert mine.grad is not None
    parameters = [*norm.named_parameters("norm"), *linear.named_parameters("linear")]
    found = {name: p.grad.double() for name, p in parameters if p.grad is not None}
    for name, rows in (("y", y.detach()), ("x", mine.grad)):
        found[name] = torch.zeros(900, 16, dtype=torch.float64)
        found[name][share] = rows.double()
    return {name: runtime.sums(x) for name, x in found.items()}


def compiled_tower() -> tuple[list[float], list[float]]:
    """The losses of this process's rows of a model whose steps ask the other processes, compiled and as it is."""
    torch.set_num_threads(1)
    with Runtime.start() as runtime:
        found = []
        for compiled in (False, True):
            torch.manual_seed(6)
            model = TwoTower.from_schema(EXAMPLE, TwoTower.Config(dim=DIM, history_dropout=0.0)).train()
            parallel = Parallel(Objective(model), runtime, compiled=compiled)
            share = slice(runtime.rank * 4, runtime.rank * 4 + 4)
            mine = Batch.of({name: x[share] for name, x in example_batch(rows=8).features.items()})
            torch.manual_seed(7)
            with parallel.part(last=True):
                losses = parallel(mine)
                parallel.backward(losses.sum())
            assert parallel.agree(torch.ones(1)).tolist() == [2.0, 2.0]
            found.append(losses.tolist())
    return found[0], found[1]
