"""A model on several processes: dense layers in DistributedDataParallel, BatchNorm over all rows, plain weights."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from falconet.batch import Batch
from falconet.errors import ArtifactError, ConfigError
from falconet.nn import collective
from falconet.nn.batchnorm import BatchNorm
from falconet.nn.collective import all_sum_into
from falconet.nn.embedding import Tables
from falconet.nn.supervised import freeze, is_frozen
from falconet.train.runtime import Runtime

_BATCHNORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Objective(nn.Module):
    """A model's `loss(batch)` as a `forward`, which is what DistributedDataParallel hooks."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        if not callable(getattr(model, "loss", None)):
            raise ConfigError(
                f"{type(model).__name__} has no `loss(batch)`", hint="a method that gives one loss per row: [rows]"
            )
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        """One loss per row, float32: [rows]."""
        losses_R = self.model.loss(batch)  # type: ignore[operator]
        if not isinstance(losses_R, Tensor) or losses_R.shape != (batch.rows,):
            shape = tuple(losses_R.shape) if isinstance(losses_R, Tensor) else repr(losses_R)
            raise ConfigError(
                f"{type(self.model).__name__}.loss gave {shape} for {batch.rows} rows",
                hint="one loss per row, not reduced; the trainer averages over the rows of all processes",
            )
        return losses_R.float()


class Parallel:
    """An objective on all processes: the same losses, and gradients that are added up over processes.

    A step takes one or more parts forward and back; only the last adds up, by one all-reduce for each bucket of
    DistributedDataParallel. Parameters that a loss does not depend on, on some processes or on all, in some steps or in
    all, do as they do on one process: those that no process used have no gradient.

    Frozen parameters, among them tables that a `TableOptimizer` holds, are left alone. All processes start from rank
    0's weights.
    """

    def __init__(self, objective: Objective, runtime: Runtime, *, compiled: bool = False) -> None:
        share_batchnorm(objective)
        self._objective, self._runtime = objective, runtime
        self._parameters = [p for p in objective.parameters() if p.requires_grad]
        self._used: set[int] = set()  # parameters, by id, that this step's losses depend on
        self._learns = False
        self._last = True
        self._module: nn.Module = _compiled(objective) if compiled else objective
        if runtime.world == 1:
            return
        self.share_buffers()
        for parameter in objective.parameters():
            dist.broadcast(parameter.data, 0)
        if self._parameters:
            self._module = _distributed(self._module)

    def share_buffers(self) -> None:
        """Give all processes rank 0's buffers, which are what is saved; those that follow a process's rows differ."""
        if self._runtime.world > 1:
            for x in self._objective.buffers():
                dist.broadcast(x.data, 0)

    def __call__(self, batch: Batch) -> Tensor:
        """One loss per row of this process: [rows]."""
        losses_R: Tensor = self._module(batch)
        return losses_R

    @contextmanager
    def part(self, *, last: bool) -> Iterator[None]:
        """Around forward and backward of one part of a step's rows."""
        self._last = last
        alone = nullcontext() if last else getattr(self._module, "no_sync", nullcontext)()
        with alone:
            yield

    def backward(self, total: Tensor) -> None:
        """Back through the sum of a part's losses."""
        self._learns = self._learns or total.requires_grad
        if self._runtime.world > 1 and self._parameters:
            used = leaves(total)
            self._used |= used
            if self._last:
                # DistributedDataParallel waits for all: the sum of no numbers has their gradient, which is zero.
                idle = [p.flatten()[:0].sum() for p in self._parameters if id(p) not in used]
                total = sum(idle, start=total)
        if total.requires_grad:
            total.backward()  # type: ignore[no-untyped-call]

    def agree(self, values: Tensor) -> Tensor:
        """After the last part: the sums of `values` over all processes, and how many of them learned something."""
        learns = values.new_tensor([float(self._learns)])
        used = [float(id(p) in self._used) for p in self._parameters] if self._runtime.world > 1 else []
        summed = self._runtime.sums(torch.cat([values, learns, values.new_tensor(used)]))
        length = len(values) + 1
        if not all(used):  # where another process used what this one did not, the gradient stays
            for parameter, users in zip(self._parameters, summed[length:].tolist(), strict=True):
                if not users:
                    parameter.grad = None
        self._used, self._learns = set(), False
        return summed[:length]


@functools.cache
def _leave_uncompiled() -> None:
    """Have torch.compile pass over what is new in every step, as the number of distinct ids, or sums over processes."""
    tables = ("forward", "project", "lookup", "rows")
    for of, names in ((Tables, tables), (BatchNorm, ("forward",)), (collective, ("from_all", "all_sum"))):
        for name in names:
            setattr(of, name, torch.compiler.disable(getattr(of, name)))  # type: ignore[no-untyped-call]


