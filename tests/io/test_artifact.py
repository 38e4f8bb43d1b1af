"""Artefact folders are whole or not there, and are read only after every hash fits."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from falconet.errors import ArtifactError
from falconet.io import artifact
from falconet.io.artifact import (
    clean,
    is_complete,
    read_artifact,
    read_manifest,
    seal,
    settle,
    write_artifact,
    write_file,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with write_artifact(tmp_path / "box", "box", parents={"data": "ab"}, extra={"step": 3}) as draft:
        (draft.path / "a.txt").write_text("alpha")
        (draft.path / "deep").mkdir()
        (draft.path / "deep" / "b.bin").write_bytes(bytes(1000))
    return tmp_path / "box"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_written_is_read(folder: Path) -> None:
    manifest = read_artifact(folder, "box")
    assert manifest.kind == "box"
    assert list(manifest.files) == ["a.txt", "deep/b.bin"]
    assert manifest.files["a.txt"] == {
        "bytes": 5,
        "sha256": "8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8",
    }
    assert (manifest.parents, manifest.extra) == ({"data": "ab"}, {"step": 3})
    assert names(folder.parent) == ["box"]


def test_the_manifest_s_hash_follows_every_byte(folder: Path, tmp_path: Path) -> None:
    hashes = {read_manifest(folder).sha256}
    for i, text in enumerate(("alpha", "alphb")):
        with write_artifact(tmp_path / str(i), "box", parents={"data": "ab"}, extra={"step": 3}) as draft:
            (draft.path / "a.txt").write_text(text)
            (draft.path / "deep").mkdir()
            (draft.path / "deep" / "b.bin").write_bytes(bytes(1000))
        hashes.add(read_manifest(tmp_path / str(i)).sha256)
    assert len(hashes) == 2


def test_a_folder_can_be_moved(folder: Path, tmp_path: Path) -> None:
    folder.rename(tmp_path / "elsewhere")
    assert read_artifact(tmp_path / "elsewhere", "box").extra == {"step": 3}


def test_parents_and_extra_can_be_set_in_the_block(tmp_path: Path) -> None:
    with write_artifact(tmp_path / "box", "box") as draft:
        draft.extra["rows"] = 7
        draft.parents["data"] = "cd"
    manifest = read_artifact(tmp_path / "box")
    assert (manifest.extra, manifest.parents) == ({"rows": 7}, {"data": "cd"})


def test_a_key_of_the_manifest_cannot_be_extra(tmp_path: Path) -> None:
    with (
        pytest.raises(ArtifactError, match="`files` cannot be set by hand"),
        write_artifact(tmp_path / "box", "box", extra={"files": []}),
    ):
        pass
    assert names(tmp_path) == []


def test_a_changed_byte_is_found(folder: Path) -> None:
    data = bytearray((folder / "deep" / "b.bin").read_bytes())
    data[500] ^= 1
    (folder / "deep" / "b.bin").write_bytes(data)
    with pytest.raises(ArtifactError, match=r"b.bin` is not what its manifest says[\s\S]*write the folder again"):
        read_artifact(folder)


def test_a_truncated_file_is_found(folder: Path) -> None:
    (folder / "deep" / "b.bin").write_bytes(bytes(999))
    with pytest.raises(ArtifactError, match=r"b.bin` has 999 bytes, its manifest says 1000[\s\S]*truncated"):
        read_artifact(folder)


def test_a_missing_file_is_found(folder: Path) -> None:
    (folder / "a.txt").unlink()
    with pytest.raises(ArtifactError, match=r"a.txt` is missing"):
        read_artifact(folder)


def test_a_missing_folder_and_a_folder_of_others_have_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"no workflow at `.*nowhere`[\s\S]*manifest.json` is missing"):
        read_artifact(tmp_path / "nowhere", "workflow")
    with pytest.raises(ArtifactError, match="no falconet folder at"):
        read_artifact(tmp_path)


def test_another_kind_is_refused(folder: Path) -> None:
    with pytest.raises(ArtifactError, match="is a box, not a workflow"):
        read_artifact(folder, "workflow")


@pytest.mark.parametrize("version", [0, 2, "1"])
def test_another_format_is_refused_with_both_numbers(folder: Path, version: object) -> None:
    content = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**content, "format": version, "falconet": "9.9"}))
    with pytest.raises(ArtifactError, match=rf"has format {version}, this version reads 1[\s\S]*falconet 9.9"):
        read_artifact(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"kind": "box"}', "null"])
def test_a_damaged_manifest_is_refused(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_text(text)
    with pytest.raises(ArtifactError, match=r"manifest.json` is damaged"):
        read_artifact(folder)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname"])
def test_a_manifest_cannot_point_outside(folder: Path, name: str) -> None:
    content = json.loads((folder / "manifest.json").read_text())
    content["files"] = {name: {"bytes": 1, "sha256": "0"}}
    (folder / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(ArtifactError, match="lists a file outside itself"):
        read_artifact(folder)


def test_an_existing_folder_is_refused_before_anything_is_written(folder: Path) -> None:
    with pytest.raises(ArtifactError, match=r"box` exists already[\s\S]*overwrite=True"), write_artifact(folder, "box"):
        raise AssertionError("the block must not run")
    assert names(folder.parent) == ["box"]


def test_an_overwritten_folder_has_no_old_files(folder: Path) -> None:
    with write_artifact(folder, "box", overwrite=True) as draft:
        (draft.path / "c.txt").write_text("new")
    assert names(folder) == ["c.txt", "manifest.json"]
    assert names(folder.parent) == ["box"]


def test_an_exception_leaves_what_was_there(folder: Path) -> None:
    def fail() -> None:
        with write_artifact(folder, "box", overwrite=True) as draft:
            (draft.path / "a.txt").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert read_artifact(folder).files["a.txt"]["bytes"] == 5
    assert names(folder.parent) == ["box"]


KILLED = """
import os, signal, sys
from pathlib import Path
from falconet.io import artifact

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

