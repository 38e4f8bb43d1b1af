"""The optimizer of embedding tables: where their rows lie, and how processes agree on them.

Per step the processes exchange the ids they touched and the gradients of those rows, and add up what belongs to one id
in the order of ranks. On one machine they have the tables in its memory in common: each adds up and moves its share of
the rows, and none reads on before all have done so. Between machines each has replicas, and all make the same updates,
so that these stay equal bit for bit. Rows of dealt tables (see placement.py) lie with one process each: what a batch
reads is fetched from there, its gradients go back there and are added up in the same order. Where a layer narrower than
the table follows, the rows stay: they are multiplied where they lie, and the products travel.

Shapes: U distinct ids, D width of a table, V rows of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from falconet.memory import as_size, keep_freed, large_heap, large_pages, machine_memory
from falconet.nn.embedding import Tables, Touched
from falconet.nn.projection import Local, Projected, Visit
from falconet.train import rowwise
from falconet.train.exchange import Exchange, Route
from falconet.train.gradients import RowGradient, add_up
from falconet.train.placement import Asked, Size, by_table, check_dense, describe, make_plan
from falconet.train.rowwise import RULE, Rule
from falconet.train.runtime import Runtime
from falconet.train.shards import on_main, take_over

_PART = 1 << 24  # numbers that are broadcast at once
_SETTLED = 4  # steps after which a process has the memory that a step takes


class TableOptimizer:
    """Updates the touched rows of all `Tables` of a model by a rule of rowwise.py, one for all or one by table (those
    that are not named have the default); or by none: then gradients go to the weights, dense, for another optimizer.

    `weight_decay` shrinks a touched row by learning rate x weight_decay with its update. `placement`: "auto", one of
    placement.py's, or one for each table by name. `dtype`: what the rows are kept in while they train; bfloat16 rows
    are rounded by chance, drawn from (seed, table, step, row). `memory`: bytes that a process has in all.

    While `hold` is entered the tables are frozen for autograd, so that DistributedDataParallel leaves them alone, and
    the weights of dealt tables are empty; at its end every process has all rows again. After an error it does not wait
    for others, and leaves dealt tables empty.
    """

    def __init__(
        self,
        model: nn.Module,
        rule: Rule | Mapping[str, Rule] | None,
        runtime: Runtime,
        *,
        weight_decay: float = 0.0,
        exchange_dtype: torch.dtype = torch.float32,
        placement: Asked | Mapping[str, Asked] = "auto",
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        memory: int | None = None,
    ) -> None:
        self._modules = {name: m for name, m in model.named_modules() if isinstance(m, Tables)}
        self._runtime, self._weight_decay = runtime, weight_decay
        self._dtype, self._seed = dtype, seed
        self._exchange = Exchange(runtime, exchange_dtype)
        known = {id(p): name for name, p in model.named_parameters()}
        self.weights: dict[str, nn.Parameter] = {}
        self._names: dict[tuple[str, str], str] = {}
        self._sizes: dict[str, Size] = {}
        for module, tables in self._modules.items():
            for table in tables.tables:
                weight = tables.weight(table)
                if weight.requires_grad:  # what was frozen stays as it is
                    name = self._names[module, table] = known[id(weight)]
                    self.weights[name] = weight
        self.tables = {name: table for (_, table), name in self._names.items()}
        self._rules = {} if rule is None else by_table(rule, self.tables, RULE, setting="table_optimizer")
        for name, weight in self.weights.items():
            rows, width = weight.shape
            beside = 4 * rowwise.numbers_per_row(self._rules.get(name), width)
            self._sizes[name] = Size(self.tables[name], rows, width, dtype.itemsize * width + beside)
        self._is_dense = rule is None
        if self._is_dense:
            check_dense(placement, dtype)
        on_gpu = runtime.device.type == "cuda"
        self.plan = make_plan(
            self._sizes,
            "replicated" if self._is_dense else placement,
            world=runtime.world,
            memory=_memory(runtime) if memory is None else memory,
            on_gpu=on_gpu,
            common=not self._is_dense and self._exchange.board is not None,
        )
        for (module, table), name in self._names.items():
            if self.plan[name].placement == "host" and on_gpu:
                self._modules[module].keep_on_host(table)
        self.values: dict[str, Tensor] = {}  # the rows that this process holds
        self.state: dict[str, dict[str, Tensor]] = {}  # of these rows
        self._routes: dict[str, Route] = {}  # by which rows of dealt tables came last
        self._told = False
        self._steps = 0  # since `hold`

    @property
    def described(self) -> list[str]:
        """The plan in words."""
        return describe(self.plan, self._runtime.world) if self.plan else []

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Take the tables away from autograd and DistributedDataParallel, and put their rows where the plan says."""
        keep_freed()
        self._steps = 0
        try:
            for (module, table), name in self._names.items():
                self._take(self._modules[module], table, name)
            yield
        except BaseException:
            self._let_go()
            raise
        self.gather_whole()
        self._let_go()

    def _take(self, tables: Tables, table: str, name: str) -> None:
        weight, placed = self.weights[name], self.plan[name]
        weight.requires_grad_(False)
        if self._runtime.world > 1 and placed.placement != "common":  # all start from rank 0's
            _broadcast(weight.data, 0, self._runtime)
        held = weight.data[placed.layout.of(self._runtime.rank)] if placed.is_dealt else weight.data
        held = held.to(self._dtype).clone() if placed.is_dealt else held.to(self._dtype)
        state = rowwise.fresh_state(self._rules.get(name), held)
        if placed.placement == "common":
            board = self._exchange.board
            assert board is not None
            held, state = board.common(held), {key: board.common(x) for key, x in state.items()}
        if held.device.type == "cpu":
            large_pages(held.data_ptr(), held.nbytes)
        weight.data = held.new_empty(0, held.shape[1]) if placed.is_dealt else held
        self.values[name], self.state[name] = held, state
        if placed.is_dealt or self._dtype != torch.float32:
            tables.read_by(table, _Rows(partial(self._read, name), partial(self._visit, name)))

    def _let_go(self) -> None:
        for (module, table), name in self._names.items():
            weight = self.weights[name]
            if self.plan[name].placement == "common":  # from here on each process has its own
                weight.data = weight.data.clone()
            weight.requires_grad_(True)
            self._modules[module].read_by(table, None)

    def gather_whole(self) -> None:
        """Give every weight all its rows, in float32, on every process."""
        for name, placed in self.plan.items():
            weight = self.weights[name]
            if placed.is_dealt:
                whole = self.values[name].new_empty(placed.size.rows, placed.size.width, dtype=torch.float32)
                for rank in range(self._runtime.world):
                    share = placed.layout.of(rank)
                    mine = rank == self._runtime.rank
                    part = self.values[name].float() if mine else torch.empty_like(whole[share])
                    _broadcast(part, rank, self._runtime)
                    whole[share] = part
                weight.data = whole
            else:
                weight.data = weight.data.float()

    def _read(self, name: str, ids_U: Tensor, out_UD: Tensor) -> None:
        """Write the rows of some ids, with padding first, to `out_UD`."""
        held, placed = self.values[name], self.plan[name]
        if not placed.is_dealt:
            out_UD.copy_(held.index_select(0, ids_U.to(held.device)))
            return
        route = self._exchange.route(placed.layout, ids_U[1:])
        self._routes[name] = route
        out_UD[0] = 0  # padding need not travel
        self._exchange.fetch(route, held, out_UD[1:])

    def _visit(self, name: str, ids_U: Tensor) -> Visit:
        """The rows of some ids, with padding first, to be multiplied where they lie."""
        held, placed = self.values[name], self.plan[name]
        return self._exchange.visit(placed.layout, held, ids_U) if placed.is_dealt else Local(held, ids_U)

    @contextmanager
    def collect(self) -> Iterator[list[tuple[str, list[Touched | Projected]]]]:
        """Within the block, what the tables read is listed, by module."""
        with ExitStack() as stack:
            yield [(name, stack.enter_context(tables.collect())) for name, tables in self._modules.items()]

    @torch.no_grad()
    def gather(self, collected: Sequence[tuple[str, list[Touched | Projected]]]) -> dict[str, RowGradient]:
        """The gradients of all processes' touched rows, after `backward`, by table; all processes call it.

        `collected` is what was read in all parts of a batch. Of dealt tables each process gets the gradients of its
        rows. Without a rule the gradients go to the weights, and none is given back.
        """
        read, here, fetched = self._by_table(collected)
        mine = {name: add_up(parts) if parts else self._nothing(name) for name, parts in read.items()}
        found = self._deliver({n: g for n, g in mine.items() if self.plan[n].is_dealt and n in fetched})
        found |= self._exchange.add_up({n: g for n, g in mine.items() if not self.plan[n].is_split})
        found |= self._exchange.share_out({n: g for n, g in mine.items() if self.plan[n].placement == "common"})
        for name, parts in here.items():
            if self.plan[name].is_dealt:
                parts = [*([found[name]] if name in found else []), *parts]
                found[name] = add_up(parts) if parts else self._nothing(name)
        self._tell()
        if not self._is_dense:
            return {name: found[name] for name in mine}
        for name, gradient in found.items():
            weight = self.weights[name]
            weight.grad = torch.zeros_like(weight).index_add_(0, gradient.ids, gradient.formed().values.float())
        return {}

    def _by_table(
        self, collected: Sequence[tuple[str, list[Touched | Projected]]]
    ) -> tuple[dict[str, list[RowGradient]], dict[str, list[RowGradient]], set[str]]:
        """Gradients of rows that were read here, those that are where they belong already (they went there in
        `backward`), and the tables of which rows were read."""
        read: dict[str, list[RowGradient]] = {name: [] for name in self.weights}
        here: dict[str, list[RowGradient]] = {name: [] for name in self.weights}
        fetched: set[str] = set()
        for module, touched in collected:
            for one in touched:
                name = self._names.get((module, one.table))
                if name is None:
                    continue
                rows = self._sizes[name].rows
                if isinstance(one, Projected):
                    if one.outer is not None:
                        to = here if self.plan[name].is_dealt else read
                        to[name].append(RowGradient(rows, one.ids, one.outer, one.layer))
                    continue
                fetched.add(name)
                if one.rows.grad is not None:
                    # Padding is always the first of the distinct ids, and learns nothing.
                    read[name].append(RowGradient(rows, one.ids[1:], one.rows.grad[1 : len(one.ids)]))
        return read, here, fetched

    def _deliver(self, mine: Mapping[str, RowGradient]) -> dict[str, RowGradient]:
        """The gradients of dealt tables, each to the process that holds the row."""
        if not mine:
            return {}
        wide = [g.values.dtype != torch.bfloat16 and len(g.ids) > 0 for g in mine.values()]
        anew = [not self._is_way_back(name, g) for name, g in mine.items()]
        told = self._runtime.sums(torch.tensor([*wide, *anew], dtype=torch.float32)).tolist()
        found = {}
        for (name, gradient), is_wide, is_new in zip(mine.items(), told, told[len(mine) :], strict=False):
            layout = self.plan[name].layout
            route = self._exchange.route(layout, gradient.ids) if is_new else self._routes[name]
            found[name] = self._exchange.deliver(layout, route, gradient.values, narrow=not is_wide)
        self._routes.clear()
        return found

    def _is_way_back(self, name: str, gradient: RowGradient) -> bool:
        """Whether the rows of a gradient are just those that were fetched last."""
        route = self._routes.get(name)
        return route is not None and torch.equal(route.ids, gradient.ids)

    @torch.no_grad()
    def square_norm(self, gathered: Mapping[str, RowGradient]) -> Tensor:
        """The sum of the squares of what `gather` gave, over the rows of all tables; the same on every process."""
        return self._sum({name: gradient.squares.sum() for name, gradient in gathered.items()})

    def _sum(self, squares: Mapping[str, Tensor]) -> Tensor:
        """The sum over all tables, and over all rows of those that are dealt."""
        total = torch.zeros(2, device=self._runtime.device)
        for name, square in squares.items():
            total[int(self.plan[name].is_split)] += square.to(total.device)
        if any(placed.is_split for placed in self.plan.values()):
            total[1:] = self._runtime.sums(total[1:])  # and all have moved their rows of tables that are in common
        return total.sum()

    @torch.no_grad()
    def step(
        self,
        gathered: Mapping[str, RowGradient],
        learning_rate: float | Mapping[str, float],
        number: int,
        scale: Tensor | None = None,
    ) -> Tensor:
        """Update the rows by the gradients that `gather` gave, times `scale`; they are used up.

        `learning_rate`: of all tables, or of each by the name of its weight. `number` of the step in the whole run,
        from which the draws of bfloat16 rows are made. Gives what `square_norm` gives, at less cost.
        """
        assert not self._is_dense or not gathered
        self._steps += 1
        if self._steps == _SETTLED:
            large_heap()
        rates = learning_rate if isinstance(learning_rate, Mapping) else dict.fromkeys(gathered, learning_rate)
        return self._sum(
            {name: self._update(name, gradient, rates[name], number, scale) for name, gradient in gathered.items()}
        )

    def _update(
        self, name: str, gradient: RowGradient, learning_rate: float, number: int, scale: Tensor | None
    ) -> Tensor:
        """Move the rows of a table; the sum of the squares of their gradient."""
        rule = self._rules[name]
        values, state, placed = self.values[name], self.state[name], self.plan[name]
        if scale is not None:
            scale = scale.to(values.device)
        all_ids, width = gradient.ids.to(values.device), placed.size.width
        found: list[Tensor] = []
        young = rowwise.touch(rule, state, all_ids)
        keys_U = None
        if values.dtype != torch.float32:
            rows_U = placed.layout.ids(all_ids, self._runtime.rank)
            keys_U = rowwise.keys(placed.size.table, self._seed, number, rows_U)
        for rows, some, squares in gradient.blocks():
            ids_U, squares_U = all_ids[rows], squares.to(values.device)
            some_UD = some.to(values.device)
            found.append(squares_U)
            if scale is not None:
                some_UD.mul_(scale)
                squares_U = squares_U * scale.square()
            these = {mean: young_U[rows] for mean, young_U in young.items()}
            pace_U = rowwise.pace(rule, state, ids_U, squares_U, width, learning_rate, these)
            step_UD = rowwise.follow(rule, state, ids_U, some_UD, pace_U, these)
            if self._weight_decay:
                rowwise.shrink(values, ids_U, step_UD, learning_rate * self._weight_decay)
            rowwise.move(values, ids_U, step_UD, None if keys_U is None else keys_U[rows])
        return torch.cat(found).sum() if found else torch.zeros((), device=values.device)

    def _nothing(self, name: str) -> RowGradient:
        size, device = self._sizes[name], self._runtime.device
        ids = torch.empty(0, dtype=torch.int64, device=device)
        return RowGradient(size.rows, ids, torch.empty(0, size.width, device=device))

    def _tell(self) -> None:
        """Say once what a step exchanges."""
        if self._told or self._runtime.world == 1 or not self.weights:
            return
        self._told = True
        dense = sum(4 * size.rows * size.width for size in self._sizes.values())
        world = self._runtime.world
        self._runtime.note(
            f"tables: this process gave {as_size(self._exchange.sent)} to others in the first step; "
            f"a dense all-reduce gives {as_size(dense * 2 * (world - 1) / world)}"
        )

    @property
    def sent(self) -> int:
        """Bytes of rows, gradients and ids that this process gave to others so far."""
        return self._exchange.sent

    @property
    def shards(self) -> int:
        """Into how many files the tables go: one, or where rows are dealt one for each process."""
        return self._runtime.world if any(placed.is_dealt for placed in self.plan.values()) else 1

    def tensors(self, shard: int = 0) -> dict[str, Tensor] | None:
        """On the main process: what process `shard` holds, rows and their state, under names for a file; else None.

        Replicated tables are in the first shard. All processes call it, for one shard after the other.
        """
        return on_main(self.plan, self._held, self._runtime, shard)

    def load(self, tensors: Mapping[str, Tensor], shard: int = 0, shards: int = 1) -> None:
        """Take over rows and state from one of the shards that `tensors` gave, on however many processes that was."""
        take_over(self.plan, self._held, self._runtime, tensors, shard, shards)

    @property
    def _held(self) -> dict[str, dict[str, Tensor]]:
        """What this process holds of each table: the rows, named "", and their state."""
        return {name: {"": values, **self.state[name]} for name, values in self.values.items()}


@dataclass(frozen=True)
class _Rows:
    """A `Reader` of one table."""

    read: Callable[[Tensor, Tensor], None]
    visit: Callable[[Tensor], Visit]


def _memory(runtime: Runtime) -> int:
    if runtime.device.type == "cuda":
        return torch.cuda.mem_get_info(runtime.device)[1]
    return machine_memory() // runtime.local_world


def _broadcast(x: Tensor, source: int, runtime: Runtime) -> None:
    """Rank `source`'s values, on every process; through the device, part by part, where they lie elsewhere."""
    for part in torch.split(x, max(_PART // max(x[:1].numel(), 1), 1)):
        there = part.to(runtime.device).contiguous()
        dist.broadcast(there, source)
        if there.data_ptr() != part.data_ptr():
            part.copy_(there)
