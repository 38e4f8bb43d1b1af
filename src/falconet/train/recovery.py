"""What lets a run be cut off and taken up: the main process keeps its folder, all processes agree on what is in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor, nn

from falconet.config import config_hash, to_plain
from falconet.errors import ArtifactError
from falconet.models.base import Model
from falconet.train.checkpoint import FORMAT, GROUPS, Position, Resume, RunFolder
from falconet.train.interfaces import Batches
from falconet.train.optimizer import Optimizers
from falconet.train.parallel import load_weights, plain_keys, share_tensors
from falconet.train.runtime import Runtime


class Recovery:
    """Snapshots of one run, in a folder, or of its best weights alone in memory where there is no folder."""

    def __init__(self, folder: Path | None, model: nn.Module, optimizers: Optimizers, runtime: Runtime) -> None:
        self._folder = None if folder is None else RunFolder(folder)
        self._model, self._optimizers, self._runtime = model, optimizers, runtime
        self._best: dict[str, Tensor] = {}

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
                    folder.write_metrics(position)
            return {"position": asdict(position), "finished": finished}

        found = self._runtime.on_main(look)
        if found is None:
            return Position(), False
        if found["finished"]:
            weights = folder.model_weights() if self._runtime.is_main else None
            load_weights(self._model, share_tensors(self._runtime, weights), where=f"`{folder.path}`")
        else:
            self._load("last")
        return Position(**found["position"]), bool(found["finished"])

    def save(self, position: Position, *, best: bool) -> None:
        """Keep what is needed to go on from here."""
        if self._folder is None:
            if best:
                self._best = {name: x.detach().clone() for name, x in self._model.state_dict().items()}
            return
        if self._runtime.is_main:
            tables = self._optimizers.tables.tensors()
            weights = {name: x for name, x in plain_keys(self._model.state_dict()).items() if name not in tables}
            tensors = {"model": weights, "tables-0": tables, "optimizer": self._optimizers.tensors()}
            with _written(self._folder.path):
                self._folder.save(position, tensors, world=self._runtime.world, best=best)

    def back_to_best(self) -> None:
        """Give the model the weights of the best epoch."""
        if self._folder is None:
            load_weights(self._model, self._best)
        else:
            self._load("best", weights_only=True)

    def finish(self, step_key: str | None) -> None:
        """Write the model, and that the run is finished; all processes leave together."""
        if self._folder is not None and self._runtime.is_main:
            with _written(self._folder.path):
                self._folder.finish(self._model, step_key)
        self._runtime.barrier()

    def log(self, event: str, **facts: str | float | int | bool | None) -> None:
        """One line of run.jsonl, by the main process."""
        if self._folder is not None and self._runtime.is_main:
            with _written(self._folder.path):
                self._folder.log(event, **facts)

    def _load(self, which: str, *, weights_only: bool = False) -> None:
        assert self._folder is not None
        read = self._folder.read(which) if self._runtime.is_main else dict.fromkeys(GROUPS)
        found = {group: share_tensors(self._runtime, read[group]) for group in GROUPS}
        tables = {name: x for name, x in found["tables-0"].items() if name in self._optimizers.tables.weights}
        load_weights(self._model, found["model"] | tables, where=f"the {which} snapshot of `{self._folder.path}`")
        if not weights_only:
            self._optimizers.tables.load(found["tables-0"])
            self._optimizers.load(found["optimizer"])


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
    return {
        "format": FORMAT,
        "step": step_key,
        "train": to_plain(train),
        "model": network,
        "data": _data(loader),
        "valid": None if valid is None else _data(valid),
    }


def _data(loader: Batches) -> dict[str, Any]:
    return {key: value for key, value in loader.state_dict().items() if key not in ("epoch", "step")}
