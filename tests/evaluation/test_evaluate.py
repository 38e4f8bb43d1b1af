"""The figures of a report, on worlds where they are known."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from falconet.batch import Batch, Ragged
from falconet.errors import ArtifactError, ConfigError, DataError
from falconet.evaluation import judge
from falconet.evaluation.baselines import popular
from falconet.evaluation.candidates import build_candidates, candidate_rows
from falconet.evaluation.cut import CandidateConfig, count_items, write_scout_rows
from falconet.evaluation.evaluate import EvaluationConfig, evaluate, figure
from falconet.evaluation.luck import Luck
from falconet.evaluation.recommend import Retrieval, TwoStage, sources_of
from falconet.evaluation.report import read_report, table_text, write_report
from falconet.evaluation.tables import read_items, read_users
from falconet.io.artifact import read_manifest
from falconet.loader.loader import Loader
from falconet.metrics.lists import ListMetrics
from falconet.models import MLP, TwoTower
from falconet.models.base import Model
from falconet.schema import Schema
from falconet.train.settings import TrainConfig
from falconet.train.trainer import Trainer


class ByGenre(Model):
    """Scores a row by the share of the history that has its genres, turned around."""

    def forward(self, batch: Batch) -> torch.Tensor:
        affinity = batch.features["genres_affinity"]
        assert isinstance(affinity, torch.Tensor)
        return -affinity


def ranking(features: Path, k: int) -> dict[str, Any]:
    """The figures of Popular."""
    figures: dict[str, Any] = evaluate(features, {}, EvaluationConfig(k=k))["models"]["Popular"]["ranking"]
    return figures


def test_popular_is_known_by_hand(small: Path) -> None:
    """Unseen items by count: 6, 7 for user 0; 5, 6, 7 for user 1; 3, 6, 7 for user 3, who takes an unknown item."""
    at = {k: ranking(small, k) for k in (1, 2, 10)}
    assert at[1]["hit_rate@1"]["value"] == pytest.approx(2 / 3, abs=1e-6)
    # User 1 has four relevant items, two of which no model can know.
    assert at[2]["recall@2"]["value"] == pytest.approx((1 + 1 / 4 + 0) / 3, abs=1e-6)
    found = at[10]
    assert found["recall@10"]["value"] == pytest.approx((1 + 2 / 4 + 0) / 3, abs=1e-6)
    dcg = 1 + 1 / math.log2(4)
    ideal = 1 + 1 / math.log2(3) + 1 / math.log2(4) + 1 / math.log2(5)
    assert found["ndcg@10"]["value"] == pytest.approx((1 + dcg / ideal) / 3, abs=1e-6)
    assert 0 <= found["ndcg@10"]["low"] <= found["ndcg@10"]["value"] <= found["ndcg@10"]["high"] <= 1


def test_the_ranker_orders_what_the_retriever_returns(small: Path) -> None:
    items, users = read_items(small / "items"), read_users(small / "users")
    first = Retrieval(popular(items), items)
    sources = sources_of({"retriever": popular(items)}, items)
    second = TwoStage(sources, candidate_rows(users, items), ByGenre(Schema(), Model.Config()), candidates=2)
    everyone = users.features
    assert first.search(everyone, 2, users.seen)[1].tolist() == [[6, 7], [5, 6], [4, 5], [3, 6]]
    # The history of user 3 is items 4 (genres 3 and 4) and 5 (genre 4): item 3 has half of it, item 6 nothing.
    assert second.search(everyone, 2, users.seen)[1].tolist() == [[6, 7], [6, 5], [5, 4], [6, 3]]
    assert second.search(everyone, 4, users.seen)[1].tolist()[0] == [6, 7, -1, -1]


def train_retriever(rows: Path) -> TwoTower:
    loader = Loader(rows, batch_size=64, shuffle=True)
    model = TwoTower.from_schema(loader.schema, TwoTower.Config(dim=8))
    model.set_counts(count_items(rows, len(model.counts)))
    Trainer(TrainConfig(epochs=6, precision="float32")).fit(model, loader)
    return model


@pytest.fixture(scope="module")
def trained(tastes: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[TwoTower, MLP, Path]:
    """A retriever, a ranker and candidates of the world with two tastes."""
    torch.manual_seed(0)
    items, users = read_items(tastes / "items"), read_users(tastes / "users")
    folder, config = tmp_path_factory.mktemp("trained"), CandidateConfig(candidates=30)
    write_scout_rows(tastes / "train", folder / "rows", config)
    retriever, scout = train_retriever(tastes / "train"), train_retriever(folder / "rows")
    build_candidates(retriever, items, users, folder / "candidates", config, scout=scout)
    rows = Loader(folder / "candidates/train", batch_size=64, shuffle=True)
    ranker = MLP.from_schema(rows.schema, MLP.Config(hidden=(), columns=("retriever_share", "history_length")))
    Trainer(TrainConfig(epochs=8, learning_rate=0.05, precision="float32")).fit(ranker, rows)
    return retriever, ranker, folder / "candidates"


@pytest.fixture(scope="module")
def report(tastes: Path, trained: tuple[TwoTower, MLP, Path]) -> dict[str, Any]:
    return report_of(tastes, trained)


def report_of(tastes: Path, trained: tuple[TwoTower, MLP, Path]) -> dict[str, Any]:
    retriever, ranker, candidates = trained
    items, users = read_items(tastes / "items"), read_users(tastes / "users")
    both = TwoStage(sources_of({"retriever": retriever}, items), candidate_rows(users, items), ranker, candidates=30)
    models = {"retriever": retriever, "two_stage": both}
    return evaluate(tastes, models, EvaluationConfig(ks=(5,)), ranker=ranker, candidates=candidates, key="key")


def test_a_report_says_what_was_measured_on_what(tastes: Path, report: dict[str, Any]) -> None:
    assert list(report) == [
        "format", "data", "protocol", "segments", "best", "models", "left_out", "ranker", "examples", "key"
    ]  # fmt: skip
    sha = read_manifest(tastes, "features").sha256
    assert report["data"] == {"users": 60, "items": 40, "train": 480, "test": 240, "unknown": 0, "sha256": sha}
    assert report["protocol"] == {
        "name": None, "split": "random", "k": 10, "relevant": "every test row", "map_by": "all", "recall_by": "all",
        "items": "all", "seen_removed": True, "users": 60,
    }  # fmt: skip
    assert list(report["models"]) == ["Popular", "EASE", "retriever", "two_stage"]
    assert set(report["models"]["retriever"]["ranking"]["ndcg@5"]) == {"value", "low", "high"}
    assert report["ranker"]["rows"] == sum(bin["rows"] for bin in report["ranker"]["curve"])
    assert report["key"] == "key"


def test_a_retriever_that_learned_two_tastes_beats_popularity(report: dict[str, Any]) -> None:
    models = {name: one["ranking"]["recall@10"]["value"] for name, one in report["models"].items()}
    assert min(models["retriever"], models["two_stage"], models["EASE"]) >= 1.5 * models["Popular"]
    gain = report["models"]["retriever"]["to_popular"]["recall@10"]
    assert gain["value"] == pytest.approx(models["retriever"] - models["Popular"], abs=2e-6)
    assert 0 < gain["low"] <= gain["value"] <= gain["high"]
    assert gain["p"] <= 0.05


def test_only_the_best_model_has_no_distance_to_it(report: dict[str, Any]) -> None:
    values = {name: one["ranking"]["ndcg@10"]["value"] for name, one in report["models"].items()}
    assert report["best"] == max(values, key=lambda name: values[name])
    assert {name for name, one in report["models"].items() if "to_best" not in one} == {report["best"]}
    assert "to_popular" not in report["models"]["Popular"]


def test_the_ranker_beats_luck(report: dict[str, Any]) -> None:
    ranker = report["ranker"]
    assert ranker["auc"] > ranker["base_auc"]
    assert 0.5 < ranker["gauc"] <= 1


def test_equal_figures_are_equal_bytes(tastes: Path, trained: tuple[TwoTower, MLP, Path], tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_report(report_of(tastes, trained), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert read_report(tmp_path / "a") == report_of(tastes, trained)


def test_pairs_are_looked_at_one_after_the_other(tastes: Path, trained: tuple[TwoTower, MLP, Path]) -> None:
    trained[0].train()
    report = evaluate(tastes, ((name, trained[0]) for name in ("first", "EASE")), EvaluationConfig(k=5))
    assert all(module.training for module in trained[0].modules())  # as it was
    assert list(report["models"]) == ["Popular", "EASE", "first"]
    assert "ranker" not in report
    assert report["models"]["EASE"]["ranking"] == report["models"]["first"]["ranking"]
    assert {"recall@5", "ndcg@5", "mrr@5", "hit_rate@5"} < set(report["models"]["Popular"]["ranking"])


def test_counts_of_the_whole_catalogue_are_kept_for_few_blocks_of_users(
    tastes: Path, trained: tuple[TwoTower, MLP, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = evaluate(tastes, {"mine": trained[0]}, EvaluationConfig(k=5))
    kept: list[int] = []
    merge = ListMetrics.merge

    def counted(self: ListMetrics, states: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        kept.append(len(states))
        return merge(self, states)

    monkeypatch.setattr(judge, "USER_ROWS", 3)
    monkeypatch.setattr(ListMetrics, "merge", counted)
    assert evaluate(tastes, {"mine": trained[0]}, EvaluationConfig(k=5)) == whole
    assert len(kept) > 2 * len(whole["models"])
    assert max(kept) == judge.STATES


class ShowsNothing:
    """Has no item for anybody."""

    def search(self, users: Batch, k: int, exclude: Ragged | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((users.rows, k), -torch.inf), torch.full((users.rows, k), -1)


def test_a_figure_without_a_value_is_said(small: Path) -> None:
    assert figure(small, "none", ShowsNothing(), EvaluationConfig(k=3), "recall@3") == 0
    with pytest.raises(DataError, match="`novelty@3` of `none` has no value here"):
        figure(small, "none", ShowsNothing(), EvaluationConfig(k=3), "novelty@3")
    with pytest.raises(ConfigError, match=r"no metric `novelt@3`(?s:.*)`novelty@3`"):
        figure(small, "none", ShowsNothing(), EvaluationConfig(k=3), "novelt@3")


def test_two_models_of_one_name_are_refused(small: Path) -> None:
    items = read_items(small / "items")
    with pytest.raises(ConfigError, match="two models are called `Popular`"):
        evaluate(small, {"Popular": popular(items)})


def test_a_list_has_one_place_at_least() -> None:
    with pytest.raises(ConfigError, match="k=0"):
        EvaluationConfig(ks=(0,))


def test_luck_is_log_odds_with_a_prior() -> None:
    users, items = np.array([0, 0, 1, 1]), np.array([3, 4, 3, 4])
    luck = Luck.fit(users, items, np.array([1.0, 1.0, 0.0, 0.0]))
    # Half of everything is taken: (2 + 10 / 2) wins of 2 + 10 for user 0.
    assert luck.average == pytest.approx(0.0)
    assert luck.logits(np.array([0, 1, 9]), np.array([3, 4, 99])).tolist() == pytest.approx(
        [math.log(7 / 5), math.log(5 / 7), 0.0]
    )


FIGURE = {"value": 0.25, "low": 0.2, "high": 0.3}
REPORT = {
    "format": 2,
    "data": {"users": 1200, "items": 40},
    "protocol": {"users": 1000},
    "models": {"Popular": {"ranking": {"recall@10": FIGURE, "ndcg@10": FIGURE}}},
    "left_out": {"EASE": "too large"},
    "published": {"data": "ML", "source": "S", "models": {"SAR": {"recall@10": 0.176}}},
    "ranker": {"auc": 0.8, "gauc": 0.7, "log_loss": 0.5, "base_auc": None},
}


def test_the_table_shows_models_intervals_and_the_ranker() -> None:
    text = table_text(REPORT, ["recall@10"])
    assert "│ Popular │ 0.2500 (0.2000 to 0.3000) │" in text
    assert "│ SAR *   │                    0.1760 │" in text
    assert "1,000 users have something in the test, 1,200 are known to training; all 40 items compete" in text
    assert "* published, for ML (S)\nEASE is left out: too large\n" in text
    assert text.endswith(
        "ranker, taken or not: AUC 0.8000, within users 0.7000, log loss 0.5000; users' and items' luck alone: AUC none"
    )


def test_a_metric_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="the report has no metric `recall@20`\n\nhint: did you mean `recall@10`"):
        table_text(REPORT, ["recall@20"])


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("{", "is not a report"),
        ("[]", "is not a report"),
        (json.dumps({"format": 1}), "has report format 1, this version reads 2"),
    ],
)
def test_a_damaged_report_is_refused(tmp_path: Path, content: str, match: str) -> None:
    (tmp_path / "report.json").write_text(content)
    with pytest.raises(ArtifactError, match=match):
        read_report(tmp_path / "report.json")


def test_a_missing_report_says_who_writes_it(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="hint: `falconet evaluate` writes it"):
        read_report(tmp_path / "report.json")
