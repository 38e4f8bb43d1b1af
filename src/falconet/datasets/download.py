"""Getting a MovieLens release: downloaded, checked, unpacked aside, and put in place whole or not at all.

A folder that `download` made has a manifest, so the next call knows that all of it is there. Until then there are only
`NAME.zip.part` (which the next call resumes) and hidden `.tmp-` folders.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from falconet.datasets.fetch import Retry, fetch, fetch_text, forget
from falconet.datasets.layout import remove_leftovers
from falconet.datasets.licence import usage_licence
from falconet.datasets.movielens import open_movielens
from falconet.datasets.releases import BASE_URL, RELEASES, Release, find_release
from falconet.datasets.unpack import unpack
from falconet.errors import ArtifactError, ConfigError, DataError
from falconet.io.artifact import MANIFEST, read_artifact, write_artifact
from falconet.progress import note

KIND = "download"


def download(
    name: str,
    folder: str | Path,
    *,
    base_url: str = BASE_URL,
    source: str | Path | None = None,
    retry: Retry | None = None,
) -> Path:
    """The folder of release `name`, below `folder`, downloaded unless it is there already.

    `source` is a zip or folder that is here already: nothing is downloaded, and a folder is used where it lies.
    The zip's MD5 is checked where GroupLens publishes one, its CRCs always. Raises ConfigError for an unknown name,
    DataError where the download fails or is not what it should be, ArtifactError where something else is in the way.
    """
    release = find_release(name)
    if source is not None and Path(source).is_dir():
        return _use_folder(release, Path(source))
    target = Path(folder) / release.name
    if target.exists():
        return _present(release, target)
    if source is not None:
        if not Path(source).is_file():
            raise DataError(f"no file or folder `{source}`", hint="--from names a zip or a folder that is here already")
        _install(release, Path(source), target, {"url": None, "md5": _md5(Path(source))})
        return target
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot make the folder `{folder}`: {error.strerror}", hint="name another with --out"
        ) from error
    part = target.with_name(f"{release.zip_name}.part")
    url = base_url.rstrip("/") + "/" + release.zip_name
    note(f"{release.name}: about {release.megabytes:,.1f} MB from {url}")
    retry = retry or Retry()
    fetch(url, part, retry=retry)
    try:
        found = _check_md5(url, part, fetch_text(f"{url}.md5", retry=retry))
        _install(release, part, target, {"url": url, "md5": found})
    except _WrongFileError:
        forget(part)
        raise
    forget(part)
    return target


class _WrongFileError(DataError):
    """The file that came is not what it should be; keeping it would make each later call fail the same way."""


def _present(release: Release, target: Path) -> Path:
    if not (target / MANIFEST).is_file():
        raise ArtifactError(
            f"`{target}` exists, and `falconet data get` did not write it",
            hint=f"to use it as it is: `falconet data get {release.name} --from {target}`; otherwise move it away",
        )
    try:
        read_artifact(target, KIND)
    except ArtifactError as error:
        raise ArtifactError(
            f"`{target}` is no longer what was downloaded: {error.args[0]}",
            hint="move it away and run the same command again",
        ) from error
    note(f"{release.name}: {target} is there already and whole, nothing to download")
    return target


def _use_folder(release: Release, source: Path) -> Path:
    _check_release(release, source)
    note(f"{release.name}: {source} is used where it lies")
    _show_licence(release, source)
    return source


def _install(release: Release, archive: Path, target: Path, origin: dict[str, str | None]) -> None:
    """Look whether the zip is the release, unpack it aside, rename."""
    remove_leftovers(target)
    try:
        _check_release(release, archive)
        with write_artifact(target, KIND, extra={"release": release.name, "source": origin}) as draft:
            unpack(archive, draft.path)
    except DataError as error:
        raise _WrongFileError(error.args[0], hint=error.hint) from error
    note(f"{release.name}: {target}")
    _show_licence(release, target)


def _check_release(release: Release, path: Path) -> None:
    """Films can be read, ratings begin well, and the release is the one that was asked for, as far as files tell."""
    data = open_movielens(path)
    if data.release in RELEASES and data.release != release.name:
        raise DataError(f"`{path}` holds {data.release}, not {release.name}", hint=f"ask for {data.release}")
    data.movies()
    if next(iter(data.ratings()), None) is None:
        raise DataError(f"`{path}` has no ratings", hint="its rating file has no lines")


def _show_licence(release: Release, folder: Path) -> None:
    text = usage_licence(folder)
    if text is None:
        note(f"{release.name}: no README with a usage licence in it; see {release.page}")
    else:
        note(f"\n{text}\n")


def _check_md5(url: str, part: Path, published: str | None) -> str:
    found = _md5(part)
    if published is None:
        note("GroupLens publishes no MD5 for it; the CRCs in the zip are checked")
        return found
    wanted = re.search(r"\b[0-9a-fA-F]{32}\b", published)
    if wanted is None:
        raise DataError(
            f"`{url}.md5` holds no MD5: `{published[:60].strip()}`", hint="run the same command again later"
        )
    if found != wanted[0].lower():
        raise _WrongFileError(
            f"`{url}` came with MD5 {found}, and {wanted[0].lower()} is published",
            hint="the download was damaged or the file has changed; it was removed, run the same command again",
        )
    note(f"MD5 {found} is as published")
    return found


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
