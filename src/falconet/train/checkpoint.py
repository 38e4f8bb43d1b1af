"""A run on disk: its settings, its figures, its last and best snapshots, and at the end the model.

config.json     what the run is: settings, model, data. Another run is refused in the same folder.
metrics.jsonl   one line per epoch, without times: equal bytes for equal runs, interrupted or not
run.jsonl       where, when and how fast
snapshots/STEP  model.safetensors tables-0.safetensors … optimizer.safetensors state.json
last.json       {"snapshot": STEP} to go on from; best.json the same, with its figures, for the best epoch
lock            held by the process that trains
model/          the trained model, and manifest.json: the run is finished
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from falconet.errors import ArtifactError
from falconet.io.artifact import (
    MANIFEST,
    clean,
    is_complete,
    read_artifact,
    read_manifest,
    seal,
    write_artifact,
    write_file,
)
from falconet.io.lock import take
from falconet.models.base import Model
from falconet.models.store import save_model
from falconet.progress import note
from falconet.train.parallel import plain_keys

FORMAT = 3
_OLDER = (1, 2)  # from before small batches counted by their rows: they would go on as another run
_BESIDE = ("format", "world", "shards")  # what state.json has beside a position
_PATIENCE = 10.0  # seconds with a lock: what a killed process leaves running, such as a DataLoader's workers, ends soon
Resume = Literal["never", "auto", "must"]
Figures = dict[str, float]
Groups = Iterable[tuple[str, Mapping[str, Tensor] | None]]
"""Tensors by name, one file's after the other's."""


@dataclass
class Position:
    """How far a run is, and what it decided so far: everything of it that is not a tensor."""

    epoch: int = 0
    step: int = 0  # the next step of the epoch
    done: int = 0  # steps of all epochs
    rows: int = 0  # rows of all epochs
    loss: float = 0.0  # sum over the rows of this epoch, with their weights
    weight: float = 0.0  # sum of the weights, else the rows, of this epoch
    history: list[dict[str, Any]] = field(default_factory=list)  # the lines of metrics.jsonl
    best: dict[str, Any] | None = None  # the line of the best epoch
    stale: int = 0  # epochs since then
    drops: int = 0  # of the learning rate, where it falls on a plateau
    enough: bool = False  # a callback ended the training
    scale: float | None = None  # of the losses, in float16
    good_steps: int = 0  # since that last changed


class RunFolder:
    """The folder of one run. Only the main process touches it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock: IO[bytes] | None = None

    def open(self, config: Mapping[str, Any], resume: Resume) -> Position | None:
        """Check or make the folder; the position to go on from, None for a fresh run.

        With "auto", the run of another recipe step (another `step` in `config`) is over and makes way, as does a step's
        run of an older format, which cannot go on as it began. Raises ArtifactError where a run is there and `resume`
        is "never", where none is and it is "must", or where the run there is another one, of another format, or is
        being trained by another process.
        """
        of_step = config["step"] is not None and resume == "auto"
        before = self._config(of_step)  # refuses what is no run before anything is removed
        if before is not None and not (self.path / MANIFEST).exists():  # a finished one is only read
            self.lock()
        clean(self.path)
        clean(self.path / "snapshots")
        if before is not None and of_step and (before.get("step") != config["step"] or before["format"] in _OLDER):
            what = "an older version" if before["format"] in _OLDER else "other settings or data"
            note(f"`{self.path}` is the run of {what}: starting anew")
            self.close()  # Windows renames no folder with an open file
            aside = self.path.with_name(f".tmp-{self.path.name}-old")
            shutil.rmtree(aside, ignore_errors=True)
            self.path.rename(aside)  # a removal that is cut off would leave something that is no run
            shutil.rmtree(aside)
            before = None
        if before is not None and resume == "never":
            raise ArtifactError(f"`{self.path}` holds a run already", hint='resume="auto", or another folder')
        if before is not None and (other := _differences(before, json.loads(json.dumps(config)))):
            raise ArtifactError(
                f"`{self.path}` holds another run: {'; '.join(other[:5])}",
                hint="use the settings it was started with, or another folder",
            )
        position = None if before is None else self._last()
        if position is None:
            if resume == "must":
                raise ArtifactError(f"no run to resume at `{self.path}`", hint='resume="auto" starts one')
            self._start_anew(config)
        return position

    def _config(self, takes_older: bool) -> dict[str, Any] | None:
        path = self.path / "config.json"
        if not path.is_file():
            left = {*self.path.glob(f".tmp-{path.name}-*"), self.path / "lock"}  # of a start that was cut off
            if self.path.is_dir() and set(self.path.iterdir()) - left:
                raise ArtifactError(f"`{self.path}` is not empty and not a run", hint="choose another folder")
            return None
        found: dict[str, Any] = _json(path)
        if found.get("format") not in ((FORMAT, *_OLDER) if takes_older else (FORMAT,)):
            raise _of_another_format(path, found.get("format"))
        return found

    def _start_anew(self, config: Mapping[str, Any]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self.lock()
        write_file(self.path / "config.json", json.dumps(config, indent=1, sort_keys=True).encode())
        (self.path / "snapshots").mkdir(exist_ok=True)
        (self.path / "run.jsonl").unlink(missing_ok=True)
        self._write_metrics(Position())

    def lock(self) -> None:
        """Keep other processes from training here until `close`, or until this process dies."""
        if self._lock is not None:
            return
        file = (self.path / "lock").open("ab")
        give_up = time.monotonic() + _PATIENCE
        while not take(file.fileno(), without_locks=True):
            if time.monotonic() > give_up:
                file.close()
                raise ArtifactError(
                    f"another process is training in `{self.path}`", hint="wait for it, or choose another folder"
                )
            time.sleep(0.1)
        self._lock = file

    def close(self) -> None:
        """Let others train here."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _last(self) -> Position | None:
        if not (self.path / "last.json").is_file():
            left = [p for p in sorted((self.path / "snapshots").glob("*")) if is_complete(p, "snapshot")]
            if not left:
                return None
            note(f"`{self.path}` has no last.json: going on from its newest snapshot, {left[-1].name}")
            self._point("last", {"snapshot": left[-1].name})
        self.check("last")
        state = _json(self._snapshot(self.path / "last.json") / "state.json")
        return Position(**{name: x for name, x in state.items() if name not in _BESIDE})

    def back_to(self, position: Position) -> None:
        """Let metrics.jsonl and best.json be as they were at a position."""
        self._write_metrics(position)
        if position.best is not None and "valid" in position.best:
            self._point_at_best(position.best)

    def check(self, which: str) -> int:
        """Find the snapshot that last.json or best.json names whole; in how many files its tables are."""
        snapshot = self._snapshot(self.path / f"{which}.json")
        read_artifact(snapshot, "snapshot")
        state = _json(snapshot / "state.json")
        if state["format"] != FORMAT:
            raise _of_another_format(snapshot, state["format"])
        return int(state["shards"])

    def read(self, which: str, group: str) -> dict[str, Tensor]:
        """The tensors of one file of a snapshot."""
        return _tensors(self._snapshot(self.path / f"{which}.json") / f"{group}.safetensors")

    def _snapshot(self, pointer: Path) -> Path:
        name = _json(pointer).get("snapshot")
        if not isinstance(name, str):
            raise ArtifactError(f"`{pointer}` names no snapshot", hint="remove the run's folder and train anew")
        return self.path / "snapshots" / name

    def save(self, position: Position, groups: Groups, *, world: int, shards: int, best: bool) -> None:
        """Write a snapshot; the last and the best stay, others go."""
        name = _name(position.done)
        with write_artifact(self.path / "snapshots" / name, "snapshot", overwrite=True) as draft:
            for group, tensors in groups:
                _save(tensors or {}, draft.path / f"{group}.safetensors")
            state = {"format": FORMAT, "world": world, "shards": shards, **asdict(position)}
            (draft.path / "state.json").write_text(json.dumps(state, indent=1, sort_keys=True))
        if best and position.best is not None:
            self._point_at_best(position.best)
        self._point("last", {"snapshot": name})
        self._write_metrics(position)
        pointers = [self.path / "last.json", self.path / "best.json"]
        kept = {self._snapshot(pointer) for pointer in pointers if pointer.is_file()}
        for old in (self.path / "snapshots").iterdir():
            if old not in kept:
                shutil.rmtree(old)

    def _point_at_best(self, line: Mapping[str, Any]) -> None:
        self._point("best", {"snapshot": _name(line["step"]), **line})

    def _point(self, which: str, content: Mapping[str, Any]) -> None:
        write_file(self.path / f"{which}.json", json.dumps(content, sort_keys=True).encode())

    def _write_metrics(self, position: Position) -> None:
        lines = "".join(json.dumps(line, sort_keys=True) + "\n" for line in position.history)
        write_file(self.path / "metrics.jsonl", lines.encode())

    def log(self, event: str, **facts: str | float | int | bool | None) -> None:
        """One line of run.jsonl."""
        line = json.dumps({"event": event, "time": round(time.time(), 3), **facts})
        with (self.path / "run.jsonl").open("a") as file:
            file.write(line + "\n")

    def finish(self, model: nn.Module, step: str | None) -> None:
        """Write the model and the manifest that says the run is finished."""
        save(model, self.path / "model")
        files = ["config.json", "metrics.jsonl"]
        files += sorted(p.relative_to(self.path).as_posix() for p in (self.path / "model").rglob("*") if p.is_file())
        seal(self.path, "run", parents={}, extra={"step": step}, files=files)

    @property
    def finished(self) -> bool:
        """Whether the run ended and everything it left is whole."""
        return is_complete(self.path, "run")

    def model_weights(self) -> dict[str, Tensor]:
        """The weights of the finished run's model."""
        read_manifest(self.path, "run")
        return _tensors(self.path / "model" / "model.safetensors")


def _of_another_format(path: Path, there: object) -> ArtifactError:
    """What is refused, as it could not go on as it began."""
    return ArtifactError(
        f"`{path}` has format {there}, this version reads {FORMAT}",
        hint="end the run with the version that began it, or train anew in another folder; a finished run's `model` "
        "folder is read as ever",
    )


def _name(done: int) -> str:
    """The name of the snapshot after so many steps."""
    return f"{done:08d}"


def save(model: nn.Module, folder: str | Path) -> None:
    """Write a model: one of falconet's as `load_model` reads it, any other module as its weights alone."""
    if isinstance(model, Model):
        save_model(model, folder)
        return
    with write_artifact(folder, "weights", overwrite=True) as draft:
        _save(plain_keys(model.state_dict()), draft.path / "model.safetensors")


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    # A clone each: safetensors refuses views of shared memory.
    save_file({name: x.detach().cpu().contiguous().clone() for name, x in tensors.items()}, path)


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        found: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ArtifactError(f"`{path}` is not a whole safetensors file: {error}") from error
    return found


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, OSError) as error:
        raise ArtifactError(f"`{path}` is damaged: {error}", hint="remove the run's folder and train anew") from error
    if not isinstance(found, dict):
        raise ArtifactError(f"`{path}` is damaged: no JSON object", hint="remove the run's folder and train anew")
    return found


def _differences(there: Any, here: Any, where: str = "") -> list[str]:
    """`key = there, here given` of everything that is not the same."""
    if isinstance(there, dict) and isinstance(here, dict):
        keys = [k for k in here if k in there] + sorted(there.keys() ^ here.keys())
        return [line for k in keys for line in _differences(there.get(k), here.get(k), f"{where}.{k}" if where else k)]
    if there == here:
        return []
    return [f"{where} = {_short(there)} there, {_short(here)} given"]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
