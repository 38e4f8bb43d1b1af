"""The whole road on real data: ml-latest-small through the shipped recipe."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from beside import ROOT, Ended


def recipe(folder: Path) -> tuple[list[str], dict[str, str]]:
    data = Path(os.environ.get("FALCONET_DATA", "")) / "ml-latest-small"
    command = ["run", ROOT / "recipes/movielens.toml", "--set", f"data.path={data}", "--out", folder / "work"]
    return ["-W", "error", "-m", "falconet", *map(str, command), "--json", "--quiet"], {}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.beside(run=recipe)
def test_the_recipe_beats_popularity_on_real_data(movielens_small: Path, ended: Ended) -> None:
    assert ended.code == 0, ended.err
    assert ended.err == ""
    report = json.loads(ended.out)
    assert report == json.loads((ended.folder / "work/report.json").read_text())
    data = report["data"]
    assert (data["users"], data["train"], data["train"] + data["test"]) == (610, 80_672, 100_836)
    ndcg = {name: figures["ranking"]["ndcg@10"]["value"] for name, figures in report["models"].items()}
    assert ndcg["Popular"] == pytest.approx(0.19, abs=0.02)
    assert ndcg["retriever"] >= 1.5 * ndcg["Popular"]
    assert ndcg["two_stage"] >= ndcg["retriever"]
    assert report["ranker"]["auc"] > report["ranker"]["base_auc"]
