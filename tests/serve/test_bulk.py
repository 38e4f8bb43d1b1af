"""Recommendations for all users of a file: the same answers, in parts, carried on after a kill."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from falconet.cli.recommend import recommend
from falconet.errors import ArtifactError, ColumnNotFoundError, ConfigError, DataError, SchemaError
from falconet.io.artifact import read_artifact
from falconet.io.footer import data_files
from falconet.serve import bulk
from falconet.serve.answers import Recommendation
from falconet.serve.known import Knowledge
from falconet.serve.recommender import Recommender
from falconet.serve.request import Request
from serving_world import World


def users_file(path: Path, users: list[object], column: str = "user_id") -> Path:
    if path.suffix == ".csv":
        path.write_text("\n".join([f"n,{column}", *(f"{n},{user}" for n, user in enumerate(users))]) + "\n")
    else:
        pq.write_table(pa.table({"n": range(len(users)), column: users}), path)
    return path


def read(out: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(file) for file in data_files(out)])


def one_by_one(recommender: Recommender, users: list[object], k: int) -> list[dict[str, object]]:
    rows = []
    for user in users:
        said = recommender.recommend(user, k=k)  # type: ignore[arg-type]
        rows += [
            {
                "user_id": user,
                **{name: getattr(item, name) for name in ("rank", "item_id", "score", "retriever_score")},
                "retriever_rank": item.retriever_rank,
                "source": item.source,
                "cold_start": said.cold_start,
            }
            for item in said.items
        ]
    return rows


def assert_alike(got: list[dict[str, object]], want: list[dict[str, object]]) -> None:
    """The same rows; scores to 1e-6, as products of many rows are rounded otherwise than those of few."""
    for name in ("score", "retriever_score"):
        assert [row.pop(name) for row in got] == pytest.approx([row.pop(name) for row in want], abs=1e-6)
    assert got == want


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_all_get_what_each_gets(
    recommender: Recommender, world: World, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "_USERS", 5)
    users: list[object] = [*world.users[:11], 77, world.users[0]]
    users = users if kind == "parquet" else [str(user) for user in users]
    out = recommender.recommend_users(users_file(tmp_path / f"u.{kind}", users), tmp_path / "out", k=4)
    assert len(list(out.glob("*.parquet"))) == 3
    assert_alike(read(out).to_pylist(), one_by_one(recommender, users, 4))
    manifest = read_artifact(out, bulk.KIND)
    assert manifest.extra["users"] == 13
    assert manifest.parents["bundle"] == recommender.bundle.manifest.sha256
    assert sorted(path.name for path in tmp_path.glob(".*")) == []


def test_ids_may_be_texts_of_any_kind(strings: Recommender, world_of_strings: World, tmp_path: Path) -> None:
    users = list(world_of_strings.users[:3])
    pq.write_table(pa.table({"who": pa.array(users).dictionary_encode()}), tmp_path / "u.parquet")
    out = strings.recommend_users(tmp_path / "u.parquet", tmp_path / "out", column="who", k=2)
    table = read(out)
    assert table.column("user_id").to_pylist() == [user for user in users for _ in range(2)]
    assert table.schema.field("item_id").type == pa.string()


def test_a_run_that_was_killed_carries_on(
    recommender: Recommender, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "_USERS", 4)
    users, asked = users_file(tmp_path / "u.parquet", list(world.users)), []
    whole = read(recommender.recommend_users(users, tmp_path / "whole", k=3))
    really = Knowledge.of

    def counted(self: Knowledge, request: Request) -> object:
        asked.append(request.user_id)
        if len(asked) == 10:
            raise KeyboardInterrupt
        return really(self, request)

    monkeypatch.setattr(Knowledge, "of", counted)
    with pytest.raises(KeyboardInterrupt):
        recommender.recommend_users(users, tmp_path / "out", k=3)
    assert not (tmp_path / "out").exists()
    out = recommender.recommend_users(users, tmp_path / "out", k=3)
    assert asked[10:] == world.users[8:]
    assert read(out) == whole
    assert recommender.recommend_users(users, out, k=3) == out
    assert len(asked) == 10 + len(world.users) - 8


def test_other_settings_begin_anew(
    recommender: Recommender, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    users = users_file(tmp_path / "u.parquet", list(world.users[:2]))
    begun = tmp_path / ".bulk-out" / "of another"
    begun.mkdir(parents=True)
    (begun / "part-000000.parquet").write_bytes(b"nonsense")
    out = recommender.recommend_users(users, tmp_path / "out", k=3)
    assert "it begins anew" in capsys.readouterr().err
    with pytest.raises(ArtifactError, match="exists already"):
        recommender.recommend_users(users, out, k=2)
    assert len(read(recommender.recommend_users(users, out, k=2, overwrite=True))) == 4


def test_two_processes_do_not_write_one_folder(
    recommender: Recommender, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = users_file(tmp_path / "u.parquet", list(world.users[:2]))
    really, tried = Knowledge.of, []

    def second(self: Knowledge, request: Request) -> object:
        with pytest.raises(ArtifactError, match="another process is writing"):
            recommender.recommend_users(users, tmp_path / "out", k=2)
        tried.append(request)
        return really(self, request)

    with monkeypatch.context() as patch:
        patch.setattr(Knowledge, "of", second)
        recommender.recommend_users(users, tmp_path / "out", k=2)
    assert len(tried) == 2
    assert isinstance(recommender.recommend(world.users[0]), Recommendation)


def test_what_a_file_lacks_is_said(recommender: Recommender, world: World, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for name in ("u.parquet", "u.csv"):
        users = users_file(tmp_path / name, [1, 2], column="userid")
        with pytest.raises(ColumnNotFoundError, match=r"has no column `user_id`\n\nhint: did you mean `userid`"):
            recommender.recommend_users(users, out)
    pq.write_table(pa.table({"user_id": [1.5]}), tmp_path / "f.parquet")
    with pytest.raises(SchemaError, match="ids are whole numbers or texts"):
        recommender.recommend_users(tmp_path / "f.parquet", out)
    with pytest.raises(DataError, match=r"n\.parquet`, row 2: `user_id` is empty"):
        recommender.recommend_users(users_file(tmp_path / "n.parquet", [world.users[0], None]), out)
    with pytest.raises(DataError, match=r"e\.csv`, row 1: `user_id` is empty"):
        recommender.recommend_users(users_file(tmp_path / "e.csv", [""]), out)
    with pytest.raises(DataError, match=r"l\.csv`, row 1: `user_id` must have 1 to 256 characters"):
        recommender.recommend_users(users_file(tmp_path / "l.csv", ["x" * 300]), out)
    with pytest.raises(DataError, match=r"^filter, character 1: items have no column"):
        recommender.recommend_users(users_file(tmp_path / "w.csv", [world.users[0]]), out, filter="yaer > 1990")
    with pytest.raises(DataError, match="no file or folder"):
        recommender.recommend_users(tmp_path / "none.csv", out)
    (tmp_path / "b.csv").write_bytes(b"user_id\n\xff\xfe\n")
    with pytest.raises(DataError, match=r"b\.csv` cannot be read"):
        recommender.recommend_users(tmp_path / "b.csv", out)
    (tmp_path / "ids.tsv").write_text("user_id\n1\n")
    with pytest.raises(DataError, match=r"(?s)ids\.tsv` is not a whole Parquet file.*and from CSV \(\.csv, \.txt\)"):
        recommender.recommend_users(tmp_path / "ids.tsv", out)
    pq.write_table(pa.table({"user_id": pa.array([], pa.int64())}), tmp_path / "z.parquet")
    with pytest.raises(DataError, match="has no rows"):
        recommender.recommend_users(tmp_path / "z.parquet", out)
    assert not out.exists()
    assert not list(tmp_path.glob(".*"))  # nor anything to carry on with


def test_parts_of_a_file_that_turns_out_to_be_damaged_are_removed(
    recommender: Recommender, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "_USERS", 2)
    written = []
    really = bulk.write_file
    monkeypatch.setattr(bulk, "write_file", lambda file, data: (written.append(file), really(file, data)))
    (tmp_path / "b.csv").write_bytes(f"user_id\n{world.users[0]}\n{world.users[1]}\n\n".encode() + b'""\n')
    with pytest.raises(DataError, match=r"b\.csv`, row 3: `user_id` is empty"):
        recommender.recommend_users(tmp_path / "b.csv", tmp_path / "out")
    assert len(written) == 1
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("dictionary", [False, True])
def test_numbers_beyond_signed_64_bits_are_texts_of_their_digits(
    recommender: Recommender, world: World, tmp_path: Path, *, dictionary: bool
) -> None:
    large = 2**63 + 5
    for users, kind in (([world.users[0], large], pa.string()), ([world.users[0], 7], pa.int64())):
        column = pa.array(users, pa.uint64())
        pq.write_table(
            pa.table({"user_id": column.dictionary_encode() if dictionary else column}), tmp_path / "u.parquet"
        )
        rows = read(recommender.recommend_users(tmp_path / "u.parquet", tmp_path / "out", k=5, overwrite=True))
        assert rows.schema.field("user_id").type == kind
        same = [user if kind == pa.int64() else str(user) for user in users]
        assert rows.column("user_id").to_pylist() == [user for user in same for _ in range(5)]
        assert_alike(rows.to_pylist(), one_by_one(recommender, same, 5))


def test_the_command_writes_a_folder_and_prints_it(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    users = users_file(tmp_path / "u.csv", [str(world.users[1])])
    recommend(world.bundle, users=users, out=tmp_path / "out", k=3, filter="'Drama' in genres")
    assert capsys.readouterr().out == f"{tmp_path / 'out'}\n"
    assert len(read(tmp_path / "out")) == 3
    with pytest.raises(ConfigError, match="`--users` without `--out`"):
        recommend(world.bundle, users=users)
    with pytest.raises(ConfigError, match="goes with neither"):
        recommend(world.bundle, users=users, out=tmp_path / "out", user="7")


def test_whoever_waits_while_a_folder_is_removed_makes_another(
    recommender: Recommender, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = users_file(tmp_path / "u.parquet", list(world.users[:2]))
    work, really, times = tmp_path / ".bulk-out", bulk.take, []

    def slow(handle: int, *, without_locks: bool = False) -> bool:
        times.append(handle)
        if len(times) == 1:  # between the opening of the lock and the taking, another one ends
            shutil.rmtree(work)
        return really(handle, without_locks=without_locks)

    monkeypatch.setattr(bulk, "take", slow)
    out = recommender.recommend_users(users, tmp_path / "out", k=2)
    assert len(read(out)) == 4
    assert len(times) == 2
    assert not work.exists()


def test_what_is_of_a_file_is_refused_without_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`--overwrite` is of `--users`"):
        recommend(tmp_path, user="1", overwrite=True)
    with pytest.raises(ConfigError, match="`--column` is of `--users`"):
        recommend(tmp_path, user="1", column="who")