place, when = Path(sys.argv[1]), sys.argv[2]
if when == "between":
    rename = Path.rename
    def stop(self, target):
        if self.name.startswith(".tmp-"):
            die()
        return rename(self, target)
    Path.rename = stop
if when == "after":
    artifact._fsync_folder = lambda path: die() if path == place.parent else None
with artifact.write_artifact(place, "box", overwrite=True) as draft:
    (draft.path / "a.txt").write_text("other")
    if when == "inside":
        die()
"""


def kill(folder: Path, when: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder), when], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="SIGKILL is of POSIX")
@pytest.mark.parametrize(("when", "text"), [("inside", "alpha"), ("between", "alpha"), ("after", "other")])
def test_a_kill_leaves_the_old_folder_or_the_new_one(folder: Path, when: str, text: str) -> None:
    kill(folder, when)
    read_artifact(folder, "box")
    assert (folder / "a.txt").read_text() == text
    with write_artifact(folder, "box", overwrite=True) as draft:
        (draft.path / "a.txt").write_text("third")
    assert names(folder.parent) == ["box"]


@pytest.mark.parametrize("refused", ["old", "new"])
def test_a_folder_that_cannot_be_moved_is_an_error_and_the_old_one_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """As on Windows, where a program has a file of it open."""
    real = Path.rename

    def rename(path: Path, target: Path) -> Path:
        if path.name.startswith(".tmp-" if refused == "new" else folder.name):
            raise PermissionError(13, "Access is denied")
        return real(path, target)

    monkeypatch.setattr(Path, "rename", rename)
    with (
        pytest.raises(ArtifactError, match=r"box` cannot be put in place: .*Access is denied[\s\S]*open\?"),
        write_artifact(folder, "box", overwrite=True) as draft,
    ):
        (draft.path / "a.txt").write_text("other")
    assert names(folder.parent) == ["box"]
    assert (folder / "a.txt").read_text() == "alpha"
    read_artifact(folder, "box")


def test_settle_brings_the_old_folder_back_or_removes_it(folder: Path) -> None:
    old = folder.with_name(".old-box")
    folder.rename(old)
    settle(folder)
    assert names(folder.parent) == ["box"]
    old.mkdir()
    settle(folder)
    assert names(folder.parent) == ["box"]
    read_artifact(folder)


def test_only_drafts_of_the_same_folder_whose_writer_is_gone_are_removed(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    lost = [f".tmp-box-{gone.pid}-0123abcd", f".tmp-box-{os.getpid()}-0123abcd"]
    kept = [
        f".tmp-box-{os.getppid()}-0123abcd",  # its writer runs
        f".tmp-box-2-{gone.pid}-0123abcd",  # of a folder `box-2`
        f".tmp-other-{gone.pid}-0123abcd",
        ".tmp-box-notes",
    ]
    for name in lost + kept:
        (tmp_path / name).mkdir()
    with write_artifact(tmp_path / "box", "box") as outer:
        with pytest.raises(ArtifactError, match="never"), write_artifact(tmp_path / "box", "box"):
            raise ArtifactError("never")
        assert outer.path.is_dir()
    assert names(tmp_path) == sorted(["box", *kept])


def test_clean_removes_all_drafts(tmp_path: Path) -> None:
    (tmp_path / ".tmp-a-1-00000000").mkdir()
    (tmp_path / ".tmp-file").write_text("x")
    (tmp_path / "kept").write_text("x")
    clean(tmp_path)
    assert names(tmp_path) == ["kept"]


def test_is_complete_wants_kind_hashes_and_keys(folder: Path) -> None:
    assert is_complete(folder, "box")
    assert is_complete(folder, "box", step=3)
    assert not is_complete(folder, "box", step=4)
    assert not is_complete(folder, "workflow")
    (folder / "a.txt").write_text("alphb")
    assert not is_complete(folder, "box", step=3)


def test_some_files_of_a_folder_can_be_sealed_in_place(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alpha")
    (tmp_path / "log.txt").write_text("grows")
    seal(tmp_path, "run", parents={}, extra={}, files=["a.txt"])
    (tmp_path / "log.txt").write_text("has grown")
    assert list(read_artifact(tmp_path, "run").files) == ["a.txt"]


def test_a_file_is_replaced_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    write_file(path, b"one")

    def fail(_: int) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="disk full"):
            write_file(path, b"two")
    assert path.read_bytes() == b"one"
    assert names(tmp_path) == ["state.json"]
    write_file(path, b"two")
    assert path.read_bytes() == b"two"


def test_files_and_folder_are_on_disk_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def note_fsync(handle: int) -> None:
        seen.append(re.sub(r"-\d+-[0-9a-f]{8}", "", Path(f"/proc/self/fd/{handle}").readlink().name))
        fsync(handle)

    def note_rename(self: Path, target: Path) -> Path:
        seen.append("rename")
        return rename(self, target)

    if not Path("/proc/self/fd").exists():
        pytest.skip("/proc says which file a handle is; it is not here")
    monkeypatch.setattr(artifact.os, "fsync", note_fsync)
    monkeypatch.setattr(Path, "rename", note_rename)
    with write_artifact(tmp_path / "box", "box") as draft:
        (draft.path / "a.txt").write_text("alpha")
    assert seen == ["a.txt", ".tmp-box", ".tmp-manifest.json", ".tmp-box", "rename", tmp_path.name]
