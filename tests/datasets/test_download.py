"""Downloads against a local server that cuts, refuses, lies and changes its mind."""

from __future__ import annotations

import hashlib
import shutil
import socket
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bad_server import Server
from falconet.datasets import unpack as unpacking
from falconet.datasets.download import download
from falconet.datasets.fetch import Retry, fetch
from falconet.datasets.movielens import open_movielens
from falconet.datasets.releases import RELEASES, find_release
from falconet.datasets.unpack import unpack
from falconet.errors import ArtifactError, ConfigError, DataError, FalconetError
from tiny_movielens import CSV, FORMATS, README, write_folder, write_zip

FAST = Retry(attempts=3, wait=0.0, timeout=5.0)
FILES = {**CSV, "README.txt": README, "noise.bin": hashlib.shake_256(b"x").digest(40_000)}


@pytest.fixture
def archive(tmp_path: Path) -> bytes:
    """The bytes of a zip like ml-25m.zip."""
    return write_zip(tmp_path / "made.zip", FILES, "ml-25m/").read_bytes()


@pytest.fixture
def get(server: Server, archive: bytes, tmp_path: Path) -> Callable[..., Path]:
    """`download` of ml-25m from the server, which has the zip and its MD5."""
    (tmp_path / "made.zip").unlink()
    server.files["ml-25m.zip"] = archive
    server.files["ml-25m.zip.md5"] = f"MD5 (ml-25m.zip) = {hashlib.md5(archive).hexdigest()}\n".encode()  # noqa: S324

    def call(name: str = "ml-25m", **options: Any) -> Path:
        return download(name, tmp_path / "data", base_url=server.url, retry=FAST, **options)

    return call


def statuses(server: Server) -> list[tuple[str, int]]:
    return [(path, status) for path, _, status in server.seen]


def left(tmp_path: Path) -> list[str]:
    return sorted(p.name for p in (tmp_path / "data").iterdir())


def test_a_release_is_downloaded_checked_and_unpacked(
    get: Callable[..., Path], server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = get()
    assert folder == tmp_path / "data" / "ml-25m"
    assert left(tmp_path) == ["ml-25m"]
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "manifest.json"} == FILES
    assert open_movielens(folder).release == "ml-25m"
    assert statuses(server) == [("/ml-25m.zip", 200), ("/ml-25m.zip.md5", 200)]
    said = capsys.readouterr()
    assert said.out == ""
    assert "is as published" in said.err
    assert "* The user may not state or imply any endorsement." in said.err
    assert f"The whole text: {folder / 'README.txt'}" in said.err
    assert "Cite it" not in said.err


