"""Bundles of one working folder, one after the other: where each lies, what it was made from, which is current.

`work/bundles/NNNN` is a bundle, `work/refresh/NNNN` the working folder that it was made in. One that `falconet run`
made is a copy of `work/bundle`, and was made in `work` itself.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from falconet.errors import ArtifactError
from falconet.io.artifact import MANIFEST, read_manifest, write_artifact
from falconet.progress import note
from falconet.serve.current import BUNDLES, Current, read_current, write_current

KIND = "bundle"
REFRESH = "refresh"


@dataclass(frozen=True)
class Generation:
    """A bundle and the working folder that it was, or will be, made in."""

    name: str
    bundle: Path
    work: Path


def adopt(work: Path) -> Current:
    """What is current; the working folder's own bundle, where that is another than the one that was copied last."""
    folder = work / BUNDLES
    made = read_manifest(work / KIND, KIND)
    current = read_current(folder)
    if current is not None and current.root_sha256 == made.sha256:
        return current
    newest = 1 if current is None else current.newest + 1
    name = f"{newest:04d}"
    with write_artifact(folder / name, KIND, parents=made.parents, extra=made.extra, overwrite=True) as draft:
        shutil.copytree(work / KIND, draft.path, dirs_exist_ok=True)
        there = (file.relative_to(draft.path).as_posix() for file in draft.path.rglob("*") if file.is_file())
        draft.unlisted += [name for name in there if name not in made.files]
    before = () if current is None else (*current.before, current.bundle)
    current = Current(bundle=name, newest=newest, root=name, root_sha256=made.sha256, before=before)
    write_current(folder, current)
    return current


def follow(work: Path) -> None:
    """Make the bundle that `falconet run` made current, where bundles were refreshed before."""
    if (before := read_current(work / BUNDLES)) is not None and (after := adopt(work)) != before:
        note(f"`{work / BUNDLES / after.bundle}` is current")


def generation_of(work: Path, current: Current, name: str) -> Generation:
    """A bundle and where it was made."""
    made_in = work if name == current.root else work / REFRESH / name
    return Generation(name, work / BUNDLES / name, made_in)


def base_of(work: Path, current: Current) -> Generation:
    """What is current, to go on from. Raises ArtifactError where what it was made from is gone."""
    base = generation_of(work, current, current.bundle)
    if not (base.work / "features" / MANIFEST).is_file():
        raise ArtifactError(
            f"`{base.bundle}` is current, and what it was made from is gone",
            hint="`falconet run` makes everything anew",
        )
    return base


def next_of(work: Path, current: Current) -> Generation:
    """The one that is being made."""
    name = f"{current.newest + 1:04d}"
    return Generation(name, work / BUNDLES / name, work / REFRESH / name)


def decide(work: Path, current: Current, made: Generation, *, accepted: bool, keep: int) -> Current:
    """Take in a new bundle: as the current one, where it is accepted. Old ones beyond `keep` are removed."""
    newest = int(made.name)
    after = replace(current, newest=newest)
    if accepted:
        before = (*current.before, current.bundle)
        after = replace(after, bundle=made.name, before=before[max(len(before) - keep + 1, 0) :])
    write_current(work / BUNDLES, after)
    kept = {after.bundle, made.name, *after.before}
    for folder in (work / BUNDLES, work / REFRESH):
        for old in folder.iterdir():
            if old.is_dir() and old.name not in kept:
                shutil.rmtree(old, ignore_errors=True)
    return after
