"""Models as files that run without falconet: programs of torch.export or ONNX models, each checked against its model.

Beside FILE stand FILE.json, which describes its inputs by name, type and shape, and FILE.example.safetensors, an
example of them with its output.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from falconet.batch import Batch, Feature, Ragged
from falconet.errors import ArtifactError, ColumnNotFoundError, ConfigError, suggest
from falconet.io.artifact import MANIFEST, falconet_version, read_manifest
from falconet.models.base import Model, Retriever
from falconet.models.closed_form import ItemScorer
from falconet.models.example import example_features
from falconet.models.store import KIND as MODEL
from falconet.models.store import load_model
from falconet.nn.export import export, flat
from falconet.nn.onnx import OPSET, OUTPUT, OnnxProgram, needs_onnx, to_onnx
from falconet.schema import Schema, Tag

FORMAT = 1  # of the description
ROWS = (1, 1, 7, 64)  # of the batches that are compared; the lists of the first one are empty
BOUND = 1e-5  # how far an output may lie from the model's, for every unit of the largest of them, at least 1

Kind = Literal["torch.export", "onnx"]
SUFFIXES: dict[Kind, str] = {"torch.export": ".pt2", "onnx": ".onnx"}
Program = Callable[[Mapping[str, Tensor]], Tensor]

_ABOUT = {
    "forward": "what rows are ranked by: a logit, or with the loss `mse` the target itself",
    "user": "the vectors of users; their products with those of items are the scores",
    "item": "the vectors of items",
    "scores": "the scores of all item codes, from 0 on",
}


@dataclass(frozen=True)
class Part:
    """One program of a model: what its method `of` computes."""

    name: str
    model: Model
    of: str

    def __call__(self, batch: Batch) -> Tensor:
        with torch.inference_mode():
            found: Tensor = self.model(batch) if self.of == "forward" else getattr(self.model, self.of)(batch)
        return found

    @property
    def schema(self) -> Schema:
        """The columns that it may read."""
        known = self.model.schema.without_tags(Tag.TARGET, Tag.WEIGHT)
        if self.of == "item":
            return known.select(Tag.ITEM)
        return known.without(known.select(Tag.ITEM).names) if self.of in ("user", "scores") else known

    def batch(self, rows: int, seed: int = 0, *, only: Sequence[str] | None = None, empty: bool = False) -> Batch:
        """Made-up rows, of all columns or the named ones. `empty`: lists of any length have no values."""
        columns = [c for c in self.schema if only is None or c.name in only]
        features = example_features(columns, rows, torch.Generator().manual_seed(seed))
        if empty:
            features = {name: _emptied(x) for name, x in features.items()}
        return Batch.of(features)

    def reads(self) -> tuple[str, ...]:
        """The columns that it does read."""
        batch = self.batch(2)
        seen = _Watched(batch.features)
        whole = self(Batch(seen, {}, batch.rows, batch.rows))
        names = tuple(name for name in batch.features if name in seen.read) or tuple(batch.features)[:1]
        try:  # what was not read by its name, but in passing, is no less read
            alone = self(Batch.of({name: batch.features[name] for name in names}))
        except (ColumnNotFoundError, KeyError):
            return tuple(batch.features)
        return names if torch.equal(alone, whole) else tuple(batch.features)


@dataclass(frozen=True)
class Exported:
    """A file that was written, and how far it lies from the model."""

    file: Path
    part: Part
    difference: float
    bound: float


def parts_of(folder: str | Path) -> dict[str, Part]:
    """The programs that a model folder, a bundle or a work folder has, by name.

    `ranker`; of a retriever called NAME `NAME-user` and `NAME-item`, or where it has no vectors `NAME-scores`; a model
    folder is called after what it is. Raises ArtifactError where there is no model.
    """
    folder = Path(folder)
    found: dict[str, Part] = {}
    for name, path in _models(folder).items():
        model = load_model(path)
        shown = name or ("retriever" if isinstance(model, Retriever) else "ranker")
        if isinstance(model, ItemScorer):
            methods = {f"{shown}-scores": "scores"}
        elif isinstance(model, Retriever):
            methods = {f"{shown}-user": "user", f"{shown}-item": "item"}
        else:
            methods = {shown: "forward"}
        found |= {part: Part(part, model, of) for part, of in methods.items()}
    return found


def export_parts(
    folder: str | Path, file: str | Path, kind: Kind, *, part: str | None = None, overwrite: bool = False
) -> tuple[list[Exported], dict[str, str]]:
    """Write the programs of a folder, or one part of it; what was written, and why parts were left out, by name.

    One program is written to `file`; of several, `model.onnx` becomes `model.PART.onnx`. Either all files are there in
    the end or none. Raises ConfigError for a part that is not there or cannot be exported, and where nothing can be;
    ArtifactError where a file exists, unless `overwrite`, and where a program differs from its model.
    """
    file = Path(file)
    if file.suffix != SUFFIXES[kind]:
        raise ConfigError(f"`{file}` is no name for what is written", hint=f"like model{SUFFIXES[kind]}")
    if kind == "onnx":
        needs_onnx()
    parts = parts_of(folder)
    if part is not None and part not in parts:
        raise ConfigError(f"`{folder}` has no part `{part}`", hint=suggest(part, parts))
    wanted = parts if part is None else {part: parts[part]}
    refused = {name: reason for name, one in wanted.items() if (reason := one.model.no_program.get(one.of))}
    wanted = {name: one for name, one in wanted.items() if name not in refused}
    if not wanted:
        raise ConfigError("; ".join(f"`{name}` cannot be exported: {reason}" for name, reason in refused.items()))
    several = len(parts) > 1 and part is None
    targets = {name: file.with_suffix(f".{name}{file.suffix}") if several else file for name in wanted}
    for target in (path for one in targets.values() for path in _files(one)):
        if target.exists() and not overwrite:
            raise ArtifactError(f"`{target}` exists already", hint="choose another name, or --overwrite")
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".tmp-export-", dir=file.parent))
    try:
        done = [_write(wanted[name], aside / target.name, target, kind) for name, target in targets.items()]
        for target in targets.values():
            for path in _files(target):
                (aside / path.name).replace(path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return done, refused


def _write(part: Part, draft: Path, target: Path, kind: Kind) -> Exported:
    """One program with what stands beside it, as a draft for `target`."""
    names = part.reads()
    example = part.batch(3, only=names)
    try:
        program = export(part.model, example, part.of)
    except RuntimeError as error:  # whatever torch finds
        first = str(error).strip().partition("\n")[0]
        raise ConfigError(f"torch.export cannot trace `{part.name}`, a {type(part.model).__name__}: {first}") from error
    if kind == "onnx":
        draft.write_bytes(to_onnx(program, tuple(flat(example))))
    else:
        torch.export.save(program, draft)
    difference, bound = compare(
        part, load_program(draft, kind), [part.batch(*x, only=names, empty=y) for x, y in _CASES]
    )
    if not difference <= bound:
        raise ArtifactError(
            f"`{part.name}` as a program is {difference:.2g} away from the model, the bound is {bound:.2g}",
            hint="nothing was written",
        )
    inputs, output = flat(example), part(example)
    files = _files(target)
    save_file(
        {**{k: x.contiguous() for k, x in inputs.items()}, OUTPUT: output.contiguous()}, draft.parent / files[2].name
    )
    said = {
        "format": FORMAT,
        "falconet": falconet_version(),
        "model": type(part.model).__name__,
        "part": part.name,
        "gives": _ABOUT[part.of],
        "kind": kind,
        "needs": f"opset {OPSET}" if kind == "onnx" else f"torch {torch.__version__}",
        "inputs": [_described(name, x, part.schema) for name, x in inputs.items()],
        "output": {"name": OUTPUT, "dtype": _dtype(output), "shape": ["rows", *output.shape[1:]]},
        "check": {"rows": sorted({*ROWS}), "largest_difference": difference, "bound": bound},
        "example": files[2].name,
        "sha256": hashlib.sha256(draft.read_bytes()).hexdigest(),
    }
    (draft.parent / files[1].name).write_text(json.dumps(said, indent=1))
    return Exported(target, part, difference, bound)


_CASES = [((rows, seed), seed == 0) for seed, rows in enumerate(ROWS)]


def compare(model: Callable[[Batch], Tensor], program: Program, batches: Sequence[Batch]) -> tuple[float, float]:
    """The largest difference between a model and its program over some batches, and the bound it must keep.

    The difference is infinite where a shape differs or a number is none.
    """
    difference, largest = 0.0, 1.0
    for batch in batches:
        want, got = model(batch), program(flat(batch))
        if got.shape != want.shape or not bool(got.isfinite().all()):
            return float("inf"), BOUND
        if want.numel():
            difference = max(difference, float((got - want).abs().max()))
            largest = max(largest, float(want.abs().max()))
    return difference, BOUND * largest


def load_program(file: str | Path, kind: Kind) -> Program:
    """The program in a file, as a function of a dict of tensors."""
    if kind == "onnx":
        return OnnxProgram(file)
    module = torch.export.load(file).module()

    def run(columns: Mapping[str, Tensor]) -> Tensor:
        with torch.inference_mode():
            found: Tensor = module(dict(columns))
        return found

    return run


def _models(folder: Path) -> dict[str, Path]:
    """The models of a folder by name; a model folder's own has none."""
    if (folder / MANIFEST).is_file():
        kind = read_manifest(folder).kind
        if kind == MODEL:
            return {"": folder}
        if kind == "run":
            return {"": folder / "model"}
        if kind != "bundle":
            raise ArtifactError(
                f"`{folder}` is a {kind}, which has no model", hint="a model, a bundle or a work folder"
            )
        ranker = {"ranker": folder / "ranker"} if (folder / "ranker").is_dir() else {}
        return ranker | {path.name: path for path in sorted((folder / "retrievers").iterdir())}
    found = {path.parent.name: path for path in sorted((folder / "runs").glob("*/model"))}
    if not found:
        raise ArtifactError(f"no model at `{folder}`", hint="a model, a bundle or the `--out` of `falconet run`")
    return found


def _files(target: Path) -> tuple[Path, Path, Path]:
    """A program's file, its description and its example."""
    return target, target.with_name(f"{target.name}.json"), target.with_name(f"{target.name}.example.safetensors")


def _described(name: str, x: Tensor, schema: Schema) -> dict[str, Any]:
    """An input for people and programs: free sizes by name."""
    column, _, part = (name, "", "") if name in schema else name.rpartition(".")
    first = {"values": f"values of {column}", "offsets": "rows + 1"}.get(part, "rows")
    codes = schema[column].cardinality if part != "offsets" else None
    said = {"name": name, "dtype": _dtype(x), "shape": [first, *x.shape[1:]], "column": column}
    return said if codes is None else {**said, "codes": codes}


def _dtype(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def _emptied(feature: Feature) -> Feature:
    if not isinstance(feature, Ragged):
        return feature
    return Ragged(feature.values[:0], torch.zeros_like(feature.offsets))


class _Watched(dict[str, Feature]):
    """Features that remember which of them were asked for by name."""

    def __init__(self, features: Mapping[str, Feature]) -> None:
        super().__init__(features)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Feature:
        self.read.add(name)
        return super().__getitem__(name)
