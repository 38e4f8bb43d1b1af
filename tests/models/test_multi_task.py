"""Models of several targets: the sum of their losses, targets that are missing, gates and experts against loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from falconet.batch import Batch
from falconet.errors import ColumnNotFoundError, ConfigError, SchemaError
from falconet.models import PLE, MMoE, SharedBottom
from falconet.models.multi_task import MultiTask
from falconet.nn.experts import Experts, Gate
from falconet.schema import Column, Schema, Tag
from falconet.testing.models import EXAMPLE, ModelContract, example_batch

STARS = Column(name="stars", dtype="float32", nullable=False, tags=frozenset({Tag.TARGET, Tag.REGRESSION}))
LIKED = replace(STARS, name="liked.it", tags=frozenset({Tag.TARGET, Tag.BINARY}))
TRUST = Column(name="trust", dtype="float32", nullable=False, tags=frozenset({Tag.CONTINUOUS}))
SCHEMA = Schema((*EXAMPLE, STARS, LIKED, TRUST))
KINDS = [SharedBottom, MMoE, PLE]


class OfThree(ModelContract):
    schema = SCHEMA


class TestSharedBottomOfThree(OfThree):
    model = SharedBottom
    config = replace(SharedBottom.debug(), target="label", sample_weights={"stars": "trust"}, towers=())


class TestMMoEOfThree(OfThree):
    model = MMoE
    config = replace(MMoE.debug(), target="label", task_weights={"stars": 0.5}, losses={"liked.it": "mse"})


class TestPLEOfThree(OfThree):
    model = PLE
    config = replace(PLE.debug(), target="liked.it", levels=2, shared_experts=2, task_experts=1, soft_numbers=2)


class TestPLEOfOneLevel(OfThree):
    model = PLE
    config = replace(PLE.debug(), target="stars", levels=1, targets=("stars", "label"))


def fresh(kind: type[MultiTask] = MMoE, **settings: Any) -> MultiTask:
    torch.manual_seed(0)
    return kind.from_schema(SCHEMA, replace(kind.debug(), **settings)).eval()


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_the_loss_of_a_row_is_the_weighted_sum_over_its_tasks(kind: type[MultiTask]) -> None:
    model = fresh(kind, task_weights={"stars": 0.25, "label": 2.0}, sample_weights={"label": "trust"})
    batch = example_batch(SCHEMA)
    found = model.predictions(batch)
    assert set(found) == {"label", "stars", "liked.it"}
    entropy = F.binary_cross_entropy_with_logits
    want = (
        2.0 * batch.features["trust"] * entropy(found["label"], batch.targets["label"], reduction="none")
        + 0.25 * (found["stars"] - batch.targets["stars"]) ** 2
        + entropy(found["liked.it"], batch.targets["liked.it"], reduction="none")
    )
    torch.testing.assert_close(model.loss(batch), want)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_ranked_by_the_target_or_the_first_task(kind: type[MultiTask]) -> None:
    batch = example_batch(SCHEMA)
    for settings, task in (
        ({}, "label"),
        ({"target": "stars"}, "stars"),
        ({"targets": ("liked.it", "label")}, "liked.it"),
    ):
        model = fresh(kind, **settings)
        assert model.target == task
        assert torch.equal(model(batch), model.predictions(batch)[task])


def test_a_column_that_weighs_rows_is_no_input() -> None:
    assert "trust" in fresh().inputs.continuous
    model = fresh(sample_weights={"stars": "trust"})
    assert "trust" not in model.inputs.continuous
    without = {name: x for name, x in example_batch(SCHEMA).features.items() if name != "trust"}
    assert model(Batch.of(without)).shape == (24,)


class TestMissingTargets:
    def batches(self) -> tuple[Batch, Batch]:
        """One where some rows know no stars, and the same with some number there."""
        batch = example_batch(SCHEMA)
        unknown = torch.arange(24) % 3 == 0
        stars = batch.targets["stars"]
        gaps = stars.masked_fill(unknown, torch.nan)
        return (
            replace(batch, targets={**batch.targets, "stars": gaps}),
            replace(batch, targets={**batch.targets, "stars": stars.masked_fill(unknown, 77.0)}),
        )

    def test_they_add_nothing_to_the_loss_of_their_rows(self) -> None:
        model, (gaps, filled) = fresh(), self.batches()
        with_gaps, whole = model.losses(gaps), model.losses(filled)
        unknown = gaps.targets["stars"].isnan()
        assert with_gaps["stars"][unknown].tolist() == [0.0] * 8
        assert torch.equal(with_gaps["stars"][~unknown], whole["stars"][~unknown])
        assert torch.equal(with_gaps["label"], whole["label"])
        assert bool((whole["stars"][unknown] > 1000).all())

    def test_they_add_nothing_to_the_gradient(self) -> None:
        gaps, _ = self.batches()
        known = replace(gaps, targets={**gaps.targets, "stars": torch.full((24,), torch.nan)})
        model = fresh(PLE)
        model.loss(known).sum().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            assert bool(parameter.grad.isfinite().all())
            if name.startswith("towers.layers.task_stars"):
                assert bool((parameter.grad == 0).all())
            elif name.startswith("towers.layers.task_label.rest"):
                assert bool((parameter.grad != 0).any())


class TestGates:
    def test_shares_are_positive_and_sum_to_one(self) -> None:
        torch.manual_seed(0)
        shares = Gate(5, 3).shares(torch.randn(7, 5) * 3)
        torch.testing.assert_close(shares.sum(1), torch.ones(7))
        assert bool((shares > 0).all())

    @torch.no_grad()
    def test_a_mixture_is_the_mean_of_the_experts_by_their_shares(self) -> None:
        torch.manual_seed(0)
        experts, gate, x = Experts(5, 3, (4, 2)).eval(), Gate(5, 3), torch.randn(7, 5)
        outputs = [expert(x) for expert in experts]
        assert experts(x).shape == (7, 3, 2)
        scores = x @ gate.linear.weight.T
        for row in range(7):
            shares = torch.softmax(scores[row], 0)
            want = sum((shares[e] * outputs[e][row] for e in range(3)), torch.zeros(2))
            torch.testing.assert_close(gate(x, experts(x))[row], want)

    @torch.no_grad()
    def test_each_task_of_mmoe_mixes_the_same_experts_by_its_own_gate(self) -> None:
        model = fresh(MMoE, experts=3)
        assert isinstance(model, MMoE)
        batch = example_batch(SCHEMA)
        x = model.inputs(batch)
        seen = model.represent(batch)
        for task, key in (("label", "task_label"), ("liked.it", "task_liked%2Eit")):
            shares = torch.softmax(model.gates[key].linear(x), 1)
            want = sum((shares[:, e : e + 1] * expert(x) for e, expert in enumerate(model.experts)), torch.zeros(24, 8))
            torch.testing.assert_close(seen[task], want)
        assert not torch.equal(seen["label"], seen["stars"])


class TestPLE:
    @torch.no_grad()
    def test_a_level_mixes_own_and_shared_experts_and_all_for_the_shared(self) -> None:
        model = fresh(PLE, levels=2, shared_experts=2, task_experts=1)
        assert isinstance(model, PLE)
        first, last = model.levels
        tasks = ["label", "liked%2Eit", "stars"]
        x = torch.randn(5, model.inputs.width)
        seen, shared = first(dict.fromkeys(model.tasks, x), x)
        own = {name: first.experts[f"task_{name}"][0](x) for name in tasks}
        common = [expert(x) for expert in first.shared]
        for name in tasks:
            gate = torch.softmax(first.gates[f"task_{name}"].linear(x), 1)
            want = sum((gate[:, [e]] * y for e, y in enumerate([own[name], *common])), torch.zeros(5, 8))
            torch.testing.assert_close(seen[name.replace("%2E", ".")], want)
        gate = torch.softmax(first.shared_gate.linear(x), 1)
        want = sum((gate[:, [e]] * y for e, y in enumerate([*own.values(), *common])), torch.zeros(5, 8))
        torch.testing.assert_close(shared, want)
        assert last.shared_gate is None

    def test_a_tasks_own_experts_learn_from_that_task_alone_on_the_last_level(self) -> None:
        model = fresh(PLE, levels=2, target="label").train()
        torch.autograd.backward(model.losses(example_batch(SCHEMA))["label"].sum())
        reached = {name for name, p in model.named_parameters() if p.grad is not None}
        experts = {name for name, _ in model.named_parameters() if ".experts." in name}
        assert {name for name in experts if name.startswith("levels.1") and "task_label" not in name} & reached == set()
        assert {name for name in experts if name.startswith("levels.1.experts.task_label")} <= reached
        # On the level below every task's experts are read by the shared gate.
        assert {name for name in experts if name.startswith("levels.0")} <= reached

    def test_its_experts_are_as_many_as_the_settings_say(self) -> None:
        model = fresh(PLE, levels=3, shared_experts=2, task_experts=4)
        assert isinstance(model, PLE)
        assert [len(level.shared) for level in model.levels] == [2, 2, 2]
        assert [[len(e) for e in level.experts.values()] for level in model.levels] == [[4, 4, 4]] * 3
        assert [level.shared_gate is None for level in model.levels] == [False, False, True]


class TestRefusals:
    def test_no_target(self) -> None:
        with pytest.raises(SchemaError, match="MMoE needs a column tagged `target`") as caught:
            MMoE.from_schema(EXAMPLE.without(["label"]))
        assert caught.value.hint

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"targets": ("labels",)}, "schema's targets has no column `labels`\n\nhint: did you mean `label`"),
            ({"target": "star"}, "tasks of MMoE has no column `star`\n\nhint: did you mean `stars`"),
            ({"losses": {"star": "mse"}}, "MMoE losses: the model has no column `star`"),
            ({"task_weights": {"star": 1.0}}, "MMoE task_weights: the model has no column `star`"),
            ({"sample_weights": {"stars": "trusted"}}, "schema has no column `trusted`\n\nhint: did you mean `trust`"),
        ],
    )
    def test_names_that_are_not_there(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ColumnNotFoundError, match=message):
            fresh(**settings)

    def test_a_task_named_twice(self) -> None:
        with pytest.raises(ConfigError, match="names a task twice"):
            fresh(targets=("label", "label"))

    @pytest.mark.parametrize("weight", [0.0, -1.0, float("inf"), float("nan")])
    def test_weights_that_are_no_weights(self, weight: float) -> None:
        with pytest.raises(ConfigError, match="`task_weights` gives `label`"):
            MMoE.Config(task_weights={"label": weight})

    @pytest.mark.parametrize(
        ("kind", "wrong"),
        [(MMoE, {"experts": 0}), (MMoE, {"expert": ()}), (PLE, {"levels": 0}), (SharedBottom, {"bottom": ()})],
    )
    def test_settings_out_of_range(self, kind: type[MultiTask], wrong: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match=f"{kind.__name__} {next(iter(wrong))}="):
            kind.Config(**wrong)

    def test_a_batch_without_a_target(self) -> None:
        batch = example_batch(SCHEMA)
        targets = {name: x for name, x in batch.targets.items() if name != "stars"}
        with pytest.raises(ColumnNotFoundError, match="the batch's targets has no column `stars`"):
            fresh().loss(replace(batch, targets=targets))
