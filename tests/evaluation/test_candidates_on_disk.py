"""What the ranker learns from: nothing that was held out may be known to whoever makes the candidates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from falconet.batch import Ragged
from falconet.errors import ConfigError, DataError
from falconet.evaluation.candidates import build_candidates, is_relevant
from falconet.evaluation.cut import CandidateConfig, count_items, cut_users, write_scout_rows
from falconet.evaluation.evaluate import popular
from falconet.evaluation.tables import read_items, read_users
from falconet.io.artifact import read_artifact, read_manifest
from falconet.io.footer import read_schema
from falconet.loader.loader import Loader

CONFIG = CandidateConfig(candidates=10, held_out=0.3)


def held_out(features: Path) -> list[list[int]]:
    users = read_users(features / "users")
    return [
        [item for item in seen if CONFIG.holds_out(np.array([3 + u]), np.array([item]))[0]]
        for u, seen in enumerate(users.seen.to_lists())
    ]


def test_users_are_cut_into_what_they_know_and_what_they_take(tastes: Path) -> None:
    users, items, out = read_users(tastes / "users"), read_items(tastes / "items"), held_out(tastes)
    chosen, cut = cut_users(users, items.schema, CONFIG)
    assert 100 < sum(map(len, out)) < 190  # 30 % of 480
    seen, history = users.seen.to_lists(), cut.features.features["history"]
    assert isinstance(history, Ragged)
    assert chosen.tolist() == [u for u in range(60) if 0 < len(out[u]) < 8]
    assert cut.relevant.to_lists() == [out[u] for u in chosen.tolist()]
    assert cut.seen.to_lists() == [[x for x in seen[u] if x not in out[u]] for u in chosen.tolist()]
    assert history.to_lists() == cut.seen.to_lists()
    whole = cut.features.features["seen"]
    assert isinstance(whole, Ragged)
    assert whole.to_lists() == cut.seen.to_lists()


def test_the_cut_is_a_function_of_seed_user_and_item(tastes: Path) -> None:
    users, items = np.arange(3, 63).repeat(40), np.tile(np.arange(3, 43), 60)
    first = CONFIG.holds_out(users, items)
    assert (CONFIG.holds_out(users[::-1], items[::-1])[::-1] == first).all()
    assert (CandidateConfig(held_out=0.3, seed=1).holds_out(users, items) != first).any()
    assert CONFIG.holds_out(users.astype(np.int32), items.astype(np.int32)).tolist() == first.tolist()


def test_at_most_so_many_users_are_chosen_by_hash(tastes: Path) -> None:
    users, items = read_users(tastes / "users"), read_items(tastes / "items")
    some = CandidateConfig(held_out=0.3, max_users=7)
    chosen, cut = cut_users(users, items.schema, some)
    assert (len(chosen), len(cut)) == (7, 7)
    assert chosen.tolist() == sorted(chosen.tolist())
    assert chosen.tolist() == cut_users(users, items.schema, some)[0].tolist()


def test_a_scout_reads_no_row_and_no_history_that_is_held_out(tastes: Path, tmp_path: Path) -> None:
    write_scout_rows(tastes / "train", tmp_path / "rows", CONFIG, step="key")
    out = held_out(tastes)
    table = pq.read_table(tmp_path / "rows/part-00000.parquet")
    assert len(table) == 480 - sum(map(len, out))
    for row in table.to_pylist():
        hidden = out[row["user"] - 3]
        assert row["item"] not in hidden
        assert not set(row["history"]) & set(hidden)
        assert len(row["history"]) == 8 - len(hidden) - 1
    assert read_manifest(tmp_path / "rows", "rows").extra["step"] == "key"
    assert read_schema(tmp_path / "rows") == read_schema(tastes / "train")


def test_scout_rows_keep_every_file_of_the_training_rows(tastes: Path, tmp_path: Path) -> None:
    """The rows are the same, however the training rows were cut into files and row groups."""
    table = pq.read_table(tastes / "train/part-00000.parquet")
    (tmp_path / "train").mkdir()
    pq.write_table(table.slice(0, 100), tmp_path / "train/a.parquet", row_group_size=30)
    pq.write_table(table.slice(100), tmp_path / "train/b.parquet")
    write_scout_rows(tastes / "train", tmp_path / "one", CONFIG)
    write_scout_rows(tmp_path / "train", tmp_path / "two", CONFIG)
    two = [pq.read_table(tmp_path / "two" / name) for name in ("a.parquet", "b.parquet")]
    one = pq.read_table(tmp_path / "one/part-00000.parquet").to_pylist()
    assert [row for part in two for row in part.to_pylist()] == one


def test_counts_are_those_of_the_rows(tastes: Path, small: Path) -> None:
    assert count_items(small / "train", 8).tolist() == [0, 0, 0, 3, 3, 2, 1, 0]
    assert int(count_items(tastes / "train", 43).sum()) == 480


def test_candidates_are_what_a_retriever_returns_and_whether_it_was_taken(tastes: Path, tmp_path: Path) -> None:
    users, items = read_users(tastes / "users"), read_items(tastes / "items")
    build_candidates(popular(items), items, users, tmp_path / "candidates", CONFIG, parents={"run": "x"}, step="key")
    manifest = read_artifact(tmp_path / "candidates", "candidates")
    assert (manifest.extra, manifest.parents) == ({"step": "key", "candidates": 10}, {"run": "x"})
    out, seen, relevant = held_out(tastes), users.seen.to_lists(), users.relevant.to_lists()
    for part, truth in (("train", out), ("test", relevant)):
        rows = pq.read_table(tmp_path / "candidates" / part / "part-00000.parquet").to_pylist()
        assert len(rows) == 10 * len({row["group"] for row in rows})
        for row in rows:
            group = row["group"]
            assert row["item"] not in set(seen[group]) - (set(out[group]) if part == "train" else set())
            assert row["taken"] == float(row["item"] in truth[group])
            assert row["weight"] == pytest.approx(1 / np.expm1(row["retriever_rank"]), rel=1e-5)
    assert {row["taken"] for row in rows} == {0.0, 1.0}


def test_candidates_are_ready_for_a_loader(tastes: Path, tmp_path: Path) -> None:
    users, items = read_users(tastes / "users"), read_items(tastes / "items")
    build_candidates(popular(items), items, users, tmp_path / "candidates", CONFIG)
    loader = Loader(tmp_path / "candidates/train", batch_size=64)
    batch = next(iter(loader.batches()))
    assert set(batch.features) == {
        "genres", "retriever_score", "retriever_share", "retriever_standing", "retriever_rank", "history_length",
        "log_popularity", "genres_affinity",
    }  # fmt: skip
    assert set(batch.targets) == {"taken"}
    assert batch.weights is not None


def test_popularity_in_training_candidates_is_that_of_the_scout(tastes: Path, tmp_path: Path) -> None:
    users, items = read_users(tastes / "users"), read_items(tastes / "items")
    scout = popular(items)
    scout.set_counts(torch.full((43,), 4))
    build_candidates(popular(items), items, users, tmp_path / "candidates", CONFIG, scout=scout)
    train, test = (pq.read_table(tmp_path / "candidates" / part)["log_popularity"] for part in ("train", "test"))
    assert train.to_pylist() == pytest.approx([1.609438] * len(train))
    assert test.to_pylist() == pytest.approx([2.772589] * len(test))  # the ten most frequent occur 15 times


def test_users_with_fewer_candidates_have_fewer_rows(small: Path, tmp_path: Path) -> None:
    users, items = read_users(small / "users"), read_items(small / "items")
    config = CandidateConfig(candidates=10, held_out=0.5)
    build_candidates(popular(items), items, users, tmp_path / "candidates", config)
    table = pq.read_table(tmp_path / "candidates/test")
    assert table["group"].to_pylist() == [0] * 2 + [1] * 3 + [3] * 3  # the third user has nothing in the test


def test_equal_inputs_give_equal_bytes(tastes: Path, tmp_path: Path) -> None:
    users, items = read_users(tastes / "users"), read_items(tastes / "items")
    for name in ("a", "b"):
        build_candidates(popular(items), items, users, tmp_path / name, CONFIG)
    assert read_manifest(tmp_path / "a").sha256 == read_manifest(tmp_path / "b").sha256


def test_nobody_with_two_items_is_an_error(small: Path, tmp_path: Path) -> None:
    users, items = read_users(small / "users"), read_items(small / "items")
    with pytest.raises(DataError, match=r"(?s)no training user \(of 4\) has two items .*people with several items"):
        build_candidates(popular(items), items, users, tmp_path / "c", CandidateConfig(candidates=1, held_out=1e-9))
    assert not (tmp_path / "c").exists()


def test_candidates_that_nobody_took_are_an_error(tastes: Path, tmp_path: Path) -> None:
    users, items = read_users(tastes / "users"), read_items(tastes / "items")
    with pytest.raises(DataError, match=r"(?s)no training user \(of 1\) took any of the 1 candidates.*more `cand"):
        config = CandidateConfig(candidates=1, held_out=0.2, max_users=1)
        build_candidates(popular(items), items, users, tmp_path / "c", config)


def test_whether_a_candidate_is_relevant() -> None:
    codes = torch.tensor([[5, 6, -1], [5, 6, 7]])
    assert is_relevant(codes, Ragged.of([[6], [7, 5]])).tolist() == [[False, True, False], [True, False, True]]


@pytest.mark.parametrize(
    ("wrong", "match"),
    [({"candidates": 0}, "candidates=0"), ({"held_out": 1.0}, "held_out=1.0"), ({"max_users": 0}, "max_users=0")],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, float], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        CandidateConfig(**wrong)  # type: ignore[arg-type]
