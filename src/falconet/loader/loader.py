"""The loader: batches of whole columns from Parquet files, in the order of the epoch plan."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from falconet.arguments import explained
from falconet.batch import Batch, Feature
from falconet.columns import join
from falconet.errors import ConfigError
from falconet.io.folders import folder_values, with_folders
from falconet.io.footer import common_schema, groups_of, read_footers
from falconet.loader.fetch import Cursor, Fetch, Kept, Streamed, ahead, pieces
from falconet.loader.fields import fields_of, named, no_tensors, targets, weights
from falconet.loader.modes import MODES, Choice, Mode, choose, deliver, in_words, parse_device
from falconet.loader.plan import WINDOW, EpochPlan
from falconet.loader.position import FORMAT, check_same, described, fingerprint
from falconet.loader.source import Source
from falconet.loader.transforms import Function, Place, Transform
from falconet.memory import parse_size
from falconet.progress import note
from falconet.schema import FOOTER_KEY, Schema
from falconet.train.place import read_place
from falconet.train.runtime import Runtime

if TYPE_CHECKING:
    from falconet.loader.dataset import Steps

Memory = Literal["auto", "memory", "stream", "device"]


class Loader:
    """Batches from a folder of Parquet files (or of folders `COLUMN=VALUE` of them), or from one such file.

    `batch_size` is the number of rows of all processes together. Every row comes exactly once per epoch (`drop_last`
    leaves out the rest that fills no batch), in an order that depends on `seed` and the epoch alone; `shuffle=False`
    keeps the order of the files. Every process takes the same number of steps.

    `columns`: the features to load; by default those that carry a tag, or all where the files have no falconet schema.
    Columns tagged `target` and the one tagged `weight` always come along, as float32; `targets` and `weight` name
    others, or those of files without a schema. `transforms` are applied to every batch, in turn: see
    `loader/transforms.py`; a plain function of a batch will do, if it looks at each row alone.

    `memory`: keep all columns in memory or on `device`, or read the files window by window (`stream`); the batches are
    the same. `auto` takes the fastest that fits in `budget` (bytes, or "2GB": for all processes of a machine; by
    default a quarter of its memory, at most 4 GiB, and of the device's) and says so. `window`: rows that are shuffled
    together. `lanes`: a multiple of the number of processes, where each should read its own row groups alone; another
    number of lanes is another order. `prefetch`: batches kept ready by a thread.

    `device`: where batches come out, copied ahead from pinned memory; by default that of `runtime`, else the CPU.
    `runtime`: whose share `for batch in loader` gives; by default that of this process.

    Only footers are read here. Raises ConfigError, DataError or SchemaError.
    """

    @explained
    def __init__(
        self,
        path: str | Path,
        *,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        window: int = WINDOW,
        lanes: int = 1,
        columns: Sequence[str] | None = None,
        targets: Sequence[str] = (),
        weight: str | None = None,
        transforms: Sequence[Transform | Callable[[Batch], Batch]] = (),
        memory: Memory = "auto",
        budget: str | int | None = None,
        device: str | torch.device | None = None,
        prefetch: int = 2,
        runtime: Runtime | None = None,
    ) -> None:
        if not isinstance(path, str | os.PathLike):
            raise ConfigError(
                f"a Loader reads files, and was given a {type(path).__name__}",
                hint="a folder that `fitted.transform(...).to_parquet(folder)` wrote; fl.MapLoader is for pairs (X, y)",
            )
        for name, value in {"columns": columns, "targets": targets, "transforms": transforms}.items():
            if isinstance(value, str) or not isinstance(value, Sequence | None):
                raise ConfigError(f"`{name}` is {value!r}", hint=f"a list: `{name}=[{value!r}]`")
        if memory not in ("auto", *MODES):
            raise ConfigError(f"`memory` must be auto, {', '.join(MODES[:-1])} or {MODES[-1]}, not {memory!r}")
        if isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 1:
            raise ConfigError(f"`prefetch` must be a whole number of at least 1, not {prefetch!r}")
        self.path = Path(path)
        footers = read_footers(self.path)
        self._groups = groups_of(footers)
        self._plan = EpochPlan(
            group_rows=tuple(group.rows for group in self._groups),
            batch_size=batch_size,
            seed=seed,
            window=window,
            shuffle=shuffle,
            drop_last=drop_last,
            lanes=lanes,
        )
        folders = {file: folder_values(file, self.path) for file in footers}
        schema = named(with_folders(common_schema(footers), folders.values()), self.path, targets, weight)
        by_tag = any(FOOTER_KEY in (meta.metadata or {}) for meta in footers.values())
        fields = fields_of(self.path, schema, columns, by_tag)
        self._left_out = [] if by_tag or columns is not None else no_tensors(schema)
        self._stored = self._schema = Schema(tuple(field.column for field in fields))
        self._source = Source.of(fields, self._groups, footers, folders)
        self._transforms: list[Transform] = []
        for transform in transforms:
            made = transform if isinstance(transform, Transform) else Function(transform)
            self._transforms.append(made.settled(self._schema))
            self._schema = self._transforms[-1].describe(self._schema)
        self._prefetch = prefetch
        self._runtime = runtime
        self._memory, self._budget = memory, None if budget is None else parse_size(budget)
        self._kept: tuple[range, Kept] | None = None
        self._chosen: Choice | None = None
        self._told = False
        self._workers = 1  # of this process, each of which keeps columns of its own
        self._epoch = self._step = 0
        self._resumed = False
        self._device = parse_device(device or (runtime.device if runtime else "cpu"))

    def move_to(self, device: str | torch.device) -> None:
        """From the next call of `batches` on, batches come out on this device; for another one rows are read anew."""
        found = parse_device(device)
        if found != self._device:
            self._device, self._kept, self._chosen = found, None, None

    @property
    def device(self) -> torch.device:
        """Where batches come out."""
        return self._device

    @property
    def schema(self) -> Schema:
        """The columns of the batches, targets and weight among them."""
        return self._schema

    @property
    def mode(self) -> Mode:
        """Where the columns are kept: "memory", "device", or "stream" for nowhere."""
        return self._choice().mode

    @property
    def rows(self) -> int:
        """Rows of an epoch, of all processes together."""
        return min(self._plan.rows, len(self) * self._plan.batch_size)

    @property
    def bytes(self) -> int:
        """Bytes of the columns that a process has to keep, as tensors."""
        rank, world = self._place()
        lanes = self._plan.lanes_of(rank, world) if self._plan.lanes % world == 0 else range(self._plan.lanes)
        return self._source.bytes(self._plan.groups_of(lanes))

    @property
    def batch_size(self) -> int:
        """Rows of a global batch."""
        return self._plan.batch_size

    @property
    def seed(self) -> int:
        return self._plan.seed

    @property
    def epoch(self) -> int:
        """The epoch of the next batch that iteration gives."""
        return self._epoch

    @property
    def step(self) -> int:
        """The step, within the epoch, of the next batch that iteration gives."""
        return self._step

    def __len__(self) -> int:
        """Steps per epoch, the same on every process."""
        return self._plan.steps

    def batches(self, epoch: int = 0, start: int = 0, rank: int = 0, world: int = 1) -> Generator[Batch]:
        """What `rank` of `world` processes gets in the steps of an epoch from step `start` on; changes nothing here.

        A batch may have no rows on a process. The threads that prepare batches end with the generator.
        """
        if rank == 0 and self._memory == "auto" and not self._told:
            self._told = True
            note(f"`{self.path}`: {in_words(self._plan.rows, self.bytes, self._choice(), self._device)}")
            if self._left_out:
                note(f"`{self.path}`: left out, as these are no numbers: {', '.join(self._left_out)}")
        if start < 0:
            raise ConfigError(f"`start` must be a step, not {start}")
        made = self.make(epoch, range(start, len(self)), rank, world)
        return deliver(made, self._device, self._prefetch)

    def make(self, epoch: int, steps: range, rank: int, world: int) -> Generator[Batch]:
        """The batches of these steps, ascending, made when asked for and left where the columns are kept."""
        if not 0 <= rank < world:
            raise ConfigError(f"`rank` must be from 0 to {world - 1} where there are {world} processes, not {rank}")
        plan = replace(self._plan, epoch=epoch)
        return self._make(plan, steps, plan.lanes_of(rank, world), rank, world)

    def steps(self) -> Steps:
        """This process's batches as a torch IterableDataset, for `DataLoader(loader.steps(), batch_size=None)`."""
        from falconet.loader.dataset import Steps

        return Steps(self, *self._place())

    def for_worker(self, workers: int) -> Loader:
        """A loader of the same batches, on the CPU, for one of so many workers of this process."""
        made = copy.copy(self)
        made._workers, made._device, made._kept, made._chosen = workers, torch.device("cpu"), None, None
        return made

    def origin(self, epoch: int, step: int, row: int) -> str:
        """Where a row of the global batch of a step comes from, in words."""
        plan = replace(self._plan, epoch=epoch)
        for lane, start, stop in plan.share(step, 0, 1).spans:
            if row >= stop - start:
                row -= stop - start
                continue
            window = plan.windows[lane][plan.window_at(lane, start + row)]
            rest = int(plan.order(window)[start + row - window.first])
            for number in window.groups:
                group = self._groups[number]
                if rest < group.rows:
                    return f"row {rest} of row group {group.index} of `{group.path}`"
                rest -= group.rows
        raise IndexError(f"step {step} has no row {row}")

    def __iter__(self) -> Generator[Batch]:
        """This process's share of the current epoch; the next call, after the last batch, gives the next epoch.

        An epoch that was broken off starts again, unless `load_state_dict` or `set_epoch` put the position inside it.
        """
        rank, world = self._place()
        if not self._resumed:
            self._step = 0
        self._resumed = False
        for batch in self.batches(self._epoch, self._step, rank, world):
            self._step += 1
            if self._step == len(self):  # before the last batch is given, as some loops ask no more after it
                self._epoch, self._step = self._epoch + 1, 0
            yield batch

    def set_epoch(self, epoch: int, step: int = 0) -> None:
        """Put the position at a step of an epoch; after the last step the next epoch begins."""
        if len(self) and step >= len(self):
            epoch, step = epoch + 1, 0
        self._epoch, self._step, self._resumed = epoch, step, True

    def state_dict(self) -> dict[str, Any]:
        """The position, and what it is a position in: plain values for JSON."""
        plan = self._plan
        return {
            "format": FORMAT,
            "epoch": self._epoch,
            "step": self._step,
            "seed": plan.seed,
            "batch_size": plan.batch_size,
            "window": plan.window,
            "shuffle": plan.shuffle,
            "drop_last": plan.drop_last,
            "lanes": plan.lanes,
            "columns": list(self._stored.names),
            "targets": list(targets(self._stored).names),
            "weight": next(iter(weights(self._stored).names), None),
            "transforms": [described(transform) for transform in self._transforms],
            "data": fingerprint(self._groups),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on at a saved position, on any number of processes.

        Raises ConfigError where a setting would change the rows or their order, DataError for other data.
        """
        check_same(state, self.state_dict(), self.path)
        self.set_epoch(state["epoch"], state["step"])

    def _make(self, plan: EpochPlan, steps: Iterable[int], lanes: range, rank: int, world: int) -> Generator[Batch]:
        shares = ((step, plan.share(step, rank, world)) for step in steps)
        first = next(shares, None)
        if first is None:
            return
        fetch = self._fetch(lanes)
        with closing(ahead(pieces(fetch, plan, first[1].spans), 1)) as found:
            cursor = Cursor(found, fetch.done)
            for step, share in chain([first], shares):
                columns = join([taken for span in share.spans for taken in cursor.take(span)])
                batch = self._batch(columns, share.rows, plan.batch_rows(step))
                place = Place(plan.seed, plan.epoch, step, share.first, batch.global_rows)
                for transform in self._transforms:
                    batch = transform(batch, place)
                yield batch

    def _fetch(self, lanes: range) -> Fetch:
        if self.mode == "stream":
            return Streamed(self._source)
        if self._kept is None or self._kept[0] != lanes:
            device = self._device if self.mode == "device" else torch.device("cpu")
            self._kept = lanes, Kept(self._source, self._plan.groups_of(lanes), device)
        return self._kept[1]

    def _batch(self, columns: dict[str, Feature], rows: int, global_rows: int) -> Batch:
        target = {name: _dense(columns.pop(name)) for name in targets(self._stored).names}
        weight = [_dense(columns.pop(name)) for name in weights(self._stored).names]
        return Batch(columns, target, rows, global_rows, weight[0] if weight else None)

    def _place(self) -> tuple[int, int]:
        return (self._runtime.rank, self._runtime.world) if self._runtime else Runtime.peek()

    def _choice(self) -> Choice:
        if self._chosen is None:
            if self._memory == "auto":
                self._chosen = choose(self.bytes, self._device, self._budget, self._neighbours() * self._workers)
            else:
                self._chosen = Choice(self._memory, 0)
        return self._chosen

    def _neighbours(self) -> int:
        """Processes of this machine."""
        if self._runtime is not None:
            return self._runtime.local_world
        try:
            return read_place(os.environ).local_world
        except ConfigError:
            if not dist.is_initialized():
                raise
            return dist.get_world_size()  # others started them, and said less

    def __getstate__(self) -> dict[str, Any]:
        """Another process keeps its own columns."""
        return {**self.__dict__, "_kept": None}


def _dense(column: Feature) -> Tensor:
    assert isinstance(column, Tensor)  # `fields_of` let no ragged target through
    return column
