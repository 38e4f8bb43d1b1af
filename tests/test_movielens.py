"""The whole road on real data: ml-latest-small through the shipped recipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_recipe_beats_popularity_on_real_data(movielens_small: Path, tmp_path: Path) -> None:
    command = ["run", ROOT / "recipes/movielens.toml", "--set", f"data.path={movielens_small}", "--json", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "falconet", *map(str, command)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    report = json.loads(done.stdout)
    assert report == json.loads((tmp_path / "work/report.json").read_text())
    data = report["data"]
    assert (data["users"], data["train"], data["train"] + data["test"]) == (610, 80_672, 100_836)
    ndcg = {name: figures["ranking"]["ndcg@10"]["value"] for name, figures in report["models"].items()}
    assert ndcg["Popular"] == pytest.approx(0.19, abs=0.02)
    assert ndcg["retriever"] >= 1.5 * ndcg["Popular"]
    assert ndcg["two_stage"] >= ndcg["retriever"]
    assert report["ranker"]["auc"] > report["ranker"]["base_auc"]
