"""Unpacking a zip of someone else's: every CRC checked, nothing written outside the target folder."""

from __future__ import annotations

import re
import shutil
import stat
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from falconet.datasets.container import damaged, open_member
from falconet.datasets.fetch import CHUNK, advance_bytes
from falconet.errors import ConfigError, DataError
from falconet.progress import progress

_IGNORED = ("__MACOSX/", ".DS_Store")


def unpack(archive: Path, folder: Path) -> None:
    """Write the files of a zip into the existing `folder`; a single folder around them all is left out.

    Raises DataError where the zip is damaged or a name leads outside, ConfigError where the disk has no room. What was
    written by then stays: unpack into a folder that is thrown away after an error.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            targets = _targets(opened, archive)
            total = sum(info.file_size for info in targets.values())
            _need_room(folder, total)
            with progress(f"unpacking {archive.stem}", total=total >> 10, unit="KiB") as task:
                done = 0
                for name, info in targets.items():
                    path = folder / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with open_member(opened, info.filename) as source, path.open("wb") as target:
                        while chunk := source.read(CHUNK):
                            target.write(chunk)
                            advance_bytes(task, done, len(chunk))
                            done += len(chunk)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise damaged(str(archive), error) from error
    except OSError as error:
        raise ConfigError(f"cannot unpack below `{folder.parent}`: {error.strerror or error}") from error


def _targets(opened: zipfile.ZipFile, archive: Path) -> dict[str, zipfile.ZipInfo]:
    """Where each file goes, as a path relative to the target folder."""
    files = [i for i in opened.infolist() if not i.is_dir() and not i.filename.startswith(_IGNORED)]
    files = [i for i in files if PurePosixPath(i.filename).name != ".DS_Store"]
    for info in files:
        # `orig_filename` is the name as the zip has it; zipfile may have cut or changed the other.
        names = {info.filename, info.orig_filename}
        if any(_leads_outside(name) for name in names) or stat.S_ISLNK(info.external_attr >> 16):
            raise DataError(
                f"`{archive}` holds `{info.orig_filename}`, which leads out of its folder",
                hint="this is no zip of GroupLens; do not unpack it",
            )
    tops = {info.filename.partition("/")[0] for info in files}
    around = len(tops) == 1 and all("/" in info.filename for info in files)
    targets = {info.filename.partition("/")[2] if around else info.filename: info for info in files}
    if len({name.lower() for name in targets}) < len(files):
        raise DataError(f"`{archive}` holds two files of one name")
    return targets


def _leads_outside(name: str) -> bool:
    return (
        name.startswith("/")
        or "\\" in name
        or "\0" in name
        or re.match(r"[A-Za-z]:", name) is not None
        or ".." in name.split("/")
    )


def _need_room(folder: Path, total: int) -> None:
    free = shutil.disk_usage(folder).free
    if total > free:
        raise ConfigError(
            f"`{folder.parent}` has {free / 1e6:,.0f} MB free, the files need {total / 1e6:,.0f} MB",
            hint="make room, or name another folder with --out",
        )
