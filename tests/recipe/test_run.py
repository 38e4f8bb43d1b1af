"""A recipe from end to end on a small generated data set: what is made, what is skipped, what is made again."""

from __future__ import annotations

import json
import multiprocessing
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from falconet.batch import Batch, Ragged
from falconet.cli.main import app
from falconet.config import to_plain
from falconet.datasets.synthetic import synthesize
from falconet.errors import ArtifactError, ColumnNotFoundError, ConfigError, SchemaError
from falconet.evaluation.recommend import TwoStage
from falconet.evaluation.report import read_report
from falconet.evaluation.tables import read_users
from falconet.io.artifact import read_artifact, read_manifest
from falconet.io.footer import read_schema, row_groups
from falconet.models import EASE, MODELS
from falconet.models.store import load_model
from falconet.progress import set_quiet
from falconet.recipe import stages
from falconet.recipe.config import CompareConfig, DataConfig, Recipe, RetrieverConfig, StageConfig, read_recipe
from falconet.recipe.demo import next_commands
from falconet.recipe.lock import locked
from falconet.recipe.run import compare, raw_fingerprint, run, steps
from falconet.serve.bundle import load_bundle
from falconet.serve.current import bundle_folder
from falconet.serve.recommender import Recommender

STEPS = ("prepare", "retriever", "scout", "candidates", "ranker", "evaluate", "bundle")
DEMO = Path(__file__).parent.parent.parent / "src/falconet/recipe/demo.toml"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    data = synthesize(tmp_path_factory.mktemp("raw") / "data", users=150, items=120, rows=6_000, seed=3)
    settings = ["retriever.train.epochs=2", "ranker.train.epochs=2", "bundle.candidates=40", "retriever.batch_size=256"]
    return read_recipe(DEMO, [f"data.path={data}", *settings])


