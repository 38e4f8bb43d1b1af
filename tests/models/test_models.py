"""What each model has of its own."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch

import falconet as fl
from falconet.batch import Batch, Ragged
from falconet.errors import ColumnNotFoundError, ConfigError, SchemaError
from falconet.models import MLP, Popular, TwoTower
from falconet.schema import Column, Schema, Tag
from falconet.testing.models import EXAMPLE, example_batch


def column(name: str, *tags: str, **facts: object) -> Column:
    return Column(name=name, dtype="int32", tags=frozenset(tags), **facts)  # type: ignore[arg-type]


def test_the_models_are_listed_by_name() -> None:
    files = Path(fl.models.__file__).parent.glob("*.py")
    classes = [
        name for file in files for name in re.findall(r"^@MODELS.register\(\)\nclass (\w+)", file.read_text(), re.M)
    ]
    assert len(classes) >= 7
    assert fl.models.list() == tuple(sorted(classes))
    assert all(getattr(fl.models, name) is fl.models.MODELS[name] for name in classes)


def test_settings_of_another_model_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"hint: MLP\.Config"):
        MLP.from_schema(EXAMPLE, TwoTower.Config())


@pytest.mark.parametrize(
    "given", [{"item": torch.tensor([3])}, torch.zeros(1), Batch], ids=["a dict", "a Tensor", "the class Batch"]
)
def test_what_is_no_batch_is_refused(given: object, request: pytest.FixtureRequest) -> None:
    kind = request.node.callspec.id
    models = (MLP.from_schema(EXAMPLE, MLP.debug()), TwoTower.from_schema(EXAMPLE, TwoTower.debug()))
    calls = (*models, models[0].loss)
    for call in calls:
        with pytest.raises(ConfigError, match=rf"{kind} was given as a batch(?s:.*)fl\.Batch\.of"):
            call(given)


class TestMLP:
    def test_embeddings_are_as_wide_as_nvtabular_makes_them(self) -> None:
        model = MLP.from_schema(EXAMPLE)
        assert {name: model.inputs.tables.width_of(name) for name in model.inputs.tables.columns} == {
            "user": 16, "item": 16, "genres": 16, "history": 16, "hour": 16
        }  # fmt: skip
        assert model.layers.first.in_features == 5 * 16 + 2

    def test_dim_overrides_the_widths(self) -> None:
        assert MLP.from_schema(EXAMPLE, MLP.Config(dim=3)).layers.first.in_features == 5 * 3 + 2

    def test_without_hidden_layers_it_is_linear_from_zero(self) -> None:
        model = MLP.from_schema(EXAMPLE, MLP.Config(hidden=(), columns=("age",)))
        torch.nn.init.zeros_(model.layers.first.bias)
        assert model.eval()(example_batch()).tolist() == [0.0] * 24
        torch.nn.init.ones_(model.layers.first.weight)
        batch = Batch.of({"age": torch.tensor([1.0, -2.0])})
        assert model(batch).tolist() == pytest.approx([1.0, -2.0], rel=1e-4)

    def test_binary_cross_entropy_of_logit_zero_is_ln_2(self) -> None:
        model = MLP.from_schema(EXAMPLE, MLP.Config(hidden=(), columns=("age",)))
        torch.nn.init.zeros_(model.layers.first.bias)
        assert model.eval().loss(example_batch()).tolist() == pytest.approx([math.log(2)] * 24)

    def test_a_column_it_does_not_have_is_named(self) -> None:
        with pytest.raises(
            ColumnNotFoundError,
            match=r"MLP columns=\['ages'\]: the data has no column `ages`\n\nhint: did you mean `age`",
        ):
            MLP.from_schema(EXAMPLE, MLP.Config(columns=("ages",)))

    def test_without_a_target_it_predicts_and_says_why_it_cannot_learn(self) -> None:
        model = MLP.from_schema(EXAMPLE.without(["label"]), MLP.Config(hidden=(2,)))
        assert model.eval()(example_batch()).shape == (24,)
        with pytest.raises(SchemaError, match="MLP cannot learn: the schema has no column tagged `target`"):
            model.loss(example_batch())

    def test_two_targets_need_a_choice(self) -> None:
        schema = Schema((*EXAMPLE, column("stars", Tag.TARGET)))
        with pytest.raises(SchemaError, match="MLP learns one target, the schema has label, stars"):
            MLP.from_schema(schema)
        assert MLP.from_schema(schema, MLP.Config(target="stars")).target == "stars"

    def test_a_missing_column_of_the_batch_is_named(self) -> None:
        model = MLP.from_schema(EXAMPLE, MLP.Config(columns=("age",)))
        with pytest.raises(ColumnNotFoundError, match="the batch has no column `age`"):
            model.eval()(Batch.of({"year": torch.ones(2)}))

    def test_no_usable_column_is_an_error(self) -> None:
        with pytest.raises(SchemaError, match="MLP needs a categorical or continuous column"):
            MLP.from_schema(Schema((column("note"),)))


class TestTwoTower:
    def test_the_user_side_ends_in_one_and_the_item_side_in_the_bias(self) -> None:
        model = TwoTower.from_schema(EXAMPLE, TwoTower.Config(dim=4)).eval()
        counts = torch.zeros(30)
        counts[7] = 99
        model.set_counts(counts)
        for weight in model.item_tower.parameters():
            torch.nn.init.zeros_(weight)
        batch = example_batch(rows=2)
        batch = Batch.of({**batch.features, "item": torch.tensor([7, 8])})
        assert model.user(batch)[:, -1].tolist() == [1.0, 1.0]
        assert model.item(batch)[:, -1].tolist() == pytest.approx([math.log(100), 0.0])

    def test_the_history_is_a_mean_from_a_table_of_its_own(self) -> None:
        schema = EXAMPLE.only(["user", "item", "history"])
        model = TwoTower.from_schema(schema, TwoTower.Config(dim=3)).eval()
        table = model.user_tower.tables.weight("item")
        batch = Batch.of({"history": Ragged.of([[4, 6], [], [5]]), "item": torch.tensor([4, 4, 4])})
        expected = torch.stack([(table[4] + table[6]) / 2, torch.zeros(3), table[5]])[:, :2]
        torch.testing.assert_close(model.user(batch)[:, :2], expected)
        assert model.item_tower.tables.weight("item") is not table

    def test_dropout_shortens_histories_in_training_alone(self) -> None:
        model = TwoTower.from_schema(EXAMPLE, TwoTower.Config(dim=4, history_dropout=0.5))
        batch = example_batch()
        assert not torch.equal(model.train().user(batch), model.user(batch))
        assert torch.equal(model.eval().user(batch), model.user(batch))

    def test_dropout_follows_the_seed_of_torch(self) -> None:
        model = TwoTower.from_schema(EXAMPLE, TwoTower.Config(dim=4, history_dropout=0.5)).train()
        torch.manual_seed(3)
        first = model.loss(example_batch())
        torch.manual_seed(3)
        assert torch.equal(model.loss(example_batch()), first)

    def test_the_loss_discounts_frequent_items(self) -> None:
        """Two items, all scores zero: the other row's item stands for as many as it is rare."""
        schema = EXAMPLE.only(["user", "item", "history"])
        model = TwoTower.from_schema(schema, TwoTower.Config(dim=2)).eval()
        for weight in model.parameters():
            torch.nn.init.zeros_(weight)
        counts = torch.full((30,), 1.0)
        counts[5] = 21  # of 50 rows in all
        model.set_counts(counts)
        batch = Batch.of({"item": torch.tensor([5, 6]), "history": Ragged.of([[6], [5]])})
        assert model.loss(batch).tolist() == pytest.approx([math.log(1 + 50), math.log(1 + 50 / 21)], rel=1e-5)

    def test_other_rows_with_the_same_item_are_no_negatives(self) -> None:
        schema = EXAMPLE.only(["user", "item", "history"])
        model = TwoTower.from_schema(schema, TwoTower.Config(dim=2)).eval()
        batch = Batch.of({"item": torch.tensor([5, 5, 5]), "history": Ragged.of([[6], [7], []])})
        assert model.loss(batch).tolist() == [0.0, 0.0, 0.0]

    def test_user_ids_are_left_out_unless_asked_for(self) -> None:
        assert "user" not in TwoTower.from_schema(EXAMPLE).user_tower.tables.columns
        assert "user" in TwoTower.from_schema(EXAMPLE, TwoTower.Config(user_id=True)).user_tower.tables.columns

    def test_a_schema_without_items_says_what_to_tag(self) -> None:
        with pytest.raises(SchemaError, match=r"TwoTower needs one categorical column tagged `item` and `id`"):
            TwoTower.from_schema(EXAMPLE.without(["item"]))

    def test_a_schema_that_tells_nothing_of_users_says_what_would(self) -> None:
        with pytest.raises(SchemaError, match=r"hint: `ops\.History` adds a history"):
            TwoTower.from_schema(EXAMPLE.only(["user", "item"]))

    def test_counts_must_fit_the_codes(self) -> None:
        with pytest.raises(SchemaError, match=r"counts of \(3,\) do not fit `item`, which has 30 codes"):
            TwoTower.from_schema(EXAMPLE).set_counts(torch.ones(3))

    @pytest.mark.parametrize("wrong", [{"dim": 1}, {"history_dropout": 1.0}, {"temperature": 0.0}])
    def test_settings_out_of_range_are_refused(self, wrong: dict[str, float]) -> None:
        with pytest.raises(ConfigError, match=f"TwoTower {next(iter(wrong))}="):
            TwoTower.Config(**wrong)  # type: ignore[arg-type]


class TestPopular:
    def test_scores_are_the_logarithm_of_counts(self) -> None:
        model = Popular.from_schema(EXAMPLE)
        counts = torch.zeros(30)
        counts[4], counts[5] = 9, 99
        model.set_counts(counts)
        batch = Batch.of({"item": torch.tensor([4, 5, 6])})
        assert model(batch).tolist() == pytest.approx([math.log(10), math.log(100), 0.0])
        assert model.user(Batch({}, {}, 2, 2)).tolist() == [[1.0], [1.0]]

    def test_without_counts_earlier_codes_are_more_popular(self) -> None:
        scores = Popular.from_schema(EXAMPLE)(Batch.of({"item": torch.arange(30)}))
        assert bool((scores[1:] < scores[:-1]).all())
