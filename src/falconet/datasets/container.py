"""The files of a data set as a folder or a zip holds them: by name, opened for reading bytes."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO

from falconet.errors import DataError

BLOCK_BYTES = 8 << 20


class Container(ABC):
    """Some named files. `label` is what the folder or the zip's inner folder is called."""

    where: str
    label: str
    names: frozenset[str]

    @abstractmethod
    def reading(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """The opened file. Damage to a zip that shows while it is read becomes a DataError with the file's name."""

    def path(self, name: str) -> str:
        """What to call the file in a message."""
        return f"{self.where}/{name}"

    def lines_in_blocks(self, name: str) -> Iterator[bytes]:
        """The file in blocks of about BLOCK_BYTES that end with a line, the last one apart.

        Raises DataError for a line longer than a block, which no text file has.
        """
        with self.reading(name) as file:
            rest = b""
            while block := file.read(BLOCK_BYTES):
                cut = block.rfind(b"\n") + 1
                if not cut and len(rest) + len(block) > BLOCK_BYTES:
                    raise DataError(
                        f"`{self.path(name)}` has a line of more than {BLOCK_BYTES:,} bytes: it is no text file"
                    )
                if cut:
                    yield rest + block[:cut]
                rest = block[cut:] if cut else rest + block
            if rest:
                yield rest

    def fingerprint(self, names: list[str]) -> str:
        """SHA-256 over the names and contents of some files: equal for a folder and its zip."""
        total = hashlib.sha256()
        for name in names:
            one = hashlib.sha256()
            with self.reading(name) as file:
                while block := file.read(BLOCK_BYTES):
                    one.update(block)
            total.update(name.encode() + b"\0" + one.digest())
        return total.hexdigest()


class Folder(Container):
    """The files directly in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.where, self.label = str(root), root.resolve().name
        self.names = frozenset(p.name for p in root.iterdir() if p.is_file())

    def reading(self, name: str) -> AbstractContextManager[IO[bytes]]:
        return (self.root / name).open("rb")


class Zip(Container):
    """The files of one folder inside a zip, `inner` being its name with a slash, or empty."""

    def __init__(self, path: Path, inner: str) -> None:
        self.file = path
        self.where, self.inner = str(path), inner
        self.label = inner.rstrip("/").rsplit("/", 1)[-1] or path.stem
        found = [name.removeprefix(inner) for name in zip_names(path) if name.startswith(inner)]
        self.names = frozenset(name for name in found if name and "/" not in name)

    @contextmanager
    def reading(self, name: str) -> Iterator[IO[bytes]]:
        try:
            with zipfile.ZipFile(self.file) as archive, open_member(archive, self.inner + name) as file:
                yield file
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise damaged(self.path(name), error) from error

    def path(self, name: str) -> str:
        return f"{self.where}!{self.inner}{name}"


def containers(path: Path) -> tuple[list[Container], list[Container]]:
    """The places that may hold the files: `path` itself, and the folders in it."""
    if path.is_dir():
        folders = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
        return [Folder(path)], [Folder(p) for p in folders]
    if path.is_file():
        with path.open("rb") as file:
            start = file.read(2)
        if start != b"PK" and path.suffix.lower() not in (".zip", ".part"):  # .part: a download that is being checked
            raise DataError(f"`{path}` is no zip file", hint=f"name the folder the files are in: `{path.parent}`")
        inner = {name.rpartition("/")[0] for name in zip_names(path)}
        return [Zip(path, "")], [Zip(path, f"{name}/") for name in sorted(inner) if name]
    raise DataError(f"no file or folder `{path}`", hint="`falconet data get ml-latest-small` fetches one")


def zip_names(path: Path) -> list[str]:
    """The names in a zip, folders apart."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [info.filename for info in archive.infolist() if not info.is_dir()]
    except (zipfile.BadZipFile, EOFError) as error:
        raise damaged(str(path), error) from error


def open_member(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    """A file of a zip, whose CRC is checked when it has been read to its end."""
    try:
        return archive.open(name)
    except RuntimeError as error:  # zipfile's word for a password or an unknown way of packing
        raise DataError(
            f"`{archive.filename}` cannot be unpacked: {error}", hint="unzip it yourself and name the folder"
        ) from error


def damaged(where: str, error: Exception) -> DataError:
    return DataError(f"`{where}` is not a whole zip file: {error}", hint="it may be cut short; download it again")
