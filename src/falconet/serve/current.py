"""Which of several bundles is served: `current.json` in the folder that holds them, replaced whole or not at all.

A plain file and no link, so that it works on every system and in a folder that is copied to another machine.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from falconet.config import from_plain, to_plain
from falconet.errors import ArtifactError, ConfigError
from falconet.io.artifact import MANIFEST, read_artifact, write_file

FORMAT = 1
POINTER = "current.json"
BUNDLES = "bundles"  # in a working folder
_BUNDLE = "bundle"  # likewise: what `falconet run` makes, and what manifests call it


@dataclass(frozen=True, kw_only=True)
class Current:
    """`bundle`: the folder, beside the file. `before`: those that were current before it, the last one last.

    `newest`: the number of the newest one that there was. `root`: the last one that is a copy of the working folder's
    own bundle, whose manifest has the hash `root_sha256`.
    """

    bundle: str
    newest: int
    root: str
    root_sha256: str
    before: tuple[str, ...] = ()
    format: int = FORMAT

    def __post_init__(self) -> None:
        for name in (self.bundle, self.root, *self.before):
            if name in ("", ".", "..") or Path(name).name != name:
                raise ConfigError(f"a bundle is called {name!r}", hint="a folder beside the file")


def read_current(folder: str | Path) -> Current | None:
    """What a folder of bundles says is current; None for a folder without such a file.

    Raises ArtifactError for a file that is damaged, of another format, or not to be read.
    """
    path = Path(folder) / POINTER
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ArtifactError(f"`{path}` cannot be read: {error.strerror}", hint="it names a folder beside it") from error
    try:
        plain = json.loads(data)
    except ValueError as error:
        raise ArtifactError(f"`{path}` is damaged: {error}", hint="it names a folder beside it") from error
    if isinstance(plain, dict) and plain.get("format") != FORMAT:
        raise ArtifactError(f"`{path}` has format {plain.get('format')}, this version reads {FORMAT}")
    try:
        return from_plain(Current, plain, where=f"`{path}`")
    except ConfigError as error:
        raise ArtifactError(str(error.args[0]), hint=error.hint) from error


def write_current(folder: str | Path, current: Current) -> None:
    """Make a bundle current. Whoever reads meanwhile sees the one before or this one."""
    write_file(Path(folder) / POINTER, json.dumps(to_plain(current), indent=1, sort_keys=True).encode())


def bundle_folder(path: str | Path) -> Path:
    """The bundle that a path stands for: itself, or what is current in a folder of bundles or a working folder."""
    path = Path(path)
    if (path / MANIFEST).is_file():
        return path
    for folder in (path, path / BUNDLES):
        if (current := read_current(folder)) is not None:
            return folder / current.bundle
    return path / _BUNDLE if (path / _BUNDLE / MANIFEST).is_file() else path


def working_folder(path: str | Path) -> Path:
    """The folder beside a bundle's, in which what is served with it has its place, for any path of `bundle_folder`."""
    path = Path(path).absolute()
    if (path / POINTER).is_file():
        return path.parent
    if (path.parent / POINTER).is_file():
        return path.parent.parent
    return path if bundle_folder(path) != path else path.parent


def rollback(path: str | Path) -> Current:
    """Make the bundle before current again, in a working folder or a folder of bundles; what is current now.

    Bundles that are gone are passed over. Raises ArtifactError where there is none, or where it is damaged.
    """
    path = Path(path)
    folder = path if (path / POINTER).is_file() else path / BUNDLES
    current = read_current(folder)
    if current is None:
        raise ArtifactError(f"no bundle to go back to in `{path}`", hint="`falconet run --refresh` makes bundles there")
    left = [name for name in current.before if (folder / name).is_dir()]
    if not left:
        raise ArtifactError(f"`{folder / current.bundle}` is the oldest bundle that is left", hint="it stays current")
    read_artifact(folder / left[-1], _BUNDLE)
    back = replace(current, bundle=left[-1], before=tuple(left[:-1]))
    write_current(folder, back)
    return back
