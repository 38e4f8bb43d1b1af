"""What each ranking model has of its own."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from falconet.batch import Batch, Ragged
from falconet.errors import ColumnNotFoundError, ConfigError, SchemaError
from falconet.models import DCN, DIN, DLRM, MLP, DeepFM, MMoE, WideDeep
from falconet.models.ranker import Ranker
from falconet.nn.interaction import PairProducts, sum_of_pairs
from falconet.schema import Column, Schema, Tag
from falconet.testing.models import EXAMPLE, example_batch


@pytest.mark.parametrize(
    ("kind", "wrong", "named"),
    [
        (MLP, {"hidden": (8, 0)}, r"MLP hidden=\(8, 0\)"),
        (MLP, {"dropout": 1.0}, "MLP dropout=1.0"),
        (DLRM, {"dim": 0}, "DLRM dim=0"),
        (DLRM, {"top": ()}, r"DLRM top=\(\) has no layer"),
        (DLRM, {"soft_numbers": 1}, "DLRM soft_numbers=1 leaves nothing to choose"),
        (DCN, {"crosses": 0}, "DCN crosses=0"),
        (DCN, {"experts": 2}, "DCN experts=2 without a rank"),
        (DCN, {"structure": "both"}, r"`DCN\.Config\.structure` must be one of 'stacked', 'parallel', not 'both'"),
        (DeepFM, {"hidden": ()}, r"DeepFM hidden=\(\) has no layer"),
        (DIN, {"attention": (4, -1)}, r"DIN attention=\(4, -1\)"),
    ],
)
def test_settings_out_of_range_are_refused(kind: type[Ranker], wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        kind.Config(**wrong)
    assert caught.value.hint


def test_a_target_tagged_regression_is_learned_by_squared_error() -> None:
    stars = replace(EXAMPLE["label"], tags=frozenset({Tag.TARGET, Tag.REGRESSION}))
    model = MLP.from_schema(Schema((*EXAMPLE.without(["label"]), stars)), MLP.debug()).eval()
    batch = example_batch()
    torch.testing.assert_close(model.loss(batch), (model(batch) - batch.targets["label"]) ** 2)


def test_a_continuous_column_of_lists_is_refused() -> None:
    schema = Schema((*EXAMPLE, replace(EXAMPLE["year"], name="years", list="ragged")))
    with pytest.raises(SchemaError, match="`years` holds lists") as caught:
        DCN.from_schema(schema)
    assert caught.value.hint


def test_a_batch_with_lists_where_numbers_belong_is_refused() -> None:
    model = DLRM.from_schema(EXAMPLE, DLRM.debug()).eval()
    batch = example_batch()
    lists = Ragged(torch.ones(24), torch.arange(25))
    with pytest.raises(SchemaError, match="the batch's `age` holds lists"):
        model(replace(batch, features={**batch.features, "age": lists}))


class TestVectorsFromElsewhere:
    schema = Schema((*EXAMPLE, Column(name="cover", dtype="float32", list=5, tags=frozenset({Tag.EMBEDDING}))))

    @torch.no_grad()
    def test_they_are_fields_through_a_linear_layer(self) -> None:
        model = DLRM.from_schema(self.schema, DLRM.debug()).eval()
        batch = example_batch(self.schema)
        layer = model.inputs.layers["given_cover"]
        torch.testing.assert_close(model.inputs.vectors(batch)[:, -1], layer(batch.features["cover"]))
        torch.testing.assert_close(model.inputs(batch)[:, -4:], layer(batch.features["cover"]))
        assert (model.inputs.fields, model.inputs.width) == (6, 5 * 4 + 2 + 4)

    def test_lists_of_many_lengths_are_no_vectors(self) -> None:
        ragged = replace(self.schema["cover"], list="ragged")
        with pytest.raises(SchemaError, match="`cover` is tagged `embedding`, but holds no lists of one length"):
            DCN.from_schema(Schema((*EXAMPLE, ragged)))

    def test_a_batch_without_them(self) -> None:
        model = DLRM.from_schema(self.schema, DLRM.debug()).eval()
        with pytest.raises(ColumnNotFoundError, match="the batch has no column `cover`"):
            model(example_batch())
        lists = {**example_batch().features, "cover": Ragged(torch.ones(24), torch.arange(25))}
        with pytest.raises(SchemaError, match="the batch's `cover` holds no vectors of one length"):
            model(Batch.of(lists))


@torch.no_grad()
def test_dlrm_sees_the_vector_of_the_numbers_and_the_products_of_all_fields() -> None:
    model = DLRM.from_schema(EXAMPLE, DLRM.debug()).eval()
    batch = example_batch()
    assert model.bottom is not None
    numbers = model.bottom(model.inputs.numbers(batch))
    vectors = model.inputs.tables(batch)
    fields = torch.stack([numbers, *vectors.values()], dim=1)
    assert fields.shape == (24, 6, 4)
    want = model.top(torch.cat([numbers, PairProducts(6)(fields)], dim=1)).squeeze(1)
    torch.testing.assert_close(model(batch), want)
    assert model.top.first.in_features == 4 + 15


@torch.no_grad()
def test_deepfm_is_the_sum_of_its_three_parts() -> None:
    model = DeepFM.from_schema(EXAMPLE, DeepFM.debug()).eval()
    for weight in model.linear.parameters():
        torch.nn.init.normal_(weight)
    batch = example_batch()
    assert model.numbers is not None
    numbers = model.inputs.numbers(batch)
    fields = torch.cat(
        [torch.stack([*model.inputs.tables(batch).values()], 1), numbers.unsqueeze(2) * model.numbers.vectors], dim=1
    )
    first = model.linear.bias + numbers @ model.linear.slopes
    for weights in model.linear.inputs.tables(batch).values():
        first = first + weights[:, 0]
    want = first + sum_of_pairs(fields) + model.deep(fields.flatten(1)).squeeze(1)
    torch.testing.assert_close(model(batch), want)


def test_the_linear_part_shares_no_weights_between_columns() -> None:
    model = DeepFM.from_schema(EXAMPLE, DeepFM.debug())
    assert set(model.inputs.tables.tables) == {"genres", "hour", "item", "user"}
    assert set(model.linear.inputs.tables.tables) == {"genres", "history", "hour", "item", "user"}


class TestWideDeep:
    def test_each_part_reads_its_columns(self) -> None:
        model = WideDeep.from_schema(EXAMPLE, WideDeep.Config(dim=2, wide=("hour",), deep=("item", "age")))
        assert tuple(model.wide.inputs.tables.columns) == ("hour",)
        assert (tuple(model.inputs.tables.columns), model.inputs.continuous) == (("item",), ("age",))

    def test_a_column_that_is_not_an_input_is_named(self) -> None:
        with pytest.raises(ColumnNotFoundError, match="hint: did you mean `hour`"):
            WideDeep.from_schema(EXAMPLE, WideDeep.Config(wide=("hours",)))

    def test_a_part_without_columns_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"WideDeep deep=\(\) reads no column"):
            WideDeep.from_schema(EXAMPLE, WideDeep.Config(deep=()))


class TestDIN:
    @torch.no_grad()
    def test_the_same_history_weighs_differently_for_another_candidate(self) -> None:
        torch.manual_seed(0)
        model = DIN.from_schema(EXAMPLE.only(["item", "history", "label"]), DIN.debug()).eval()
        assert model.candidates == {"history": "item"}
        batch = Batch.of({"item": torch.tensor([1, 2, 1]), "history": Ragged.of([[3, 4], [3, 4], []])})
        vectors = [model.inputs.tables.weight("item")[code] for code in (1, 2)]
        attention = model.attention["history_history"]
        things = model.inputs.tables.weight("item")[[3, 4]]
        for row, candidate in enumerate(vectors):
            both = torch.stack([candidate, candidate])
            weights = attention.unit(torch.cat([things, both, things - both, things * both], 1))
            want = model.layers(torch.cat([(weights * things).sum(0), candidate]).unsqueeze(0)).squeeze()
            torch.testing.assert_close(model(batch)[row], want)
        empty = model.layers(torch.cat([torch.zeros(4), vectors[0]]).unsqueeze(0)).squeeze()
        torch.testing.assert_close(model(batch)[2], empty)

    def test_histories_of_attributes_have_candidates_of_their_own(self) -> None:
        kinds = replace(EXAMPLE["hour"], name="kind", domain="kind")
        past = replace(EXAMPLE["history"], name="past.kinds", domain="kind", cardinality=27)
        model = DIN.from_schema(Schema((*EXAMPLE, kinds, past)), DIN.debug())
        assert model.candidates == {"history": "item", "past.kinds": "kind"}

    def test_a_schema_without_a_history_says_what_makes_one(self) -> None:
        with pytest.raises(SchemaError, match=r"DIN needs a list tagged `sequence`[^\n]*\n\nhint: `ops\.History`"):
            DIN.from_schema(EXAMPLE.without(["history"]))

    def test_two_candidates_for_one_history_need_a_choice(self) -> None:
        with pytest.raises(SchemaError, match="`history` could be weighed by `item` or `again`"):
            DIN.from_schema(Schema((*EXAMPLE, replace(EXAMPLE["item"], name="again"))))

    def test_a_sequence_that_holds_no_lists_is_refused(self) -> None:
        scalar = replace(EXAMPLE["history"], list=None)
        with pytest.raises(SchemaError, match="the history `history` holds no lists"):
            DIN.from_schema(Schema((*EXAMPLE.without(["history"]), scalar)))

    def test_a_batch_without_the_history_is_refused(self) -> None:
        batch = example_batch()
        features = {name: x for name, x in batch.features.items() if name != "history"}
        with pytest.raises(ColumnNotFoundError, match="the batch has no column `history`"):
            DIN.from_schema(EXAMPLE, DIN.debug()).eval()(replace(batch, features=features))


WEIGHED = Schema((*EXAMPLE, Column(name="share", dtype="float32", list="ragged", tags=frozenset({Tag.CONTEXT}))))
RANKERS = (MLP, DLRM, DCN, DeepFM, WideDeep, DIN, MMoE)


@pytest.mark.parametrize("kind", RANKERS)
@pytest.mark.parametrize("mean", [0.02, 0.9])
def test_a_ranker_starts_at_the_mean_of_its_target(kind: type[Ranker], mean: float) -> None:
    torch.manual_seed(0)
    model, batch = kind.from_schema(EXAMPLE, kind.debug()), example_batch(rows=256)
    model.start_at(mean)
    found = model(batch)
    assert found.mean().item() == pytest.approx(math.log(mean / (1 - mean)), abs=0.5)
    found.sum().backward()
    assert sum(x.grad is not None for x in model.parameters()) > 1


def test_a_ranker_without_a_bias_to_start_from_is_left_alone() -> None:
    class Odd(Ranker):
        def __init__(self, schema: Schema, config: Any) -> None:
            super().__init__(schema, config)
            self.weight = torch.nn.Linear(2, 1, bias=False)

    model = Odd(EXAMPLE, Odd.Config())
    before = model.weight.weight.clone()
    model.start_at(0.1)
    assert model.weight.weight.equal(before)


def test_a_model_of_several_targets_starts_the_one_it_ranks_by() -> None:
    stars = Column(name="stars", dtype="float32", tags=frozenset({Tag.TARGET, Tag.REGRESSION}))
    schema = Schema((*EXAMPLE, stars))
    model = MMoE.from_schema(schema, replace(MMoE.debug(), target="stars"))
    batch = example_batch(schema, rows=64)
    other = model.predictions(batch)["label"]
    model.start_at(3.5)
    assert model.predictions(batch)["stars"].mean().item() == pytest.approx(3.5, rel=0.3)
    assert model.predictions(batch)["label"].equal(other)


@pytest.mark.parametrize("kind", RANKERS)
def test_a_multi_hot_column_may_be_weighed_in_every_ranker(kind: type[Ranker]) -> None:
    batch = example_batch(EXAMPLE)
    genres = batch.features["genres"]
    assert isinstance(genres, Ragged)
    config = replace(kind.debug(), list_weights={"genres": "share"})
    model = kind.from_schema(WEIGHED, config).eval()
    assert "share" not in model.columns.names

    def scores(weights: torch.Tensor) -> torch.Tensor:
        share = Ragged(weights, genres.offsets)
        with torch.no_grad():
            return model(replace(batch, features={**batch.features, "share": share}))

    n = len(genres.values)
    alone = kind.from_schema(EXAMPLE, kind.debug()).eval()
    alone.load_state_dict(model.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(scores(torch.full((n,), 3.0)), alone(batch))
    weights = torch.linspace(0.1, 2.0, n)
    several = genres.lengths > 1
    assert bool((scores(weights) != alone(batch).detach())[several].any())
    torch.testing.assert_close(scores(weights)[~several], alone(batch).detach()[~several])


@pytest.mark.parametrize(
    ("list_weights", "named"),
    [
        ({"genre": "share"}, "the data has no column `genre`"),
        ({"genres": "shares"}, "the data has no column `shares`"),
        ({"year": "share"}, "`year` holds no lists of codes"),
        ({"genres": "age"}, "`age` holds no lists of numbers such as `genres`"),
    ],
)
def test_weights_of_lists_that_are_not_there_or_no_lists_are_refused(list_weights: dict[str, str], named: str) -> None:
    with pytest.raises(SchemaError, match=named):
        MLP.from_schema(WEIGHED, MLP.Config(list_weights=list_weights))


def test_din_learns_the_weights_of_a_history_itself() -> None:
    with pytest.raises(ConfigError, match="`history` is a history"):
        DIN.from_schema(WEIGHED, replace(DIN.debug(), list_weights={"history": "share"}))


def test_a_target_that_is_not_known_adds_nothing_to_loss_or_gradient() -> None:
    model, batch = MLP.from_schema(EXAMPLE, MLP.debug()).eval(), example_batch()
    gaps = batch.targets["label"].clone()
    gaps[::3] = torch.nan
    known = ~gaps.isnan()
    losses = model.loss(replace(batch, targets={"label": gaps}))
    torch.testing.assert_close(losses, model.loss(batch) * known)
    losses.sum().backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())
