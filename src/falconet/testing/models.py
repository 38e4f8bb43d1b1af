"""The contract of a model as tests: subclass, say which model, and pytest runs them.

class TestTwoTower(RetrieverContract):
    model = TwoTower
    config = TwoTower.Config(dim=8)

Without `config` it is that of `debug()`. `contract_of(TwoTower)` is such a class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from falconet.batch import Batch, Feature
from falconet.config import from_plain, to_plain
from falconet.errors import SchemaError
from falconet.models.base import MODELS, Model, Retriever
from falconet.models.example import example_features
from falconet.models.store import load_model, save_model
from falconet.nn.export import export, flat
from falconet.schema import Column, Schema, Tag

ROWS = 24


def _column(name: str, dtype: str, *tags: str, **facts: Any) -> Column:
    return Column(name=name, dtype=dtype, nullable=False, tags=frozenset(tags), **facts)


EXAMPLE = Schema(
    (
        _column("user", "int32", Tag.USER, Tag.ID, Tag.CATEGORICAL, cardinality=40, domain="user"),
        _column("item", "int32", Tag.ITEM, Tag.ID, Tag.CATEGORICAL, cardinality=30, domain="item"),
        _column("genres", "int32", Tag.ITEM, Tag.CATEGORICAL, list="ragged", cardinality=9, domain="genres"),
        _column("year", "float32", Tag.ITEM, Tag.CONTINUOUS),
        _column(
            "history", "int32", Tag.USER, Tag.SEQUENCE, Tag.CATEGORICAL, list="ragged", cardinality=30, domain="item"
        ),
        _column("age", "float32", Tag.USER, Tag.CONTINUOUS),
        _column("hour", "int32", Tag.CONTEXT, Tag.CATEGORICAL, cardinality=27, domain="hour"),
        _column("label", "float32", Tag.TARGET, Tag.BINARY),
    )
)
"""Columns of every kind that the road makes."""


def example_batch(schema: Schema = EXAMPLE, rows: int = ROWS, seed: int = 0) -> Batch:
    """Random rows that fit a schema: codes below the cardinality, lists of 0 to 4, targets 0 and 1."""
    draw = torch.Generator().manual_seed(seed)
    features = example_features(schema.without_tags(Tag.TARGET), rows, draw)
    targets = {c.name: torch.randint(0, 2, (rows,), generator=draw).float() for c in schema.select(Tag.TARGET)}
    return Batch(features, targets, rows, rows)


class ModelContract:
    """What every model must do.

    `config`: its settings; None: those of `debug()`. `exports`: whether it can be a program of `torch.export`.
    """

    model: ClassVar[type[Model]]
    config: ClassVar[Any] = None
    schema: ClassVar[Schema] = EXAMPLE
    exports: ClassVar[bool] = True

    def fresh(self, schema: Schema | None = None) -> Model:
        """The same new model every time."""
        torch.manual_seed(0)
        config = self.model.debug() if self.config is None else self.config
        return self.model.from_schema(self.schema if schema is None else schema, config)

    def batch(self, rows: int = ROWS, seed: int = 0) -> Batch:
        return example_batch(self.schema, rows, seed)

    def predict(self, model: Model, batch: Batch) -> Tensor:
        with torch.inference_mode():
            found: Tensor = model.eval()(batch)
        return found

    def mean_loss(self, model: Model, batch: Batch) -> float:
        with torch.inference_mode():
            return float(model.eval().loss(batch).mean())

    def train(self, model: Model, batches: Iterable[Batch]) -> None:
        """One step of Adam on each batch."""
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        model.train()
        for batch in batches:
            optimizer.zero_grad()
            torch.autograd.backward(model.loss(batch).mean())
            optimizer.step()

    def test_it_is_registered_under_its_name(self) -> None:
        assert MODELS[self.model.__name__] is self.model

    def test_settings_are_frozen_and_survive_plain_values(self) -> None:
        config = self.fresh().config
        assert type(config).__dataclass_params__.frozen
        assert all(field.kw_only for field in dataclasses.fields(config))
        assert from_plain(type(config), to_plain(config)) == config

    def test_forward_gives_one_finite_number_per_row(self) -> None:
        found = self.predict(self.fresh(), self.batch())
        assert found.shape == (ROWS,)
        assert bool(found.isfinite().all())

    @pytest.mark.parametrize("rows", [0, 1, ROWS])
    def test_loss_gives_one_finite_number_per_row(self, rows: int) -> None:
        found = self.fresh().train().loss(self.batch(rows))
        assert found.shape == (rows,)
        assert bool(found.isfinite().all())

    def test_training_lowers_the_loss_and_moves_every_parameter(self) -> None:
        model, batch = self.fresh(), self.batch()
        if not list(model.parameters()):
            return
        before, weights = self.mean_loss(model, batch), {n: p.detach().clone() for n, p in model.named_parameters()}
        self.train(model, [batch] * 30)
        assert self.mean_loss(model, batch) < before
        assert [n for n, p in model.named_parameters() if torch.equal(p, weights[n])] == []

    @pytest.mark.parametrize("rows", [0, 1])
    def test_gradients_reach_the_same_parameters_whatever_the_rows(self, rows: int) -> None:
        """Otherwise processes whose share of a batch is small wait for ever for the others."""
        if not list(self.fresh().parameters()):
            return
        reached = []
        for batch in (self.batch(), self.batch(rows)):
            model = self.fresh().train()
            torch.autograd.backward(model.loss(batch).sum())
            reached.append({name for name, p in model.named_parameters() if p.grad is not None})
            assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
        assert reached[0] == reached[1]

    def test_prediction_needs_no_target(self) -> None:
        batch = self.batch()
        without = dataclasses.replace(batch, targets={})
        assert torch.equal(self.predict(self.fresh(), without), self.predict(self.fresh(), batch))

    def test_extra_and_reordered_columns_change_nothing(self) -> None:
        model, batch = self.fresh(), self.batch()
        shuffled: Mapping[str, Feature] = dict(reversed(list(batch.features.items()))) | {"extra": torch.ones(ROWS)}
        found = self.predict(model, dataclasses.replace(batch, features=shuffled))
        assert torch.equal(found, self.predict(model, batch))

    def test_the_order_of_the_schema_changes_nothing(self) -> None:
        model = self.fresh()
        again = self.fresh(Schema(tuple(reversed(self.schema.columns))))
        again.load_state_dict(model.state_dict())
        torch.testing.assert_close(self.predict(again, self.batch()), self.predict(model, self.batch()))

    def test_a_schema_without_inputs_is_refused_with_advice(self) -> None:
        bare = Schema((_column("note", "int32"), *self.schema.select(Tag.TARGET)))
        with pytest.raises(SchemaError) as caught:
            self.fresh(bare)
        assert caught.value.hint

    def test_a_row_does_not_depend_on_its_batch(self) -> None:
        model, batch = self.fresh(), self.batch()
        whole = self.predict(model, batch)
        alone = torch.cat([self.predict(model, batch[i : i + 1]) for i in range(ROWS)])
        torch.testing.assert_close(alone, whole, rtol=1e-5, atol=1e-6)

    def test_a_saved_model_predicts_the_same_before_any_other_pass(self, tmp_path: Path) -> None:
        model = self.fresh()
        if list(model.parameters()):
            self.train(model, [self.batch(seed=1), self.batch(seed=2)])
        save_model(model, tmp_path / "model")
        loaded = load_model(tmp_path / "model")
        assert (loaded.schema, loaded.config, loaded.training) == (model.schema, model.config, False)
        assert torch.equal(self.predict(loaded, self.batch()), self.predict(model, self.batch()))

    def test_it_becomes_a_program_for_any_number_of_rows(self) -> None:
        if not self.exports:
            pytest.skip("its predictions take steps that depend on values")
        model = self.fresh()
        program = export(model, self.batch()).module()
        for rows in (0, 1, 7):
            batch = self.batch(rows, seed=rows)
            torch.testing.assert_close(program(flat(batch)), self.predict(model, batch))


class RetrieverContract(ModelContract):
    """What every retriever must do besides."""

    model: ClassVar[type[Retriever]]

    def sides(self, batch: Batch) -> tuple[Batch, Batch]:
        """The batch without the item's columns, and the batch with them alone."""
        items = self.schema.select(Tag.ITEM).names
        users = {n: x for n, x in batch.features.items() if n not in items}
        return Batch.of(users), Batch.of({n: batch.features[n] for n in items})

    @torch.inference_mode()
    def test_the_score_is_the_product_of_what_each_side_gives_alone(self) -> None:
        model, batch = self.fresh().eval(), self.batch()
        assert isinstance(model, Retriever)
        users, items = self.sides(batch)
        product = (model.user(users) * model.item(items)).sum(-1)
        torch.testing.assert_close(product, model(batch), rtol=1e-5, atol=1e-6)

    def test_counts_are_saved_with_the_model(self, tmp_path: Path) -> None:
        model = self.fresh()
        assert isinstance(model, Retriever)
        counts = torch.arange(len(model.counts))
        model.set_counts(counts)
        save_model(model, tmp_path / "model")
        loaded = load_model(tmp_path / "model")
        assert isinstance(loaded, Retriever)
        assert loaded.counts.tolist() == counts.tolist()


def contract_of(model: type[Model], *, exports: bool = True) -> type[ModelContract]:
    """The contract of a model in its debug size, as a class for pytest."""
    contract = RetrieverContract if issubclass(model, Retriever) else ModelContract
    return type(f"Test{model.__name__}", (contract,), {"model": model, "exports": exports})
