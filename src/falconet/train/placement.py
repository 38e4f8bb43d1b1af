"""Where the rows of each table lie: the plan, made from sizes and settings before anything is moved.

common       the processes of one machine have all rows in its memory in common, and each moves its share of them: what
             replicated tables are on a machine's processors, where a table optimizer has a rule for their rows
replicated   every process holds all rows; per step the gradients of the touched rows go to all
table        one process holds all rows; what a batch reads and learns goes to it and back
row          row i lies with process i modulo their number; likewise
host         as replicated, but in the memory of the machine: only the rows of a batch go to the GPU
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch

from falconet.errors import ConfigError, suggest
from falconet.memory import as_size
from falconet.train.exchange import Layout

Placement = Literal["common", "replicated", "table", "row", "host"]
T = TypeVar("T")

Asked = Literal["auto", "replicated", "table", "row", "host"]
_SHARE = 2  # half of a process's memory is for tables; activations need the other half
PLACEMENTS = ("auto", "replicated", "table", "row", "host")


@dataclass(frozen=True)
class Size:
    """The name of a table, its rows and width, and the bytes of a row with its optimizer's state."""

    table: str
    rows: int
    width: int
    row_bytes: int

    @property
    def bytes(self) -> int:
        return self.rows * self.row_bytes


@dataclass(frozen=True)
class Placed:
    """Where one table lies."""

    size: Size
    placement: Placement
    layout: Layout
    sharers: int = 1  # processes that have it in common

    def bytes_of(self, rank: int) -> int:
        """What a process holds of it, state and all."""
        if self.sharers > 1:
            return self.size.bytes // self.sharers
        rows = self.layout.of(rank) if self.is_dealt else slice(self.size.rows)
        return len(range(self.size.rows)[rows]) * self.size.row_bytes

    @property
    def is_dealt(self) -> bool:
        """Whether processes hold different rows."""
        return self.placement in ("table", "row")

    @property
    def is_split(self) -> bool:
        """Whether processes move different rows."""
        return self.is_dealt or self.placement == "common"


Plan = Mapping[str, Placed]
"""By the name of the table's weight."""


def by_table(asked: T | Mapping[str, T], tables: Mapping[str, str], default: T, *, setting: str) -> dict[str, T]:
    """What is asked of every table, by the name of its weight. `tables`: their own names, by that.

    `asked`: one for all of them, or by the table's name; those that are not named have the default. Raises ConfigError
    for an unknown table.
    """
    if not isinstance(asked, Mapping):
        return dict.fromkeys(tables, asked)
    for table in asked:
        if table not in tables.values():
            names = set(tables.values())
            raise ConfigError(f"`{setting}` names `{table}`, no table of the model", hint=suggest(table, names))
    return {name: asked.get(table, default) for name, table in tables.items()}


def make_plan(
    sizes: Mapping[str, Size],
    asked: Asked | Mapping[str, Asked],
    *,
    world: int,
    memory: int,
    on_gpu: bool,
    common: bool = False,
) -> dict[str, Placed]:
    """The placement of every table.

    `asked`: one placement for all tables, or by the table's name, "auto" where none is given. Auto replicates what fits
    into half of the `memory` of a process; of what does not, the largest tables are dealt row by row, or on a single
    process lie on the host. `common`: the processes can have tables in common, as all that are not dealt are then.
    "table" goes, largest first, to the process that holds least. On one process "table" and "row" are "replicated".

    Raises ConfigError for an unknown table, or where a process would hold more than its memory.
    """
    chosen = by_table(asked, {name: size.table for name, size in sizes.items()}, "auto", setting="table_placement")
    by_size = sorted(sizes, key=lambda name: -sizes[name].bytes)  # equal ones in the order of the model
    resident = sum(sizes[name].bytes for name, how in chosen.items() if how in ("auto", "replicated"))
    for name in by_size:
        if chosen[name] == "auto":
            if resident > memory // _SHARE and (world > 1 or on_gpu) and not common:
                chosen[name] = "row" if world > 1 else "host"
                resident -= sizes[name].bytes * (world - 1) // world if world > 1 else sizes[name].bytes
            else:
                chosen[name] = "replicated"
    plan: dict[str, Placed] = {}
    load = [0] * world
    for name in by_size:
        how, rows = chosen[name], sizes[name].rows
        if how in ("table", "row") and world > 1:
            owner = load.index(min(load)) if how == "table" else None
            plan[name] = Placed(sizes[name], "table" if how == "table" else "row", Layout(rows, world, owner))
        elif common:
            plan[name] = Placed(sizes[name], "common", Layout(rows), world)
        else:
            plan[name] = Placed(sizes[name], "host" if how == "host" else "replicated", Layout(rows))
        load = [bytes + plan[name].bytes_of(rank) for rank, bytes in enumerate(load)]
    _check_fits({n: p for n, p in plan.items() if not (on_gpu and p.placement == "host")}, world, memory)
    return {name: plan[name] for name in sizes}


def _check_fits(plan: Plan, world: int, memory: int) -> None:
    most = max(sum(placed.bytes_of(rank) for placed in plan.values()) for rank in range(world))
    if most <= memory:
        return
    largest = max((placed.size for placed in plan.values()), key=lambda size: size.bytes)
    raise ConfigError(
        f"tables and their state would take {as_size(most)} of a process, which has {as_size(memory)}; the largest is "
        f"`{largest.table}`: {largest.rows:,} rows of {largest.width} numbers, {as_size(largest.bytes)}",
        hint='narrower tables, table_dtype="bfloat16", a table_optimizer with one number per row, or more machines '
        'with table_placement="row"',
    )


def describe(plan: Plan, world: int) -> list[str]:
    """The plan in words, a line for each kind of placement, and what each process holds."""
    lines = []
    times = Counter(placed.size.table for placed in plan.values())
    for how in ("common", *PLACEMENTS):
        sizes = []
        for name, placed in plan.items():
            if placed.placement == how:
                size = placed.size
                # A column may have tables in several parts of a model.
                part = name.rpartition(".weights.")[0] + "." if times[size.table] > 1 else ""
                sizes.append(f"{part}{size.table} {size.rows:,} x {size.width}")
        if sizes:
            lines.append(f"tables {'in common' if how == 'common' else how}: {', '.join(sizes)}")
    held = [sum(placed.bytes_of(rank) for placed in plan.values()) for rank in range(world)]
    low, high = min(held), max(held)
    each = as_size(high) if low == high else f"{as_size(low)} to {as_size(high)}"
    return [*lines, f"tables and their state take {each} on {'each process' if world > 1 else 'this process'}"]


def check_placement(asked: object) -> None:
    """Raise ConfigError for anything but a placement, or placements by table."""
    for one in asked.values() if isinstance(asked, Mapping) else [asked]:
        if one not in PLACEMENTS:
            raise ConfigError(f"`table_placement` is {one!r}", hint=f"one of {', '.join(PLACEMENTS)}, or one per table")


def check_dense(placement: Asked | Mapping[str, Asked], dtype: torch.dtype) -> None:
    """Raise ConfigError for tables without a rule that would not hold a dense gradient in float32."""
    asked = {placement} if isinstance(placement, str) else set(placement.values())
    if other := sorted(asked - {"auto", "replicated"}):
        raise ConfigError(
            f'tables without a `table_optimizer` cannot be placed "{other[0]}": all must hold a dense gradient',
            hint='table_placement="replicated", or a table_optimizer',
        )
    if dtype != torch.float32:
        raise ConfigError(
            "tables without a `table_optimizer` cannot be kept in bfloat16",
            hint='table_dtype="float32", or a table_optimizer',
        )
