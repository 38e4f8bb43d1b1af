"""What lets a run be cut off and taken up: the main process keeps its folder, all processes agree on what is in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor, nn

from falconet.config import config_hash, to_plain
from falconet.errors import ArtifactError
from falconet.models.base import Model
from falconet.train.checkpoint import FORMAT, Position, Resume, RunFolder
from falconet.train.interfaces import Batches
from falconet.train.optimizer import Optimizers
from falconet.train.parallel import load_weights, plain_keys, share_tensors
from falconet.train.runtime import Runtime

HOW = ("accumulate", "compile", "snapshot_steps", "snapshot_minutes", "table_placement")
"""Settings of how, not of what, is trained: a run may go on with others."""


class Recovery:
    """Snapshots of one run, in a folder, or of its best weights alone in memory where there is no folder.

    All processes make every call; what goes wrong in the folder is an error on all of them.
    """

    def __init__(self, folder: Path | None, model: nn.Module, optimizers: Optimizers, runtime: Runtime) -> None:
        self._folder = None if folder is None else RunFolder(folder)
        self._model, self._optimizers, self._runtime = model, optimizers, runtime
        self._tables = optimizers.tables
        # A module that stands in the model twice has two names for each of its weights.
        tables = {id(weight) for weight in self._tables.weights.values()}
        self._apart = {name for name, p in model.named_parameters(remove_duplicate=False) if id(p) in tables}
        self._best: tuple[dict[str, Tensor], dict[str, Tensor]] = {}, {}

    def open(self, config: Mapping[str, Any], resume: Resume) -> tuple[Position, bool]:
        """Where to begin, and whether the run is finished; weights and optimizers are put there."""
        folder = self._folder
        if folder is None:
            return Position(), False

        def look() -> dict[str, Any] | None:
            with _written(folder.path):
                position = folder.open(config, resume)
                if position is None:
                    return None
                finished = folder.finished
                if not finished:
                    folder.lock()
                    folder.back_to(position)
            return {"position": asdict(position), "finished": finished}

        found = self._runtime.on_main(look)
        if found is None:
            return Position(), False
        if found["finished"]:
            weights = self._share(lambda: folder.model_weights())
            tables = {name: weights.pop(name) for name in self._apart if name in weights}
            self._put(weights, where=f"`{folder.path}`")
            self._tables.load(tables)
        else:
            self._load("last")
        return Position(**found["position"]), bool(found["finished"])

    def save(self, position: Position, *, best: bool) -> None:
        """Keep what is needed to go on from here."""
        folder = self._folder
        if folder is None:
            if best:
                self._best = _copies(self._dense_weights()), _copies(self._tables.values)
            return
        groups = self._groups()

        def write() -> None:
            with _written(folder.path):
                folder.save(position, groups, world=self._runtime.world, shards=self._tables.shards, best=best)

        def write_and_take_all() -> None:
            try:
                write()
            finally:
                _use_up(groups)  # the others give theirs in any case

        if not self._runtime.is_main:
            _use_up(groups)
        self._runtime.on_main(write_and_take_all)

    def _groups(self) -> Iterator[tuple[str, Mapping[str, Tensor] | None]]:
        """The tensors of a snapshot, one file's after the other's; None on processes that do not write them."""
        yield "model", self._dense_weights()
        yield "optimizer", self._optimizers.tensors()
        for shard in range(self._tables.shards):
            yield f"tables-{shard}", self._tables.tensors(shard)

    def _dense_weights(self) -> dict[str, Tensor]:
        weights = plain_keys(self._model.state_dict())
        return {name: x for name, x in weights.items() if name not in self._apart}

    def back_to_best(self) -> None:
        """Give the model the weights of the best epoch."""
        if self._folder is not None:
            self._load("best", weights_only=True)
            return
        dense, tables = self._best
        self._put(dense, where="the best epoch")
        for name, x in tables.items():
            self._tables.values[name].copy_(x)

    def finish(self, step_key: str | None) -> None:
        """Write the whole model, and that the run is finished; all processes leave together."""
        folder = self._folder

        def write() -> None:
            if folder is not None:
                with _written(folder.path):
                    folder.finish(self._model, step_key)

        self._runtime.on_main(write)

    def close(self) -> None:
        """Let other processes train in the folder."""
        if self._folder is not None:
            self._folder.close()

    def log(self, event: str, **facts: str | float | int | bool | None) -> None:
        """One line of run.jsonl."""
        folder = self._folder

        def write() -> None:
            if folder is not None:
                with _written(folder.path):
                    folder.log(event, **facts)

        self._runtime.on_main(write)

    def _load(self, which: str, *, weights_only: bool = False) -> None:
        folder = self._folder
        assert folder is not None
        shards = int(self._runtime.on_main(lambda: folder.check(which)))
        self._put(self._share(lambda: folder.read(which, "model")), where=f"the {which} snapshot of `{folder.path}`")
        for shard in range(shards):
            tables = self._share(lambda shard=shard: folder.read(which, f"tables-{shard}"))  # type: ignore[misc]
            if weights_only:
                tables = {name: x for name, x in tables.items() if name in self._tables.weights}
            self._tables.load(tables, shard, shards)
        if not weights_only:
            self._optimizers.load(self._share(lambda: folder.read(which, "optimizer")))

    def _put(self, dense: Mapping[str, Tensor], where: str) -> None:
        load_weights(self._model, dense, where=where, apart=self._apart)

    def _share(self, read: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        return share_tensors(self._runtime, read() if self._runtime.is_main else None)


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.detach().clone() for name, x in tensors.items()}


def _use_up(groups: Iterator[object]) -> None:
    for _ in groups:
        pass


@contextmanager
def _written(folder: Path) -> Iterator[None]:
    """Raise ArtifactError where the folder of a run cannot be written."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise ArtifactError(
            f"the run in `{folder}` cannot be written: {error}",
            hint="space on the disk, and leave to write there; what was saved before is whole",
        ) from error


def describe(
    train: Any, model: nn.Module, loader: Batches, valid: Batches | None, step_key: str | None
) -> dict[str, Any]:
    """config.json: everything that decides what a run comes to, and not the number of processes."""
    name = type(model).__name__
    shapes = {key: list(x.shape) for key, x in model.state_dict().items()}
    if isinstance(model, Model):
        network = {"name": name, "config": to_plain(model.config), "schema": config_hash(model.schema.to_json())}
    else:
        network = {"name": name, "shapes": config_hash(shapes)}
    network["frozen"] = [name for name, p in model.named_parameters() if not p.requires_grad]
    return {
        "format": FORMAT,
        "step": step_key,
        "train": {name: x for name, x in to_plain(train).items() if name not in HOW},
        "model": network,
        "data": _data(loader),
        "valid": None if valid is None else _data(valid),
    }


def _data(loader: Batches) -> dict[str, Any]:
    return {key: value for key, value in loader.state_dict().items() if key not in ("epoch", "step")}