@pytest.fixture(scope="module")
def finished(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("finished") / "work"
    run(recipe, work)
    return work


@pytest.fixture
def work(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished folder: where it lies changes nothing."""
    shutil.copytree(finished, tmp_path / "work")
    return tmp_path / "work"


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    set_quiet(False)
    return lambda: [x.split(":")[0] for x in capsys.readouterr().err.splitlines() if x.endswith("unchanged, skipped")]


def test_every_folder_is_whole(finished: Path) -> None:
    kinds = {"features": "features", "workflow": "workflow", "candidates": "candidates", "bundle": "bundle"}
    for name, kind in kinds.items():
        assert read_artifact(finished / name, kind).sha256
    for name in ("retriever", "scout/retriever", "ranker"):
        assert read_artifact(finished / "runs" / name, "run").sha256


def test_the_tables_are_those_of_the_contract(finished: Path) -> None:
    train = read_schema(finished / "features/train")
    assert train.names == ("userId", "movieId", "genres", "year", "history", "rating", "seconds_since_1970")
    assert not train["seconds_since_1970"].tags
    assert train["history"].table == train["movieId"].table
    assert train.select("target").names == ("rating",)
    assert not train.select("item", "user").names
    users = pq.read_table(finished / "features/users/part-00000.parquet")
    assert users.column_names == ["userId", "user_id", "history", "seen", "relevant", "relevant_unknown"]
    codes = users.column("userId").to_pylist()
    assert codes == sorted(codes)
    assert len(codes) == 150
    items = pq.read_table(finished / "features/items/part-00000.parquet")
    assert {"movieId", "item_id", "title", "genres", "year", "count", "log_popularity"} <= set(items.column_names)
    rows = sum(map(len, users.column("seen").to_pylist()))
    assert sum(items.column("count").to_pylist()) == rows
    assert sum(group.rows for group in row_groups(finished / "features/train")) == rows


def test_the_report_has_three_models_and_the_ranker(finished: Path) -> None:
    report = json.loads((finished / "report.json").read_text())
    assert list(report["models"]) == ["Popular", "EASE", "retriever", "two_stage"]
    assert {"auc", "gauc", "log_loss", "base_auc", "ece", "curve"} < set(report["ranker"])
    assert report["data"]["train"] + report["data"]["test"] == 6_000
    for figures in report["models"].values():
        for figure in figures["ranking"].values():
            assert 0 <= figure["low"] <= figure["value"] <= figure["high"] <= 1


def test_what_was_popular_of_late_stands_beside_what_is_popular(recipe: Recipe, work: Path) -> None:
    recent = CompareConfig(name="recent", model="Popular", config={"half_life": 30.0})
    models = compare(replace(recipe, compare=(recent,)), work)["models"]
    assert list(models) == ["Popular", "EASE", "recent"]
    assert models["recent"]["ranking"] != models["Popular"]["ranking"]


@pytest.mark.parametrize("stage", ["retriever", "compare"])
def test_popular_of_late_without_times_is_named_before_any_training(recipe: Recipe, tmp_path: Path, stage: str) -> None:
    recent = {"model": "Popular", "batch_size": 8, "name": "recent", "config": {"half_life": 30.0}}
    kind = {"retriever": RetrieverConfig, "compare": CompareConfig}[stage]
    untimed = replace(
        recipe,
        columns=replace(recipe.columns, time=None),
        prepare=replace(recipe.prepare, history="others"),
        **{stage: (kind(**recent),)},
    )
    with pytest.raises(ConfigError, match=r"(?s)`recent`.* needs to know when items were taken.*`columns.time` names"):
        run(untimed, tmp_path / "work")
    assert not (tmp_path / "work/runs").exists()


def test_a_ranker_of_few_steps_does_not_turn_its_candidates_around(recipe: Recipe, tmp_path: Path) -> None:
    """Two steps: what they would be spent on without a start at the mean is the bias, which takes the weights along."""
    ranker = replace(
        recipe.ranker,
        batch_size=10**6,
        config={"hidden": [], "columns": ["retriever_standing"]},
        train={"epochs": 2, "precision": "float32", "learning_rate": 0.05},
    )
    report = run(replace(recipe, ranker=ranker), tmp_path / "work")
    weight = load_model(tmp_path / "work/runs/ranker/model").state_dict()["layers.first.weight"]
    assert weight.item() > 0
    ndcg = {name: one["ranking"]["ndcg@10"]["value"] for name, one in report["models"].items()}
    assert ndcg["two_stage"] == ndcg["retriever"]


def test_a_second_run_skips_everything(recipe: Recipe, work: Path, said: Callable[[], list[str]]) -> None:
    before = (work / "report.json").read_bytes()
    run(recipe, work)
    assert said() == list(STEPS)
    assert (work / "report.json").read_bytes() == before


def test_the_same_recipe_gives_the_same_bytes(recipe: Recipe, finished: Path, tmp_path: Path) -> None:
    run(recipe, tmp_path / "again")
    told = ("bundle/about/runs.json", "bundle/about/data.json", "bundle/manifest.json")
    for name in ("report.json", "runs/retriever/metrics.jsonl", "features/train/manifest.json", *told):
        assert (tmp_path / "again" / name).read_bytes() == (finished / name).read_bytes()


def test_the_bundle_tells_of_its_runs_and_its_data(finished: Path, recipe: Recipe) -> None:
    runs, data, times = (
        json.loads((finished / f"bundle/about/{name}.json").read_bytes()) for name in ("runs", "data", "times")
    )
    assert [run["name"] for run in runs["runs"]] == ["retriever", "ranker", "scout/retriever"]
    retriever = runs["runs"][0]
    lines = (finished / "runs/retriever/metrics.jsonl").read_text().splitlines()
    assert retriever["epochs"] == [json.loads(line) for line in lines]
    assert retriever["settings"]["train.epochs"] == len(lines)
    assert runs["report"]["models"]["two_stage"]["users"].keys() >= {"low", "high"}
    assert "examples" not in json.dumps(runs["report"])
    assert (data["users"], data["interactions"]) == (150, sum(end[1] for end in _counts(finished)))
    assert [table["name"] for table in data["tables"]] == ["interactions", "items"]
    names = {column["name"] for column in data["tables"][0]["columns"]}
    assert names == {"userId", "movieId", "genres", "year", "history", "rating"}
    assert data["same_features"] == {"rows": 100, "columns": dict.fromkeys(("userId", "movieId", "genres", "year"), 0)}
    assert set(times["runs"]["retriever"]["rows_per_s"]) == {str(n + 1) for n in range(len(lines))}
    assert set(times["steps"]) == {str(s["id"]) for s in data["workflow"]["steps"] if s["rows"] is not None}
    told = json.dumps([runs, data, times])
    assert str(finished.parent) not in told
    assert str(recipe.data.path) not in told


def _counts(work: Path) -> list[tuple[int, int]]:
    table = pq.read_table(work / "features/items/part-00000.parquet", columns=["movieId", "count"])
    return list(zip(table.column("movieId").to_pylist(), table.column("count").to_pylist(), strict=True))


def test_the_bundle_tells_of_every_week(finished: Path) -> None:
    data = json.loads((finished / "bundle/about/data.json").read_bytes())
    train = pl.read_parquet(finished / "split/train/*.parquet")
    assert sum(data["weeks"]["all"]) == len(train) == data["interactions"]
    titles = {item.title: item.item_id for item in Recommender.load(finished / "bundle").search_items(limit=9)}
    column = read_recipe(DEMO, ["data.path=x"]).columns.item
    for item in data["weeks"]["items"]:
        assert sum(item["counts"]) == len(train.filter(pl.col(column) == titles[item["title"]]))


def test_a_bundle_without_an_evaluation_gets_its_figures_once_there_is_one(
    recipe: Recipe, work: Path, said: Callable[[], list[str]]
) -> None:
    report = work / "report.json"
    kept = report.read_bytes()
    report.unlink()
    run(recipe, work, only="bundle")
    assert json.loads((work / "bundle/about/runs.json").read_bytes())["report"] is None
    report.write_bytes(kept)
    said()
    run(recipe, work)
    assert said() == list(STEPS[:-1])
    assert json.loads((work / "bundle/about/runs.json").read_bytes())["report"]["k"] == 10


@pytest.mark.parametrize(
    ("change", "skipped"),
    [
        ({"evaluate": {"k": 5, "metrics": ("ndcg@5",)}}, [step for step in STEPS if step != "evaluate"]),
        ({"ranker": {"train": {"epochs": 1}}}, ["prepare", "retriever", "scout", "candidates"]),
        ({"ranker": {"model": "DIN", "config": {"dim": 4}, "train": {}}}, ["prepare", "retriever", "scout"]),
        ({"bundle": {"candidates": 30}}, ["prepare", "retriever", "scout"]),
        ({"bundle": {"verb": "bought"}}, [step for step in STEPS if step != "bundle"]),
    ],
    ids=["evaluate", "ranker", "ranker that reads histories", "candidates", "verb"],
)
def test_a_changed_setting_runs_the_steps_that_read_it(
    recipe: Recipe, work: Path, said: Callable[[], list[str]], change: dict[str, Any], skipped: list[str]
) -> None:
    changed = {name: replace(getattr(recipe, name), **values) for name, values in change.items()}
    run(replace(recipe, **changed), work)
    assert said() == skipped


def test_a_damaged_folder_is_made_again(recipe: Recipe, work: Path, said: Callable[[], list[str]]) -> None:
    index = work / "bundle/indexes/retriever.safetensors"
    data = bytearray(index.read_bytes())
    data[-1] ^= 1
    index.write_bytes(data)
    run(recipe, work)
    assert said() == list(STEPS[:-1])
    assert read_artifact(work / "bundle", "bundle").sha256


def test_a_step_without_its_inputs_says_what_is_missing(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"(?s)no features at `.*`.*`falconet prepare` makes it"):
        run(recipe, tmp_path / "empty", only="evaluate")


def test_an_unknown_feature_of_the_items_is_named(recipe: Recipe, tmp_path: Path) -> None:
    columns = replace(recipe.columns, item_features=("genre",))
    with pytest.raises(Exception, match=r"(?s)no column `genre`.*did you mean `genres`"):
        run(replace(recipe, columns=columns), tmp_path / "work")


def _hold(folder: Path, held: Any, release: Any) -> None:
    with locked(folder):
        held.set()
        release.wait(60)


def test_two_runs_in_one_folder_are_refused(recipe: Recipe, work: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(work, held, release))
    other.start()
    try:
        assert held.wait(60)
        with pytest.raises(ArtifactError, match=r"(?s)another falconet is working in .*choose another --out"):
            run(recipe, work)
    finally:
        release.set()
        other.join()
    assert run(recipe, work)["models"]


def test_too_few_candidates_are_refused_before_any_work(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="candidates"):
        read_recipe(DEMO, ["bundle.candidates=3"])
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(("setting", "package"), [({"ranker": "onnx"}, "onnxscript"), ({"index": "ann"}, "faiss")])
def test_a_package_that_the_bundle_needs_is_named_before_any_work(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: dict[str, Any], package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    plan = replace(recipe, bundle=replace(recipe.bundle, **setting))
    for only in (None, "bundle"):
        with pytest.raises(ConfigError, match=rf"(?s)needs? {package}.*falconet\["):
            run(plan, tmp_path / "work", only=only)
    assert not (tmp_path / "work").exists()


def test_what_lies_beside_the_raw_files_changes_nothing(
    recipe: Recipe, work: Path, said: Callable[[], list[str]], tmp_path: Path
) -> None:
    raw = tmp_path / "elsewhere"
    shutil.copytree(recipe.data.path, raw)
    (raw / "notes.txt").write_text("mine")
    (raw / "work").mkdir()
    run(replace(recipe, data=replace(recipe.data, path=str(raw))), work)
    assert said() == list(STEPS)


def test_another_raw_file_of_the_same_size_is_noticed(recipe: Recipe, tmp_path: Path) -> None:
    for name, text in (("a", "user,item\n1,2\n1,3\n"), ("b", "user,item\n1,2\n1,4\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.csv").write_text(text)
    keys = [
        raw_fingerprint(replace(recipe, data=DataConfig(reader="files", path=str(tmp_path / name))))
        for name in ("a", "b", "a/rows.csv", "a/*.csv")
    ]
    assert keys[0] != keys[1]
    assert keys[0] == keys[2] == keys[3]


def test_a_retriever_in_closed_form_is_fitted_evaluated_and_served(recipe: Recipe, work: Path) -> None:
    with pytest.raises(ConfigError, match="`EASE` has no training to set `epochs` of"):
        run(replace(recipe, retriever=(RetrieverConfig(model="EASE", batch_size=512, train={"epochs": 2}),)), work)
    run(replace(recipe, retriever=(RetrieverConfig(model="EASE", batch_size=512),)), work)
    models = read_report(work / "report.json")["models"]
    assert models["retriever"]["ranking"]["ndcg@10"]["value"] > models["Popular"]["ranking"]["ndcg@10"]["value"]
    recommender = Recommender(load_bundle(work / "bundle"))
    files = {file.name: file.stat().st_size for file in (work / "bundle").rglob("*") if file.is_file()}
    assert files["retriever.safetensors"] < 8 * 120 + 200  # codes alone, no vector for each item
    answer = recommender.recommend(1, k=3)
    assert len(answer.items) == 3
    model, codes = load_model(work / "runs/retriever/model"), recommender.bundle.engine.catalogue.codes
    assert isinstance(model, EASE)
    ids = recommender.bundle.engine.catalogue.ids
    first = ids.row(answer.items[0].item_id)
    met = [row for item in answer.history if (row := ids.row(item.item_id)) is not None]
    pulls = model.weights[codes[met], codes[first]]
    assert answer.items[0].because == ids.values[met[int(pulls.argmax())]]
    near = recommender.similar(answer.items[0].item_id, k=5)
    rows = [ids.row(item.item_id) for item in near]
    assert rows == model.weights[codes, codes[first]].sort(descending=True, stable=True).indices[:5].tolist()
    assert 1 >= near[0].similarity >= near[-1].similarity > 0
    diverse = recommender.recommend(1, k=3, diversity=1.0)
    assert [item.item_id for item in diverse.items] != [item.item_id for item in answer.items]


def test_the_demo_ends_with_what_to_try_next(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FALCONET_COMMAND", "python start.py")
    lines = next_commands(finished).splitlines()
    assert lines[0].startswith(f"next:  python start.py serve {finished / 'bundle'}  ")
    known = re.search(r"recommend .*bundle --user (\d+) ", lines[1])
    assert known is not None
    assert Recommender(load_bundle(finished / "bundle")).recommend(int(known[1]), k=1).cold_start is False


def test_run_ends_with_where_the_report_is_and_what_to_try_next(
    recipe: Recipe, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("falconet.cli.recipe._read", lambda *_: recipe)
    shown = CliRunner().invoke(app, ["run", "any.toml", "--out", str(work)])
    assert shown.exit_code == 0
    page, following = shown.stderr.splitlines()[-2:]
    assert page == f"the same with charts and lists: {work / 'report.html'}"
    assert (work / "report.html").is_file()
    command = following.removeprefix("next: falconet ").split("#")[0].split()
    assert command == ["serve", str(work)]
    assert bundle_folder(Path(command[1])) == work / "bundle"
    assert "report.html" not in shown.stdout


def test_what_is_served_is_what_was_evaluated(recipe: Recipe, work: Path) -> None:
    """Also to people whose history is cut: EASE reads all that they met, in the report and in the server."""
    ease = RetrieverConfig(model="EASE", batch_size=512)
    short = replace(
        recipe,
        retriever=(recipe.retriever[0], ease),
        ranker=replace(recipe.ranker, config={"hidden": [], "columns": ["*"]}),
        prepare=replace(recipe.prepare, max_items=10),
    )
    run(short, work)
    users = read_users(work / "features/users")
    assert int(users.seen.lengths.max()) > 50
    (*_, (name, both)) = stages.own(short, work)
    assert name == "two_stage"
    assert isinstance(both, TwoStage)
    expected = both.search(users.features, 10, users.seen)[1]
    recommender = Recommender.load(work / "bundle", threads=None)
    raw = pq.read_table(work / "features/users/part-00000.parquet").column("user_id").to_pylist()
    catalogue = recommender.bundle.engine.catalogue
    for row in range(0, len(raw), 7):
        said = [catalogue.code(item.item_id) for item in recommender.recommend(raw[row], k=10).items]
        assert said == expected[row].tolist()
    history = [catalogue.ids.values[i] for i in range(20)]
    codes = Ragged.of([[catalogue.code(item) for item in history]])
    stranger = Batch.of({"history": Ragged(codes.values[-10:], torch.tensor([0, 10])), "seen": codes})
    alone = both.search(stranger, 10, codes)[1]
    said = [catalogue.code(item.item_id) for item in recommender.recommend(history=history, k=10).items]
    assert said == alone[0].tolist()


@pytest.mark.parametrize("model", ["SASRec", "GRU4Rec", "MultVAE"])
def test_models_of_sequences_get_their_histories(recipe: Recipe, work: Path, model: str) -> None:
    small = to_plain(MODELS[model].debug())
    retriever = RetrieverConfig(model=model, batch_size=256, config=small, train={"epochs": 1, "precision": "float32"})
    din = StageConfig(model="DIN", batch_size=1024, config={"dim": 4, "attention": [4], "hidden": [8]})
    run(replace(recipe, retriever=(retriever,), ranker=din), work)
    assert load_model(work / "runs/ranker/model").config.columns is None
    recommender = Recommender.load(work / "bundle", threads=None)
    known = recommender.sample_users()[0].user_id
    start = [item.item_id for item in recommender.start_items(3)]
    one, other = (recommender.recommend(history=list(h), k=10) for h in (start, start[:1]))
    assert len(recommender.recommend(known, k=10).items) == 10
    assert [i.score for i in one.items] != [i.score for i in other.items]


def test_several_retrievers_are_merged_ranked_evaluated_and_served(
    recipe: Recipe, work: Path, said: Callable[[], list[str]]
) -> None:
    ease = RetrieverConfig(model="EASE", batch_size=512)
    columns = ["*_standing", "log_popularity", "*_age*"]
    ranker = replace(recipe.ranker, config={"hidden": [], "columns": columns})
    two = replace(recipe, retriever=(recipe.retriever[0], ease), ranker=ranker)
    report = run(two, work)
    assert list(report["models"]) == ["Popular", "EASE", "TwoTower", "merged", "two_stage"]
    made = read_schema(work / "candidates/train").names
    assert {"TwoTower_share", "EASE_score", "EASE_rank", "retriever_rank"} < set(made)
    reads = load_model(work / "runs/ranker/model").config.columns
    assert reads == ("TwoTower_standing", "EASE_standing", "log_popularity")
    recommender = Recommender(load_bundle(work / "bundle"))
    assert recommender.describe()["models"]["retrievers"] == {"TwoTower": "TwoTower", "EASE": "EASE"}
    known = recommender.sample_users()[0].user_id
    answer = recommender.recommend(known, k=40)
    assert len({item.item_id for item in answer.items}) == 40
    named = [item.retrievers for item in answer.items]
    assert all(list(one) == ["TwoTower", "EASE"] and (one["TwoTower"].rank or one["EASE"].rank) for one in named)
    assert {1, None} < {one["EASE"].rank for one in named}
    said()
    capped = replace(two, retriever=(two.retriever[0], replace(ease, weight=0.0)))
    run(capped, work)
    assert said() == ["prepare", "retriever TwoTower", "retriever EASE", "scout TwoTower", "scout EASE"]
    first = Recommender(load_bundle(work / "bundle")).recommend(known, k=40)
    assert all(item.retrievers["TwoTower"].rank for item in first.items)  # EASE has an opinion, and names nothing


def test_what_a_ranker_cannot_read_is_said_before_anything_is_trained(recipe: Recipe, tmp_path: Path) -> None:
    wrong = replace(recipe, ranker=replace(recipe.ranker, config={"columns": ["retriever_shar"]}))
    message = r"(?s)the ranker cannot be built: .*no column `retriever_shar`.*did you mean `retriever_share`"
    with pytest.raises(ColumnNotFoundError, match=message):
        run(wrong, tmp_path / "work")
    assert not (tmp_path / "work/runs").exists()
    with pytest.raises(
        SchemaError, match="the retriever `retriever` cannot be built: TwoTower has nothing to tell users"
    ):
        run(replace(recipe, prepare=replace(recipe.prepare, history="none")), tmp_path / "work")
    assert not (tmp_path / "work/runs").exists()


def test_a_workflow_of_another_recipe_is_made_again(
    recipe: Recipe, work: Path, said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read_manifest(work / "workflow").sha256

    def die(*_: object, **__: object) -> None:
        raise ArtifactError("killed")

    other = replace(recipe, split=replace(recipe.split, seed=9))
    with monkeypatch.context() as patch:
        patch.setattr("falconet.recipe.prepare.write_features", die)
        with pytest.raises(ArtifactError, match="killed"):
            run(other, work)
    assert read_manifest(work / "workflow").sha256 != before
    run(recipe, work)
    assert said() == list(STEPS[1:])
    assert read_manifest(work / "workflow").sha256 == before


@pytest.mark.parametrize(
    ("name", "again"), [("split", "prepare"), ("candidates", "candidates"), ("runs/scout/retriever", "scout")]
)
def test_a_lost_folder_between_steps_is_made_again(
    recipe: Recipe, work: Path, said: Callable[[], list[str]], name: str, again: str
) -> None:
    before = read_manifest(work / name).sha256
    shutil.rmtree(work / name)
    run(recipe, work)
    assert said() == [step for step in STEPS if step != again]
    assert read_manifest(work / name).sha256 == before


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("{")], ids=["lost", "cut"])
def test_a_run_whose_settings_cannot_be_read_is_trained_anew(
    recipe: Recipe, work: Path, said: Callable[[], list[str]], damage: Callable[[Path], object]
) -> None:
    before = read_manifest(work / "runs/ranker").sha256
    damage(work / "runs/ranker/config.json")
    run(recipe, work)
    assert said() == [step for step in STEPS if step != "ranker"]
    assert read_manifest(work / "runs/ranker").sha256 == before


@pytest.mark.parametrize("name", ["features", "report.json"])
def test_what_falconet_did_not_make_is_never_replaced(recipe: Recipe, tmp_path: Path, name: str) -> None:
    mine = tmp_path / "work" / name
    mine.mkdir(parents=True)
    (mine / "mine.txt").write_text("mine")
    with pytest.raises(ArtifactError, match=r"(?s)did not make it.*choose another --out"):
        run(recipe, tmp_path / "work")
    assert [p.name for p in (tmp_path / "work").iterdir()] == [name]
    assert (mine / "mine.txt").read_text() == "mine"


def test_a_bundle_of_an_older_format_is_made_anew(
    recipe: Recipe, work: Path, said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("falconet.serve.bundle.FORMAT", 2)
    assert not steps(recipe, work)[-1].complete(steps(recipe, work)[-1].key())
    monkeypatch.undo()
    assert steps(recipe, work)[-1].complete(steps(recipe, work)[-1].key())
