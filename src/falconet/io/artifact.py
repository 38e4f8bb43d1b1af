"""Folders that are whole or not there: written aside, fsynced, renamed, and read only after every hash fits."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from falconet.errors import ArtifactError, FalconetError

FORMAT = 1
MANIFEST = "manifest.json"
_drafts: set[Path] = set()  # folders this process is writing
_BASE_KEYS = {"kind", "format", "falconet", "files", "parents"}


@dataclass(frozen=True)
class Manifest:
    """What a folder says of itself. `sha256` is the hash of manifest.json, hence of everything in the folder."""

    kind: str
    files: Mapping[str, Mapping[str, Any]]
    parents: Mapping[str, str]
    extra: Mapping[str, Any]
    sha256: str


@dataclass
class Draft:
    """A folder being written. Put files below `path`; set the rest any time before the end.

    `unlisted`: files that the manifest leaves out, as equal work may make them unequal.
    """

    path: Path
    parents: dict[str, str] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    unlisted: list[str] = field(default_factory=list)


@contextmanager
def write_artifact(
    path: str | Path,
    kind: str,
    *,
    parents: Mapping[str, str] | None = None,
    extra: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Iterator[Draft]:
    """Write a folder aside and rename it when the block ends well. An exception leaves what was there before.

    What a killed writer of the same folder left behind is removed. Raises ArtifactError when `path` exists and
    `overwrite` is false, before anything is written.
    """
    path = Path(path).absolute()
    settle(path)
    _sweep(path)
    if path.exists() and not overwrite:
        raise ArtifactError(f"`{path}` exists already", hint="choose another folder, or overwrite=True")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Draft(
        path.parent / f".tmp-{path.name}-{os.getpid()}-{uuid.uuid4().hex[:8]}",
        dict(parents or {}),
        dict(extra or {}),
    )
    draft.path.mkdir()
    _drafts.add(draft.path)
    try:
        yield draft
        files = [name for name in _files(draft.path) if name not in draft.unlisted]
        seal(draft.path, kind, parents=draft.parents, extra=draft.extra, files=files)
        _replace(draft.path, path)
    finally:
        shutil.rmtree(draft.path, ignore_errors=True)
        _drafts.discard(draft.path)


def seal(
    folder: Path,
    kind: str,
    *,
    parents: Mapping[str, str],
    extra: Mapping[str, Any],
    files: list[str] | None = None,
) -> Manifest:
    """Hash and fsync the files of a folder (all, or the named ones) and write its manifest, last and atomically."""
    if clash := _BASE_KEYS & set(extra):
        raise ArtifactError(f"a manifest's own key `{min(clash)}` cannot be set by hand")
    names = _files(folder) if files is None else files
    listed = {
        name: {"sha256": _fsync_and_hash(folder / name), "bytes": (folder / name).stat().st_size} for name in names
    }
    content = {
        "kind": kind,
        "format": FORMAT,
        "falconet": falconet_version(),
        "files": listed,
        "parents": dict(parents),
        **extra,
    }
    write_file(folder / MANIFEST, json.dumps(content, indent=1, sort_keys=True).encode())
    return read_manifest(folder, kind)


def _files(folder: Path) -> list[str]:
    """The files of a folder, its manifest apart, in order."""
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() and p != folder / MANIFEST)


def read_manifest(path: str | Path, kind: str | None = None) -> Manifest:
    """The manifest alone, without looking at the files."""
    path = Path(path)
    settle(path)
    try:
        data = (path / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ArtifactError(
            f"no {kind or 'falconet folder'} at `{path}`", hint=f"`{path / MANIFEST}` is missing"
        ) from error
    try:
        content = json.loads(data)
        found, fmt, files, parents = content["kind"], content["format"], content["files"], content["parents"]
        for entry in files.values():
            entry["sha256"], entry["bytes"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"`{path / MANIFEST}` is damaged: {error!r}") from error
    if fmt != FORMAT:
        raise ArtifactError(
            f"`{path}` has format {fmt}, this version reads {FORMAT}",
            hint=f"it was written by falconet {content.get('falconet')}",
        )
    if kind is not None and found != kind:
        raise ArtifactError(f"`{path}` is a {found}, not a {kind}")
    extra = {k: v for k, v in content.items() if k not in _BASE_KEYS}
    return Manifest(found, files, parents, extra, hashlib.sha256(data).hexdigest())


def read_artifact(path: str | Path, kind: str | None = None) -> Manifest:
    """The manifest, after every file's size and hash have been found right."""
    manifest = read_manifest(path, kind)
    for name, entry in manifest.files.items():
        file = Path(path) / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ArtifactError(f"`{path}` lists a file outside itself: `{name}`")
        if not file.is_file():
            raise ArtifactError(f"`{file}` is missing")
        if file.stat().st_size != entry["bytes"]:
            raise ArtifactError(
                f"`{file}` has {file.stat().st_size} bytes, its manifest says {entry['bytes']}",
                hint="the file is truncated or was changed; write the folder again",
            )
        if _hash(file) != entry["sha256"]:
            raise ArtifactError(
                f"`{file}` is not what its manifest says",
                hint="the file was changed or damaged; write the folder again",
            )
    return manifest


def is_complete(path: str | Path, kind: str, **extra: Any) -> bool:
    """Whether a whole folder of that kind is there whose manifest has these extra keys."""
    try:
        manifest = read_artifact(path, kind)
    except FalconetError:
        return False
    return all(manifest.extra.get(key) == value for key, value in extra.items())


def write_file(path: str | Path, data: bytes) -> None:
    """Write one file aside, fsync it, rename it."""
    path = Path(path)
    aside = path.with_name(f".tmp-{path.name}-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    _fsync_folder(path.parent)


def clean(folder: str | Path) -> None:
    """Remove what killed writers left in a folder. Call only where no other process is writing."""
    for left in Path(folder).glob(".tmp-*"):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def settle(path: Path) -> None:
    """Finish a replacement that was killed between its two renames: the old folder comes back."""
    old = _old(path)
    if old.exists():
        if path.exists():
            shutil.rmtree(old)
        else:
            old.rename(path)


def _sweep(path: Path) -> None:
    """Remove drafts of this folder whose writer is gone: a process that has ended, or an earlier one of our number."""
    for left in path.parent.glob(f".tmp-{glob.escape(path.name)}-*"):
        found = re.fullmatch(r"-(\d+)-[0-9a-f]{8}", left.name.removeprefix(f".tmp-{path.name}"))
        if found and left.is_dir() and left not in _drafts and not _runs(int(found[1])):
            shutil.rmtree(left, ignore_errors=True)


def _runs(pid: int) -> bool:
    """Whether another process with this number runs. On Windows, where one cannot ask without harm: always."""
    if pid == os.getpid():
        return False
    if os.name == "nt":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def falconet_version() -> str:
    try:
        return version("falconet")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "0.1.0"


def _old(path: Path) -> Path:
    return path.parent / f".old-{path.name}"


def _replace(new: Path, path: Path) -> None:
    try:
        if path.exists():
            path.rename(_old(path))
        new.rename(path)
    except OSError as error:
        settle(path)
        raise ArtifactError(
            f"`{path}` cannot be put in place: {error}", hint="has another program a file of the old folder open?"
        ) from error
    _fsync_folder(path.parent)
    shutil.rmtree(_old(path), ignore_errors=True)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fsync_and_hash(path: Path) -> str:
    with path.open("rb+") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    _fsync_folder(path.parent)
    return digest


def _fsync_folder(path: Path) -> None:
    if os.name == "nt":  # Windows cannot open a folder
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
