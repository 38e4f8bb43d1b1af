"""Every model keeps the contract, in a size for tests."""

from __future__ import annotations

from falconet.models import MLP, MODELS, TwoTower
from falconet.testing.models import ModelContract, RetrieverContract, contract_of

for name in MODELS:  # each in its debug size; other settings follow
    globals()[f"Test{name}"] = contract_of(MODELS[name])


class TestLinearModel(ModelContract):
    model = MLP
    config = MLP.Config(hidden=(), dim=2, columns=("genres", "year", "age"))


class TestMLPWithoutEmbeddings(ModelContract):
    model = MLP
    config = MLP.Config(hidden=(4,), columns=("year", "age"), loss="mse")


class TestTwoTowerWithUnitVectorsAndUserIds(RetrieverContract):
    model = TwoTower
    config = TwoTower.Config(dim=4, user_id=True, normalize=True, temperature=0.1, history_dropout=0.0)
