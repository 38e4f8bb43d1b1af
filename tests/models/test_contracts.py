"""Every model keeps the contract, in a size for tests."""

from __future__ import annotations

from dataclasses import replace

from falconet.models import DCN, DIN, DLRM, MLP, MODELS, DeepFM, TwoTower, WideDeep
from falconet.schema import Column, Schema, Tag
from falconet.testing.models import EXAMPLE, ModelContract, RetrieverContract, contract_of

COVER = Column(name="cover.vector", dtype="float32", list=5, tags=frozenset({Tag.ITEM, Tag.EMBEDDING}))
WITH_VECTORS = Schema((*EXAMPLE, COVER))
NOT_EXPORTED = {"GRU4Rec", "IALS"}  # torch's recurrent layers, and systems of equations, are no program

for name in MODELS:  # each in its debug size; other settings follow
    globals()[f"Test{name}"] = contract_of(MODELS[name], exports=name not in NOT_EXPORTED)


class TestLinearModel(ModelContract):
    model = MLP
    config = MLP.Config(hidden=(), dim=2, columns=("genres", "year", "age"))


class TestMLPWithoutEmbeddings(ModelContract):
    model = MLP
    config = MLP.Config(hidden=(4,), columns=("year", "age"), loss="mse")


class TestMLPWithSoftNumbers(ModelContract):
    model = MLP
    config = MLP.Config(hidden=(8,), dim=4, soft_numbers=3, dropout=0.1)


class TestDLRMWithoutNumbers(ModelContract):
    model = DLRM
    config = DLRM.Config(dim=4, top=(8,), columns=("item", "genres", "hour"), batch_norm=False)


class TestDLRMWithSoftNumbers(ModelContract):
    model = DLRM
    config = DLRM.Config(dim=4, top=(8,), soft_numbers=4)


class TestMLPWithVectorsFromElsewhere(ModelContract):
    model = MLP
    config = MLP.Config(hidden=(8,))
    schema = WITH_VECTORS


class TestDLRMWithVectorsFromElsewhere(ModelContract):
    model = DLRM
    config = DLRM.Config(dim=4, top=(8,), soft_numbers=3)
    schema = WITH_VECTORS


class TestDeepFMOfVectorsFromElsewhere(ModelContract):
    model = DeepFM
    config = DeepFM.Config(dim=4, hidden=(8,), columns=("item", "cover.vector"))
    schema = WITH_VECTORS


class TestParallelDCN(ModelContract):
    model = DCN
    config = DCN.Config(dim=2, structure="parallel", crosses=1, hidden=(8,), pooling="sum")


class TestLowRankDCN(ModelContract):
    model = DCN
    config = DCN.Config(dim=2, crosses=2, rank=2, hidden=(8,))


class TestMixedDCN(ModelContract):
    model = DCN
    config = DCN.Config(dim=2, crosses=2, rank=2, experts=3, hidden=(8,), loss="mse")


class TestDeepFMWithSoftNumbers(ModelContract):
    model = DeepFM
    config = DeepFM.Config(dim=4, hidden=(8,), soft_numbers=3, columns=("item", "year", "age"))


class TestDeepFMOfNumbers(ModelContract):
    model = DeepFM
    config = DeepFM.Config(dim=4, hidden=(8,), columns=("year", "age"))


class TestDINWithPaddedHistoriesAndSoftmax(ModelContract):
    model = DIN
    config = DIN.Config(dim=4, attention=(4,), hidden=(8,), softmax=True, soft_numbers=2)
    schema = Schema((*EXAMPLE.without(["history"]), replace(EXAMPLE["history"], list=3)))


class TestWideDeepOfParts(ModelContract):
    model = WideDeep
    config = WideDeep.Config(dim=4, hidden=(8,), wide=("hour", "year"), deep=("item", "genres", "age"))


class TestTwoTowerWithUnitVectorsAndUserIds(RetrieverContract):
    model = TwoTower
    config = TwoTower.Config(dim=4, user_id=True, normalize=True, temperature=0.1, history_dropout=0.0)