def test_nothing_is_downloaded_twice(
    get: Callable[..., Path], server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    get()
    server.seen.clear()
    get("25m")
    assert server.seen == []
    assert "is there already and whole, nothing to download" in capsys.readouterr().err


def test_a_cut_connection_is_resumed(get: Callable[..., Path], server: Server, archive: bytes) -> None:
    server.cut_after = [1000, 20_000]
    get()
    assert [(wanted, status) for _, wanted, status in server.seen] == [
        (None, 200),
        ("bytes=1000-", 206),
        ("bytes=21000-", 206),
        (None, 200),
    ]


def test_another_call_carries_on_where_the_last_one_gave_up(
    get: Callable[..., Path], server: Server, tmp_path: Path
) -> None:
    server.cut_after = [1000, 0, 0, 0]
    with pytest.raises(
        DataError, match=r"cut off after 1,000 of .*\n\nhint: 1,000 bytes are in .* carries on from there"
    ):
        get()
    assert left(tmp_path) == ["ml-25m.zip.part", "ml-25m.zip.part.json"]
    server.seen.clear()
    get()
    assert server.seen[0][1:] == ("bytes=1000-", 206)


def test_a_server_without_ranges_starts_anew(get: Callable[..., Path], server: Server) -> None:
    server.ranges, server.cut_after = False, [1000]
    get()
    assert [status for _, _, status in server.seen] == [200, 200, 200]


def test_a_server_that_always_cuts_is_given_up(get: Callable[..., Path], server: Server, tmp_path: Path) -> None:
    server.ranges, server.cut_after = False, [1000] * 9
    with pytest.raises(DataError, match="cut off after 1,000 of"):
        get()
    assert len(server.seen) == 4  # the first brought bytes, three in a row did not
    assert not (tmp_path / "data" / "ml-25m").exists()


def test_without_a_validator_nothing_is_resumed(get: Callable[..., Path], server: Server) -> None:
    server.etag, server.cut_after = None, [1000]
    get()
    assert [wanted for _, wanted, _ in server.seen] == [None, None, None]


def test_a_file_that_changed_meanwhile_starts_anew(
    get: Callable[..., Path], server: Server, archive: bytes, tmp_path: Path
) -> None:
    server.files["ml-25m.zip"], server.cut_after = bytes(len(archive)), [1000, 0, 0, 0]
    with pytest.raises(DataError, match="cut off"):
        get()
    server.files["ml-25m.zip"], server.etag, server.cut_after = archive, '"two"', []
    server.seen.clear()
    get()
    assert server.seen[0][1:] == ("bytes=1000-", 200)  # If-Range did not fit, so the whole file came


def test_a_part_that_is_whole_is_not_fetched_again(server: Server, archive: bytes, tmp_path: Path) -> None:
    server.files["x"] = archive
    fetch(server.url + "x", tmp_path / "x.part", retry=FAST)
    fetch(server.url + "x", tmp_path / "x.part", retry=FAST)
    assert len(server.seen) == 1
    assert (tmp_path / "x.part").read_bytes() == archive


def test_a_part_longer_than_the_file_starts_anew(server: Server, archive: bytes, tmp_path: Path) -> None:
    server.files["x"] = archive
    fetch(server.url + "x", tmp_path / "x.part", retry=FAST)
    (tmp_path / "x.part").write_bytes(archive + b"more")
    fetch(server.url + "x", tmp_path / "x.part", retry=FAST)
    assert [status for _, _, status in server.seen] == [200, 416, 200]
    assert (tmp_path / "x.part").read_bytes() == archive


@pytest.mark.parametrize("notes", [b"", b"{}", b'{"url": "http://elsewhere/x", "validator": "a", "total": 5}'])
def test_a_part_with_other_notes_starts_anew(server: Server, archive: bytes, tmp_path: Path, notes: bytes) -> None:
    server.files["x"] = archive
    (tmp_path / "x.part").write_bytes(b"12345")
    (tmp_path / "x.part.json").write_bytes(notes)
    fetch(server.url + "x", tmp_path / "x.part", retry=FAST)
    assert (tmp_path / "x.part").read_bytes() == archive
    assert [wanted for _, wanted, _ in server.seen] == [None]


def test_a_wrong_checksum_is_told_and_the_file_removed(
    get: Callable[..., Path], server: Server, tmp_path: Path
) -> None:
    server.files["ml-25m.zip.md5"] = b"0" * 32 + b"  ml-25m.zip\n"
    with pytest.raises(
        DataError, match=r"came with MD5 [0-9a-f]{32}, and 0{32} is published\n\nhint: .*it was removed"
    ):
        get()
    assert left(tmp_path) == []


def test_a_checksum_that_is_none_keeps_the_download(get: Callable[..., Path], server: Server, tmp_path: Path) -> None:
    server.files["ml-25m.zip.md5"] = b"<html>maintenance</html>"
    with pytest.raises(DataError, match="holds no MD5: `<html>maintenance</html>`"):
        get()
    assert left(tmp_path) == ["ml-25m.zip.part", "ml-25m.zip.part.json"]


def test_without_a_published_checksum_the_zip_is_checked_by_itself(
    get: Callable[..., Path], server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del server.files["ml-25m.zip.md5"]
    get()
    assert "publishes no MD5" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "data")
    damaged = bytearray(server.files["ml-25m.zip"])
    damaged[len(damaged) // 2] ^= 1  # in the middle of noise.bin
    server.files["ml-25m.zip"] = bytes(damaged)
    with pytest.raises(DataError, match="is not a whole zip file: "):
        get()
    assert left(tmp_path) == []


def test_a_missing_file_is_not_tried_again(get: Callable[..., Path], server: Server, tmp_path: Path) -> None:
    del server.files["ml-25m.zip"]
    with pytest.raises(DataError, match=r"ml-25m.zip`: the server answers 404 .*\n\nhint: `falconet data list`"):
        get()
    assert statuses(server) == [("/ml-25m.zip", 404)]
    assert left(tmp_path) == []


def test_a_busy_server_is_asked_again(get: Callable[..., Path], server: Server) -> None:
    server.fail = [503, 429]
    get()
    assert [status for _, _, status in server.seen] == [503, 429, 200, 200]


def test_a_server_that_stays_busy_is_given_up(get: Callable[..., Path], server: Server) -> None:
    server.fail = [503] * 9
    with pytest.raises(DataError, match=r"the server answers 503 .*\n\nhint: is this machine online\? `--from PATH`"):
        get()
    assert len(server.seen) == 3


def test_a_name_that_does_not_resolve_fails_at_once(
    get: Callable[..., Path], server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def refuse(*args: object, **options: object) -> None:
        calls.append(args)
        raise urllib.error.URLError(socket.gaierror(-2, "Name or service not known"))

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    with pytest.raises(DataError, match=r"cannot reach `.*Name or service not known\n\nhint: is this machine online\?"):
        get()
    assert len(calls) == 1


def test_an_address_that_is_no_web_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"`file:///etc/ml-1m\.zip` is not a web address"):
        download("1m", tmp_path, base_url="file:///etc/")


def test_a_page_instead_of_the_zip_is_refused(get: Callable[..., Path], server: Server, tmp_path: Path) -> None:
    server.files["ml-25m.zip"] = b"<html>please log in</html>"
    del server.files["ml-25m.zip.md5"]
    with pytest.raises(DataError, match="is not a whole zip file: File is not a zip file"):
        get()
    assert left(tmp_path) == []


def test_a_full_disk_keeps_the_download(
    get: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(unpacking.shutil, "disk_usage", lambda path: usage._replace(free=10))
    with pytest.raises(ConfigError, match=r"has 0 MB free, the files need 0 MB\n\nhint: make room"):
        get()
    assert left(tmp_path) == ["ml-25m.zip.part", "ml-25m.zip.part.json"]
    monkeypatch.undo()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server.seen.clear()
    get()
    assert statuses(server) == [("/ml-25m.zip.md5", 200)]


def test_what_a_killed_unpacking_left_is_removed(get: Callable[..., Path], tmp_path: Path) -> None:
    write_folder(tmp_path / "data" / ".tmp-ml-25m-4242-0123abcd", {"ratings.csv": b"half"})
    write_folder(tmp_path / "data" / ".tmp-ml-25m-mine", {"keep": b""})
    get()
    assert left(tmp_path) == [".tmp-ml-25m-mine", "ml-25m"]


def test_a_changed_download_is_told(get: Callable[..., Path]) -> None:
    folder = get()
    (folder / "movies.csv").write_bytes(b"movieId,title,genres\n")
    with pytest.raises(ArtifactError, match=r"is no longer what was downloaded: .*movies.csv.*\n\nhint: move it away"):
        get()


def test_a_folder_that_someone_else_unpacked_is_left_alone(get: Callable[..., Path], tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "data" / "ml-25m", CSV)
    with pytest.raises(ArtifactError, match=r"did not write it\n\nhint: .*`falconet data get ml-25m --from .*ml-25m`"):
        get()
    assert get(source=folder) == folder


def test_a_local_zip_needs_no_server(tmp_path: Path, archive: bytes) -> None:
    folder = download("25m", tmp_path / "data", source=tmp_path / "made.zip", base_url="http://127.0.0.1:9/")
    assert open_movielens(folder).release == "ml-25m"
    assert left(tmp_path) == ["ml-25m"]
    assert (tmp_path / "made.zip").read_bytes() == archive


@pytest.mark.parametrize(("form", "holds"), [("1m", "ml-1m"), ("100k", "ml-100k"), ("10m", "ml-10m")])
def test_another_release_than_asked_for_is_refused(tmp_path: Path, form: str, holds: str) -> None:
    path = write_zip(tmp_path / "a.zip", FORMATS[form], "x/")
    with pytest.raises(DataError, match=f"holds {holds}, not ml-20m\n\nhint: ask for {holds}"):
        download("20m", tmp_path / "data", source=path)


def test_a_local_path_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file or folder `nothing.zip`\n\nhint: --from names a zip or a folder"):
        download("1m", tmp_path, source="nothing.zip")


def test_a_local_zip_that_is_damaged_stays_and_leaves_nothing(tmp_path: Path, archive: bytes) -> None:
    (tmp_path / "made.zip").write_bytes(archive[:-10])
    with pytest.raises(DataError, match=r"made\.zip` is not a whole zip file"):
        download("25m", tmp_path / "data", source=tmp_path / "made.zip")
    assert (tmp_path / "made.zip").is_file()
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "name", ["../evil.csv", "ml/../../evil.csv", "/evil.csv", "ml\\..\\evil.csv", "C:/evil.csv", "ml/link"]
)
def test_a_zip_that_leads_outside_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "evil.zip"
    with zipfile.ZipFile(path, "w") as opened:
        entry = zipfile.ZipInfo(name)
        if name.endswith("link"):
            entry.external_attr = 0o120777 << 16
        opened.writestr(entry, "/etc/passwd")
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match=r"evil.zip` holds `.*`, which leads out of its folder\n\nhint: this is no zip"):
        unpack(path, tmp_path / "out")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["evil.zip", "out"]


def test_folders_inside_stay_and_clutter_goes(tmp_path: Path) -> None:
    names = ["ml/ratings.csv", "ml/more/x.txt", "__MACOSX/ml/._ratings.csv", "ml/.DS_Store"]
    path = write_zip(tmp_path / "a.zip", dict.fromkeys(names, b"x"))
    (tmp_path / "out").mkdir()
    unpack(path, tmp_path / "out")
    found = sorted(p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*") if p.is_file())
    assert found == ["more/x.txt", "ratings.csv"]


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", {"ml/A.csv": b"", "ml/a.csv": b""})
    with pytest.raises(DataError, match="holds two files of one name"):
        unpack(path, tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        (
            "README",
            "SUMMARY & USAGE LICENSE\n=====\n\nOnly for research.\n\nCITATION\n=====\n\nCite.\n",
            "Only for research.",
        ),
        (
            "README.html",
            "<h2>Summary</h2><p>x</p><h3>Usage License</h3><ul><li>Only &amp; for research.</ul><h2>Citation</h2>Cite.",
            "* Only & for research.",
        ),
    ],
)
def test_the_licence_of_older_releases_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, shown: str
) -> None:
    write_folder(tmp_path / "a", {**FORMATS["1m"], name: text.encode()})
    assert download("1m", tmp_path, source=tmp_path / "a") == tmp_path / "a"
    said = capsys.readouterr().err
    assert shown in said
    assert "Cite." not in said


def test_a_release_without_licence_text_names_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(tmp_path / "a", FORMATS["1m"])
    download("1m", tmp_path, source=tmp_path / "a")
    assert "see https://grouplens.org/datasets/movielens/1m/" in capsys.readouterr().err


def test_releases_are_found_by_both_names() -> None:
    assert find_release("ml-latest-small") is find_release("latest-small") is RELEASES["ml-latest-small"]
    assert list(RELEASES) == [
        "ml-latest-small", "ml-100k", "ml-1m", "ml-10m", "ml-20m", "ml-25m", "ml-32m", "ml-latest",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "hint"), [("ml-2m", "did you mean `ml-32m`"), ("xyzzy", "available: ml-100k, ml-10m")]
)
def test_an_unknown_release_suggests_one(given: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown release `{given}`\n\nhint: {hint}"):
        find_release(given)


def test_retry_refuses_impossible_settings() -> None:
    with pytest.raises(FalconetError, match="attempts >= 1, wait >= 0, timeout > 0"):
        Retry(attempts=0)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"cannot make the folder `.*file/data`: .*\n\nhint: name another with --out"):
        download("1m", tmp_path / "file" / "data")
