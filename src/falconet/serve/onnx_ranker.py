"""The ranker of a bundle as an ONNX model, run by ONNX Runtime in the model's place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from falconet.batch import Batch
from falconet.errors import ArtifactError
from falconet.models.base import Model
from falconet.models.programs import Part, compare
from falconet.models.store import load_model
from falconet.nn.export import export, flat
from falconet.nn.onnx import OnnxProgram, to_onnx
from falconet.serve.engine import Engine
from falconet.serve.probes import probe_query

FILE = "ranker.onnx"
_ANEW = '`[bundle] ranker = "torch"` does without it; or build the bundle again with this version'


class OnnxRanker:
    """Scores rows as the model does that it was written from."""

    def __init__(self, file: Path) -> None:
        """Raises ConfigError where onnxruntime is not installed."""
        self.program = OnnxProgram(file)

    def __call__(self, rows: Batch) -> Tensor:
        return self.program(flat(rows))


def write_ranker(ranker: Model, file: Path) -> None:
    """Write a ranker as an ONNX model. Raises ConfigError where it cannot be one, and where a package is missing."""
    part = Part("ranker", ranker, "forward")
    example = part.batch(3, only=part.reads())
    file.write_bytes(to_onnx(export(ranker, example), tuple(flat(example))))


def onnx_difference(path: Path, engine: Engine, requests: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """How far the ONNX model of the bundle at `path` lies from its ranker, over the rows of the probes: plain values.

    None where the ranker itself answers. Raises ArtifactError where the distance is above `models.programs.BOUND`.
    """
    if not isinstance(engine.ranker, OnnxRanker):
        return None
    rows = [engine.ranker_rows(probe_query(engine, request)) for request in requests]
    part = Part("ranker", load_model(path / "ranker"), "forward")
    try:
        largest, bound = compare(part, engine.ranker.program, rows)
    except Exception as error:  # those of ONNX Runtime share no base class
        raise ArtifactError(
            f"`{path / FILE}` is another model, which cannot be asked what the ranker is: {error}", hint=_ANEW
        ) from error
    if not largest <= bound:
        raise ArtifactError(
            f"`{path / FILE}` scores {largest:.2g} away from the ranker it was made of, the bound is {bound:.2g}",
            hint=_ANEW,
        )
    return {"largest_difference": largest, "bound": bound, "rows": sum(batch.rows for batch in rows)}
