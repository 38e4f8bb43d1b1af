"""Readers for every MovieLens release, from a folder or a zip, and their conversion to Parquet.

data = open_movielens("ml-25m.zip")
data.release, data.movies(), data.ratings()
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from falconet.datasets.container import Container, Folder, containers
from falconet.datasets.layout import KIND, ParquetRelease, rating_parts, remove_leftovers, write_movies, write_ratings
from falconet.datasets.releases import RELEASES
from falconet.datasets.text import read_movies_csv, read_movies_dat, read_movies_u, read_ratings
from falconet.errors import ArtifactError, DataError, FalconetError
from falconet.io.artifact import is_complete, read_manifest, write_artifact
from falconet.progress import note, progress


class MovieLens(Protocol):
    """Ratings and films of one release. Opening reads nothing but names (and a manifest, where there is one)."""

    @property
    def release(self) -> str:
        """`ml-100k`, `ml-25m`, …, `synthetic`, or the kind of files where the folder's name does not say."""
        ...

    def ratings(self) -> Iterator[pa.RecordBatch]:
        """userId, movieId (int32), rating (float32), timestamp (int64, seconds since 1970), in file order.

        Memory is bounded by a block. A Parquet layout may have ids of 64 bits. Raises DataError with file and line
        where a value is wrong.
        """
        ...

    def movies(self) -> pa.Table:
        """movieId (int32), title (string), genres (list of strings, may be empty), year (int32).

        The year is null where the title has none. Raises DataError with file and line where a value is wrong.
        """
        ...

    def fingerprint(self) -> str:
        """SHA-256 of the files that hold ratings and films."""
        ...


@dataclass(frozen=True)
class _Format:
    """One of the three ways in which releases are written as text."""

    kind: str
    files: tuple[str, ...]
    separator: str
    header: bool = False


_FORMATS = (
    _Format("csv", ("ratings.csv", "movies.csv"), ",", header=True),
    _Format("dat", ("ratings.dat", "movies.dat"), "::"),
    _Format("u", ("u.data", "u.item", "u.genre"), "\t"),
)


class TextRelease:
    """A release as GroupLens publishes it."""

    def __init__(self, files: Container, form: _Format) -> None:
        self.files, self.form = files, form
        for name in form.files:
            if name not in files.names:
                raise DataError(f"`{files.where}` has `{form.files[0]}` but no `{name}`", hint=f"it has {_some(files)}")
        # Of the releases with `::`, 10m has tags and is UTF-8, 1m has users and is latin-1.
        self.is_10m = form.kind == "dat" and "tags.dat" in files.names
        known = {"u": "ml-100k", "dat": "ml-10m" if self.is_10m else "ml-1m", "csv": "csv"}
        self.release = files.label if form.kind == "csv" and files.label.startswith("ml-") else known[form.kind]

    def ratings(self) -> Iterator[pa.RecordBatch]:
        return read_ratings(self.files, self.form.files[0], separator=self.form.separator, header=self.form.header)

    def movies(self) -> pa.Table:
        name = self.form.files[1]
        if self.form.kind == "csv":
            return read_movies_csv(self.files, name)
        if self.form.kind == "dat":
            return read_movies_dat(self.files, name, "utf-8" if self.is_10m else "latin-1")
        return read_movies_u(self.files, name, self.form.files[2])

    def fingerprint(self) -> str:
        return self.files.fingerprint(list(self.form.files))


def open_movielens(path: str | Path) -> MovieLens:
    """The data set in a folder or zip, or in the one folder of it that has rating files.

    Raises DataError where there is none, where there are several, or where a film file is missing.
    """
    path = Path(path)
    here, below = containers(path)
    found = _releases(here) or _releases(below)
    if len(found) == 1:
        return found[0]
    if found:
        raise DataError(f"`{path}` holds {len(found)} data sets", hint="name the folder of the one you mean")
    raise DataError(
        f"no rating files in `{path}`",
        hint="expected ratings.csv, ratings.dat, u.data or ratings/*.parquet; `falconet data get` fetches a release",
    )


def _releases(places: list[Container]) -> list[MovieLens]:
    found: list[MovieLens] = []
    for files in places:
        found += [TextRelease(files, form) for form in _FORMATS if form.files[0] in files.names]
        if isinstance(files, Folder) and rating_parts(files.root):
            found.append(ParquetRelease(files.root))
    return found


def convert(path: str | Path, out: str | Path) -> Path:
    """Write the data set at `path` to the folder `out` in the Parquet layout (layout.py), rows in file order; `out`.

    Nothing is done where `out` holds the same data already; an older conversion is replaced when the new one is whole.
    Raises ArtifactError where `out` is something else, DataError where the data are damaged or without ratings.
    """
    out = Path(out)
    data = open_movielens(path)
    if out.exists() and out.resolve() == Path(path).resolve():
        return out
    source = {"release": data.release, "sha256": data.fingerprint()}
    if is_complete(out, KIND, source=source):
        note(f"{out}: converted already")
        return out
    _check_replaceable(out)
    remove_leftovers(out)
    known = RELEASES.get(data.release)
    extra = {"release": data.release, "source": source}
    with write_artifact(out, KIND, extra=extra, overwrite=True) as draft:
        write_movies(data.movies(), draft.path)
        with progress(f"reading {path}", total=known.ratings if known else None, unit="ratings") as task:

            def counted() -> Iterator[pa.RecordBatch]:
                for batch in data.ratings():
                    task.advance(batch.num_rows)
                    yield batch

            rows = write_ratings(counted(), draft.path / "ratings")
        if not rows:
            raise DataError(f"`{path}` has no ratings", hint="its rating file has no lines")
    return out


def _check_replaceable(out: Path) -> None:
    """Only an empty folder or one that `convert` wrote may be replaced."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    try:
        read_manifest(out, KIND)
    except FalconetError as error:
        raise ArtifactError(f"`{out}` exists and is no converted data set", hint="choose another folder") from error


def _some(files: Container) -> str:
    names = sorted(files.names)
    return ", ".join(names[:8]) + (" …" if len(names) > 8 else "")
