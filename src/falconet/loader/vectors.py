"""Vectors that were trained elsewhere, looked up by id for each batch.

Shapes: R rows of this process, U distinct rows of the vectors, V vectors of width D.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from falconet.arguments import explained_class
from falconet.batch import Batch, Feature
from falconet.errors import ConfigError, DataError, SchemaError
from falconet.loader.transforms import Place, Transform, feature
from falconet.nn.vector_file import open_vectors
from falconet.schema import Column, Schema, Tag


@explained_class
@dataclass(frozen=True, kw_only=True, eq=False)
class PretrainedVectors(Transform):
    """Adds the vector of each row's id: the feature `name` [R, D], float32.

    `source`: an array [V, D], or a file of one: `.npy`, or `.safetensors` with the tensor's `key` where it holds
    several. Of a file, only what batches ask for is read. Vector i is that of code i, or of `codes[i]`. Ids without a
    vector get zeros; `known` is a name for a bool feature [R] that tells them apart.
    """

    column: str
    source: str | Path | npt.NDArray[np.floating[Any]] | Tensor
    name: str = "vectors"
    key: str | None = None
    codes: npt.NDArray[np.integer[Any]] | Tensor | None = None
    known: str | None = None

    def __call__(self, batch: Batch, place: Place) -> Batch:
        ids = batch.features[self.column]
        assert isinstance(ids, Tensor)  # `settled` saw to it
        row_R = self._rows(ids.cpu().to(torch.int64))
        known_R = (row_R >= 0) & (row_R < len(self._vectors))
        row_U, place_K = torch.unique(row_R[known_R], return_inverse=True)  # the file is read in its order
        vectors_RD = torch.zeros(len(row_R), self._vectors.shape[1])
        vectors_RD[known_R] = _take(self._vectors, row_U).index_select(0, place_K)
        made: dict[str, Feature] = {self.name: vectors_RD.to(ids.device)}
        if self.known is not None:
            made[self.known] = known_R.to(ids.device)
        return replace(batch, features={**batch.features, **made})

    def settled(self, schema: Schema) -> PretrainedVectors:
        column = feature(schema, self.column)
        if column.is_list or not column.dtype.startswith(("int", "uint")):
            raise SchemaError(
                f"column `{self.column}` does not hold one code a row", hint="vectors are looked up by code"
            )
        for name in (self.name, self.known):
            if name in schema:
                raise SchemaError(f"there is a column `{name}` already", hint="another name for what is added")
        if len(self._vectors.shape) != 2 or not _is_float(self._vectors):
            raise DataError(f"the vectors for `{self.column}` are no matrix of floats", hint="one row for each code")
        if self.codes is not None and len(self.codes) != len(self._vectors):
            raise ConfigError(f"{len(self.codes)} codes for {len(self._vectors)} vectors of `{self.column}`")
        return self

    def describe(self, schema: Schema) -> Schema:
        sides = schema[self.column].tags & {Tag.USER, Tag.ITEM, Tag.CONTEXT}
        width = int(self._vectors.shape[1])
        added = [Column(name=self.name, dtype="float32", list=width, tags=sides | {Tag.EMBEDDING})]
        if self.known is not None:
            added.append(Column(name=self.known, dtype="bool", tags=sides))
        return schema + Schema(tuple(added))

    def _rows(self, ids_R: Tensor) -> Tensor:
        """The row of the vectors for each id, or one that is not there."""
        if self._row_of_code is None:
            return ids_R
        inside = (ids_R >= 0) & (ids_R < len(self._row_of_code))
        return torch.where(inside, self._row_of_code[torch.where(inside, ids_R, 0)], -1)

    @cached_property
    def _row_of_code(self) -> Tensor | None:
        if self.codes is None:
            return None
        codes_V = torch.as_tensor(self.codes).to(torch.int64)
        row_of_code = torch.full((int(codes_V.max()) + 1 if len(codes_V) else 1,), -1)
        row_of_code[codes_V] = torch.arange(len(codes_V))
        return row_of_code

    @cached_property
    def _vectors(self) -> npt.NDArray[Any] | Tensor:
        if not isinstance(self.source, str | Path):
            return self.source
        return open_vectors(Path(self.source), self.key)

    def __getstate__(self) -> dict[str, Any]:
        """Another process opens the file itself."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_vectors", "_row_of_code")}


def _take(vectors: npt.NDArray[Any] | Tensor, rows: Tensor) -> Tensor:
    if isinstance(vectors, Tensor):
        return vectors.index_select(0, rows.to(vectors.device)).float().cpu()
    return torch.from_numpy(np.asarray(vectors[rows.numpy()], dtype=np.float32))


def _is_float(vectors: npt.NDArray[Any] | Tensor) -> bool:
    return vectors.is_floating_point() if isinstance(vectors, Tensor) else vectors.dtype.kind == "f"