def _compiled(objective: Objective) -> nn.Module:
    _leave_uncompiled()
    compiled: nn.Module = torch.compile(objective)  # type: ignore[assignment]
    return compiled


def _distributed(module: nn.Module) -> DistributedDataParallel:
    # Our BatchNorm keeps equal statistics everywhere: nothing need be broadcast. torch 2.13 gave the switch a new name.
    names = inspect.signature(DistributedDataParallel.__init__).parameters
    switch = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"
    parallel = DistributedDataParallel(module, gradient_as_bucket_view=True, **{switch: False})  # type: ignore[arg-type]
    # The sum of gradients, where it would give the mean over processes, which is not that over rows.
    parallel.register_comm_hook(None, lambda state, bucket: all_sum_into(bucket.buffer()))
    return parallel


def leaves(x: Tensor) -> set[int]:
    """The tensors that gradients of `x` end in, by id."""
    found, seen, open_ = set(), set(), [x.grad_fn]
    while open_:
        node = open_.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            found.add(id(leaf))
        open_.extend(before for before, _ in node.next_functions)
    return found


def share_batchnorm(module: nn.Module) -> None:
    """Exchange torch's BatchNorms inside a module, in place, for one whose sums go over all processes."""
    for name, child in module.named_children():
        if not isinstance(child, _BATCHNORMS) or type(child) not in _BATCHNORMS:  # subclasses are left alone
            share_batchnorm(child)
            continue
        shared = BatchNorm(child.num_features, child.eps, child.momentum, child.affine, child.track_running_stats)
        shared._parameters, shared._buffers = child._parameters, child._buffers
        shared.train(child.training)
        setattr(module, name, freeze(shared) if is_frozen(child) else shared)


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel and torch.compile."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def plain_keys(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights under the names they have in a plain model: without `module.` and `_orig_mod.`.

    >>> list(plain_keys({"module._orig_mod.bias": torch.zeros(1)}))
    ['bias']
    """
    plain = {}
    for key, value in weights.items():
        name = key
        while name.startswith(("module.", "_orig_mod.")):
            name = name.partition(".")[2]
        plain[name.replace("._orig_mod.", ".")] = value
    return plain


def load_weights(
    model: nn.Module, weights: Mapping[str, Tensor], *, where: str | Path = "the weights", apart: Container[str] = ()
) -> None:
    """Put weights into a model; either may be wrapped. Those `apart` are neither given nor missed.

    Raises ArtifactError where names or shapes differ.
    """
    plain = plain_keys(weights)
    own = {name: x for name, x in plain_keys(unwrap(model).state_dict()).items() if name not in apart}
    _compare(plain, own, where)
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(plain[name])


def _compare(given: Mapping[str, Tensor], own: Mapping[str, Tensor], where: str | Path) -> None:
    if given.keys() != own.keys():
        raise ArtifactError(
            f"{where} do not fit the model: {_names('missing', own.keys() - given.keys())}"
            f"{_names('unknown', given.keys() - own.keys())}",
            hint="they belong to a model with other settings",
        )
    for name, tensor in own.items():
        if given[name].shape != tensor.shape:
            raise ArtifactError(
                f"{where} do not fit the model: `{name}` is {tuple(given[name].shape)} there, "
                f"{tuple(tensor.shape)} in the model"
            )


def _names(what: str, names: Iterable[str]) -> str:
    found = sorted(names)
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f"{what} {', '.join(found[:3])}{more}; " if found else ""


def share_tensors(runtime: Runtime, tensors: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """Rank 0's tensors (elsewhere None is given), on every process, on the CPU."""
    if runtime.world == 1:
        return dict(tensors or {})
    mine = tensors or {}
    described = [[name, str(x.dtype).removeprefix("torch."), list(x.shape)] for name, x in mine.items()]
    shared = {}
    for name, dtype, shape in runtime.broadcast(described):
        x = mine[name].to(runtime.device) if runtime.is_main else _empty(shape, dtype, runtime.device)
        dist.broadcast(x, 0)
        shared[name] = x.cpu()
    return shared


def _empty(shape: list[int], dtype: str, device: torch.device) -> Tensor:
    return torch.empty(shape, dtype=getattr(torch, dtype), device=device)


def trainable(model: nn.Module) -> tuple[int, int]:
    """(parameters that learn, all parameters), in numbers."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad), sum(p.numel() for p in model.parameters())
