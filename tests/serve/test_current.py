"""Which of several bundles is served, and going back to a former one."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from falconet.errors import ArtifactError
from falconet.serve.bundle import load_bundle
from falconet.serve.current import Current, bundle_folder, read_current, rollback, working_folder, write_current
from falconet.serve.recommender import Recommender
from falconet.serve.serving import Serving
from serving_world import World, build_world_bundle

FIRST = Current(bundle="0001", newest=1, root="0001", root_sha256="ab")
SECOND = replace(FIRST, bundle="0002", newest=2, before=("0001",))


@pytest.fixture(scope="module")
def several(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with two bundles."""
    work = tmp_path_factory.mktemp("several") / "work"
    shutil.copytree(world.bundle, work / "bundle")
    shutil.copytree(world.bundle, work / "bundles/0001")
    build_world_bundle(world, work / "bundles/0002", ranker=False)
    return work


@pytest.fixture
def work(several: Path) -> Path:
    write_current(several / "bundles", SECOND)
    return several


def test_what_is_current_is_served_from_the_working_folder_and_from_that_of_the_bundles(work: Path) -> None:
    for path in (work, work / "bundles"):
        found = load_bundle(path)
        assert (found.path, found.source) == (work / "bundles/0002", path)
    assert load_bundle(work / "bundles/0001").path == work / "bundles/0001"
    assert load_bundle(work / "bundle").path == work / "bundle"


def test_events_lie_in_the_working_folder_whatever_is_served(work: Path, tmp_path: Path) -> None:
    for path in (work, work / "bundle", work / "bundles", work / "bundles/0001"):
        assert working_folder(path) == work.absolute()
    assert working_folder(tmp_path / "bundle") == tmp_path


def test_a_server_follows_and_comes_back(work: Path) -> None:
    serving = Serving(Recommender.load(work))
    new = serving.recommender.bundle.name
    assert rollback(work) == replace(SECOND, bundle="0001", before=())
    with serving.watched(0.05):
        for _ in range(400):
            if serving.recommender.bundle.name != new:
                break
            serving.recommender.check()
    old = serving.recommender.bundle
    assert (old.path, old.source) == (work / "bundles/0001", work)
    assert serving.reload("0002") == (old.name, new)
    assert serving.reload() == (new, new)  # asked for by its name, it stays
    with pytest.raises(ArtifactError, match=r"`.*0001` is the oldest bundle that is left"):
        rollback(work / "bundles")


def test_going_back_passes_over_what_is_gone_and_refuses_what_is_damaged(several: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bundles"
    shutil.copytree(several / "bundles/0001", folder / "0001")
    write_current(folder, replace(SECOND, bundle="0004", before=("0001", "0003")))
    assert rollback(tmp_path).bundle == "0001"
    write_current(folder, SECOND)
    (folder / "0001/popular.parquet").write_bytes(b"PAR1")
    with pytest.raises(ArtifactError, match=r"popular\.parquet` has 4 bytes"):
        rollback(tmp_path)
    assert read_current(folder) == SECOND


def test_without_bundles_there_is_nothing_to_go_back_to(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"(?s)no bundle to go back to.*falconet run --refresh"):
        rollback(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is damaged"),
        (b'{"format": 2}', "has format 2, this version reads 1"),
        (b"[]", "must be"),
        (
            json.dumps({"format": 1, "bundle": "../x", "newest": 1, "root": "a", "root_sha256": ""}).encode(),
            r"'\.\./x'",
        ),
        (json.dumps({"format": 1, "newest": 1}).encode(), "`bundle`"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "current.json").write_bytes(content)
    with pytest.raises(ArtifactError, match=message):
        bundle_folder(tmp_path)
    (tmp_path / "other/current.json").mkdir(parents=True)
    with pytest.raises(ArtifactError, match=r"current\.json` cannot be read"):
        bundle_folder(tmp_path / "other")
