"""From raw files through a recipe's own preparation to a bundle: the features served are those of the tables."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from falconet.batch import Ragged
from falconet.io.footer import read_schema
from falconet.loader.loader import Loader
from falconet.models.base import MODELS
from falconet.models.store import save_model
from falconet.recipe.config import ColumnsConfig, DataConfig, PrepareConfig, Recipe, StageConfig
from falconet.recipe.prepare import prepare
from falconet.serve.bundle import Bundle, ServingConfig, build_bundle
from falconet.serve.recommender import Recommender

USERS, ITEMS = 12, 20


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the features of clicks on goods: string ids, no ratings, a brand and a price per item."""
    folder = tmp_path_factory.mktemp("goods")
    rows = [(u, (3 * u + j * (1 + u % 2)) % ITEMS, 1000 * j + u) for u in range(USERS) for j in range(4 + u % 7)]
    clicks = {
        "who": [f"u{u}" for u, _, _ in rows],
        "what": [f"i{i}" for _, i, _ in rows],
        "when": [t for _, _, t in rows],
    }
    goods = {
        "what": [f"i{i}" for i in range(ITEMS)],
        "title": [f"Thing {i}" for i in range(ITEMS)],
        "brand": [["a", "b", "c"][i % 3] for i in range(ITEMS)],
        "price": [float(i) for i in range(ITEMS)],
    }
    pq.write_table(pa.table(clicks), folder / "clicks.parquet")
    pq.write_table(pa.table(goods), folder / "goods.parquet")
    recipe = Recipe(
        format=1,
        data=DataConfig(reader="files", path=str(folder / "clicks.parquet"), items=str(folder / "goods.parquet")),
        columns=ColumnsConfig(user="who", item="what", time="when", rating=None, item_features=("brand", "price")),
        prepare=PrepareConfig(max_items=5),
        retriever=StageConfig(model="TwoTower", batch_size=512),
        ranker=StageConfig(model="MLP", batch_size=1024),
    )
    prepare(recipe, folder / "work", step="x")
    return folder / "work"


@pytest.fixture(scope="module")
def bundle(work: Path) -> Bundle:
    torch.manual_seed(0)
    save_model(MODELS["TwoTower"].from_schema(read_schema(work / "features/train")), work / "model")
    return build_bundle(
        work / "bundle",
        workflow=work / "workflow",
        retriever=work / "model",
        ranker=None,
        items=work / "features/items",
        users=work / "features/users",
        config=ServingConfig(user="who", item="what", candidates=10, history=5, verb="bought"),
        data={"rows": 1, "from": None, "to": None},
    )


def test_everybody_is_served_with_the_features_of_the_table_of_users(work: Path, bundle: Bundle) -> None:
    features = bundle.engine.features
    names = features.schema.names
    assert set(names) == {"who", "history"}
    for person, trained in enumerate(Loader(work / "features/users", batch_size=1, columns=names).batches()):
        served = features.batch(person, None, features.history(person), {}).features
        for name in names:
            one, two = served[name], trained.features[name]
            if isinstance(one, Ragged) and isinstance(two, Ragged):
                assert one.to_lists() == two.to_lists()
                assert one.values.dtype == two.values.dtype
            else:
                assert isinstance(one, torch.Tensor)
                assert isinstance(two, torch.Tensor)
                assert one.dtype == two.dtype
                assert torch.equal(one, two)


def test_a_store_of_goods_is_recommended_from(bundle: Bundle) -> None:
    recommender = Recommender(bundle)
    answer = recommender.recommend("u3", k=4)
    assert not answer.cold_start
    assert len(answer.items) == 4
    item = answer.items[0]
    number = int(str(item.item_id)[1:])
    assert item.title == f"Thing {number}"
    assert item.attributes == {"brand": ["a", "b", "c"][number % 3], "price": float(number)}
    reasons = {item.reason for item in recommender.recommend("u3", k=20).items if item.because is not None}
    assert all(reason.startswith("Because you bought Thing ") for reason in reasons)
