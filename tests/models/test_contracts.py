"""Every model keeps the contract, in a size for tests."""

from __future__ import annotations

from falconet.models import MLP, MODELS, Popular, TwoTower
from falconet.testing.models import ModelContract, RetrieverContract


class TestMLP(ModelContract):
    model = MLP
    config = MLP.Config(hidden=(8, 4))


class TestLinearModel(ModelContract):
    model = MLP
    config = MLP.Config(hidden=(), dim=2, columns=("genres", "year", "age"))


class TestMLPWithoutEmbeddings(ModelContract):
    model = MLP
    config = MLP.Config(hidden=(4,), columns=("year", "age"), loss="mse")


class TestTwoTower(RetrieverContract):
    model = TwoTower
    config = TwoTower.Config(dim=8)


class TestTwoTowerWithUnitVectorsAndUserIds(RetrieverContract):
    model = TwoTower
    config = TwoTower.Config(dim=4, user_id=True, normalize=True, temperature=0.1, history_dropout=0.0)


class TestPopular(RetrieverContract):
    model = Popular
    learns = False


def contracts(kind: type[ModelContract]) -> set[type[ModelContract]]:
    return {kind} | {found for sub in kind.__subclasses__() for found in contracts(sub)}


def test_every_registered_model_has_its_contract_tested() -> None:
    tested = {kind.model.__name__ for kind in contracts(ModelContract) if hasattr(kind, "model")}
    assert tested == set(MODELS)
