"""What each retrieval model has of its own, beside references in numpy and plain Python."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from falconet.batch import Batch, Ragged
from falconet.errors import ColumnNotFoundError, ConfigError, DataError, SchemaError
from falconet.models import (
    EASE,
    IALS,
    MF,
    GRU4Rec,
    ItemKNN,
    MultVAE,
    Popular,
    RecVAE,
    Retriever,
    SASRec,
    TwoTower,
    YouTubeDNN,
    closed_form,
)
from falconet.models.closed_form import ClosedForm, Interactions, ItemScorer
from falconet.models.sequence import SequenceModel, last, pieces
from falconet.models.store import load_model, save_model
from falconet.nn import ItemLossConfig
from falconet.testing.models import EXAMPLE, example_batch

N, FIRST = 30, 3


def taken(users: int, seed: int = 0) -> list[list[int]]:
    """Some items of each user, more of the low codes; code 3 + 20 is taken by nobody."""
    random = np.random.default_rng(seed)
    return [sorted({int(x) for x in 3 + random.geometric(0.12, 7) % 20}) for _ in range(users)]


def matrix(lists: list[list[int]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    x = np.zeros((len(lists), N))
    for row, items in enumerate(lists):
        x[row, items] = 1
    return x


def fitted(model: ClosedForm, lists: list[list[int]]) -> ClosedForm:
    return model.fit(Interactions.of_lists(Ragged.of(lists))).eval()


def histories(lists: list[list[int]]) -> Batch:
    return Batch.of({"history": Ragged.of(lists)})


def scores(model: Retriever, batch: Batch) -> Tensor:
    """Of every item code for every row."""
    everything = Batch.of({**example_batch(rows=N).features, "item": torch.arange(N)})
    with torch.inference_mode():
        return model.user(batch) @ model.item(everything).T


class TestInteractions:
    def test_pairs_that_come_twice_count_once_but_for_counts(self) -> None:
        found = Interactions(torch.tensor([5, 2, 5, 5]), torch.tensor([4, 7, 3, 4]))
        assert found.by_user().to_lists() == [[7], [3, 4]]
        assert found.by_item(9).to_lists() == [[], [], [], [1], [1], [], [], [0], []]
        assert found.counts(9).tolist() == [0, 0, 0, 1, 2, 0, 0, 1, 0]

    def test_recent_counts_halve_with_every_half_life(self) -> None:
        days = torch.tensor([100.0, 90.0, math.nan, 80.0, 100.0], dtype=torch.float64)
        found = Interactions(torch.arange(5), torch.tensor([4, 4, 4, 7, 3]), days)
        assert found.recent_counts(9, 10.0).tolist() == [0, 0, 0, 1, 1.5, 0, 0, 0.25, 0]
        assert found.recent_counts(9, 1e9).tolist() == pytest.approx([0, 0, 0, 1, 2, 0, 0, 1, 0])
        later = Interactions(found.users, found.items, days + 5_000)
        assert later.recent_counts(9, 10.0).equal(found.recent_counts(9, 10.0))

    @pytest.mark.parametrize("days", [None, torch.full((2,), math.nan)])
    def test_without_times_nothing_is_recent(self, days: Tensor | None) -> None:
        found = Interactions(torch.tensor([1, 2]), torch.tensor([4, 5]), days)
        with pytest.raises(DataError, match="no time of an interaction is known, so none is recent"):
            Popular.from_schema(EXAMPLE, Popular.Config(half_life=30.0)).fit(found)
        assert Popular.from_schema(EXAMPLE).fit(found).popularity.sum() == 2

    def test_what_cannot_be_is_refused(self) -> None:
        with pytest.raises(DataError, match=r"\(2,\) items were taken at \(1,\) times"):
            Interactions(torch.tensor([1, 2]), torch.tensor([1, 2]), torch.zeros(1))
        with pytest.raises(DataError, match=r"\(2,\) users took \(1,\) items"):
            Interactions(torch.tensor([1, 2]), torch.tensor([1]))
        with pytest.raises(DataError, match="the code -1 among the items"):
            Interactions(torch.tensor([1]), torch.tensor([-1]))
        with pytest.raises(DataError, match="an interaction has the item 30, there are 30 codes"):
            Popular.from_schema(EXAMPLE).fit(Interactions(torch.tensor([1]), torch.tensor([30])))
        with pytest.raises(DataError, match="EASE cannot be fitted: there are no interactions"):
            EASE.from_schema(EXAMPLE).fit(Interactions(torch.zeros(0).long(), torch.zeros(0).long()))


def test_what_was_taken_of_late_is_popular_where_that_is_asked_for(tmp_path: Path) -> None:
    items, days = torch.tensor([4, 4, 4, 5, 5, 6]), torch.tensor([0.0, 0, 0, 99, 100, 100], dtype=torch.float64)
    found = Interactions(torch.arange(6), items, days)
    old, new = (Popular.from_schema(EXAMPLE, Popular.Config(half_life=x)).fit(found) for x in (None, 10.0))
    assert scores(old, histories([[]])).argsort(descending=True)[0, :3].tolist() == [4, 5, 6]
    assert scores(new, histories([[]])).argsort(descending=True)[0, :3].tolist() == [5, 6, 4]
    rows = Batch.of({**example_batch(rows=3).features, "item": torch.tensor([4, 5, 6])})
    assert new.loss(rows).exp().tolist() == pytest.approx(
        [(N + 2.933 + 0.0029) / x for x in (1.0029, 2.933, 2.0)], 1e-3
    )
    save_model(new, tmp_path / "new")
    again = load_model(tmp_path / "new")
    assert isinstance(again, Popular)
    assert again.popularity.equal(new.popularity)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.inf, math.nan])
def test_a_half_life_that_is_none_is_refused(wrong: float) -> None:
    with pytest.raises(ConfigError, match="Popular half_life="):
        Popular.Config(half_life=wrong)


@pytest.mark.parametrize("users", [7, 200], ids=["fewer users than items", "more users than items"])
def test_ease_is_its_closed_form(users: int) -> None:
    lists = taken(users)
    x, regularisation = matrix(lists), 3.0
    inverse = np.linalg.inv(x.T @ x + regularisation * np.eye(N))
    b = -inverse / np.diag(inverse)
    np.fill_diagonal(b, 0)
    model = fitted(EASE.from_schema(EXAMPLE, EASE.Config(regularisation=regularisation)), lists)
    strangers = [[3, 9, 4], [], [22]]
    want = matrix(lists + strangers) @ b
    np.testing.assert_allclose(scores(model, histories(lists + strangers)).numpy(), want, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "config"), [(EASE, None), (ItemKNN, None), (ItemKNN, ItemKNN.Config(neighbours=None))]
)
def test_what_an_item_adds_to_others_is_what_it_says_alone(
    kind: type[ItemScorer], config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = kind.from_schema(EXAMPLE, config)
    fitted(model, taken(40))
    some, every = torch.tensor([3, 7, 23]), torch.arange(N)
    alone = scores(model, histories([[code] for code in some.tolist()]))
    for pulls in (model.pulls(some, every), ItemScorer.pulls(model, some, every)):
        np.testing.assert_allclose(pulls.detach().numpy(), alone.numpy(), atol=1e-7)
    monkeypatch.setattr(closed_form, "_SCORES", 2 * N)
    np.testing.assert_allclose(ItemScorer.pulls(model, some, every).detach().numpy(), alone.numpy(), atol=1e-7)
    assert ItemScorer.pulls(model, some[:0], every).shape == (0, N)


def test_ease_says_what_it_would_need() -> None:
    with pytest.raises(ConfigError, match=r"EASE of 30 items needs 0\.0 GB, `max_items` is 20"):
        EASE.from_schema(EXAMPLE, EASE.Config(max_items=20))


def likeness(kind: str, both: float, mine: float, theirs: float, shrink: float) -> float:
    below = {
        "cosine": math.sqrt(mine * theirs), "jaccard": mine + theirs - both, "lift": mine * theirs, "cooccurrence": 1.0
    }[kind]  # fmt: skip
    return both / (below + shrink) if both else 0.0


@pytest.mark.parametrize("neighbours", [None, 3])
@pytest.mark.parametrize("kind", ["cosine", "jaccard", "lift", "cooccurrence"])
def test_item_knn_adds_up_the_likeness_of_the_nearest_neighbours(kind: Any, neighbours: int | None) -> None:
    lists, shrink = taken(40), 0.5
    both = matrix(lists).T @ matrix(lists)
    w = np.array(
        [
            [0 if i == j else likeness(kind, both[i, j], both[i, i], both[j, j], shrink) for j in range(N)]
            for i in range(N)
        ]
    )
    if neighbours is not None:  # ties may fall either way: compare what is kept, not which
        kept = np.sort(w, axis=1)[:, -neighbours:][:, ::-1]
    config = ItemKNN.Config(similarity=kind, neighbours=neighbours, shrink=shrink)
    model = fitted(ItemKNN.from_schema(EXAMPLE, config), lists)
    assert isinstance(model, ItemKNN)
    if neighbours is None:
        found = scores(model, histories([*lists, [], [23]])).numpy()
        np.testing.assert_allclose(found, matrix([*lists, [], [23]]) @ w, rtol=1e-5, atol=1e-6)
    else:
        np.testing.assert_allclose(model.likeness.numpy(), kept, rtol=1e-5)
        chosen = np.take_along_axis(w, model.neighbours.numpy(), axis=1)
        np.testing.assert_allclose(model.likeness.numpy(), chosen, rtol=1e-5)
        one = scores(model, histories([[5, 6, 5]]))[0]
        assert one.sum().item() == pytest.approx(float(kept[5].sum() + kept[6].sum()), rel=1e-5)


def plain_ials(lists: list[list[int]], start: np.ndarray[Any, Any], config: IALS.Config) -> Any:
    """Item factors by one least-squares problem after the other, over all pairs, with their weights written out."""
    x = matrix(lists)
    there = x.sum(0) > 0
    items = start * there[:, None]

    def solve(x: Any, others: Any, known: Any) -> Any:
        found = []
        for row in x:
            weights = row + config.unobserved
            target = row / weights  # weighted squares of both terms have their minimum here
            ridge = config.regularisation * (row.sum() + config.unobserved * known.sum()) ** config.frequency
            left = (others * (weights * known)[:, None]).T @ others + ridge * np.eye(config.dim)
            found.append(np.linalg.solve(left, others.T @ (weights * target)))
        return np.array(found)

    for _ in range(config.epochs):
        users = solve(x, items, there)
        items = solve(x.T, users, np.ones(len(users), bool)) * there[:, None]
    return items, solve(x, items, there)


@pytest.mark.parametrize("frequency", [0.0, 1.0])
def test_ials_is_alternating_least_squares_and_solves_for_users_from_their_histories(frequency: float) -> None:
    lists = taken(25)
    config = IALS.Config(dim=3, epochs=3, unobserved=0.2, regularisation=0.05, frequency=frequency, seed=4)
    start = torch.randn((N, 3), generator=torch.Generator().manual_seed(4)) * config.init / 3**0.5
    items, users = plain_ials(lists, start.double().numpy(), config)
    model = fitted(IALS.from_schema(EXAMPLE, config), lists)
    assert isinstance(model, IALS)
    np.testing.assert_allclose(model.factors.numpy(), items, rtol=2e-3, atol=1e-4)
    np.testing.assert_allclose(model.user(histories(lists)).numpy(), users, rtol=2e-3, atol=1e-4)
    assert model.user(histories([[], [4]]))[0].tolist() == [0.0, 0.0, 0.0]
    assert scores(model, histories(lists))[matrix(lists) > 0].mean() > 2 * scores(model, histories(lists)).mean()


def test_popular_counts_what_it_is_fitted_on() -> None:
    model = fitted(Popular.from_schema(EXAMPLE), [[4, 5], [5], []])
    assert scores(model, histories([[], [9]]))[1, 3:7].tolist() == pytest.approx([0, math.log(2), math.log(3), 0])


def test_mf_is_a_product_and_a_bias() -> None:
    model = MF.from_schema(EXAMPLE, MF.Config(dim=3)).eval()
    users, items = model.users.weight("user").detach(), model.items.weight("item").detach()
    batch = Batch.of({"user": torch.tensor([7, 8]), "item": torch.tensor([4, 9])})
    want = [float(users[u] @ items[i, :2] + items[i, 2]) for u, i in ((7, 4), (8, 9))]
    assert model(batch).tolist() == pytest.approx(want)
    with pytest.raises(SchemaError, match="MF needs one categorical column tagged `user` and `id`"):
        MF.from_schema(EXAMPLE.without(["user"]))


@pytest.mark.parametrize(
    "objective",
    [
        ItemLossConfig(loss="bpr", negatives="uniform", per_row=True, samples=1),
        ItemLossConfig(negatives="mixed", samples=5),
        ItemLossConfig(loss="gbce", negatives="uniform", per_row=True, samples=4),
        ItemLossConfig(loss="bpr_max", negatives="batch", queue=16),
        ItemLossConfig(loss="top1", negatives="popularity", samples=8, hard=3),
    ],
    ids=lambda o: f"{o.loss} {o.negatives}",
)
@pytest.mark.parametrize("model", [MF, YouTubeDNN, SASRec, GRU4Rec])
def test_models_that_learn_take_any_loss_of_items_against_items(model: Any, objective: ItemLossConfig) -> None:
    torch.manual_seed(0)
    made = model.from_schema(EXAMPLE, model.debug().__class__(dim=4, objective=objective)).train()
    losses = made.loss(example_batch())
    losses.sum().backward()
    assert losses.shape == (24,) and bool(losses.isfinite().all())
    assert all(bool(p.grad.isfinite().all()) for p in made.parameters() if p.grad is not None)


class TestYouTubeDNN:
    def test_the_users_side_alone_makes_the_user(self) -> None:
        model = YouTubeDNN.from_schema(EXAMPLE, YouTubeDNN.debug())
        assert set(model.inputs.tables.columns) == {"history", "hour"} and model.inputs.continuous == ("age",)
        batch = example_batch()
        changed = Batch.of({**batch.features, "genres": batch.features["genres"][0:0], "year": torch.zeros(24)})
        assert torch.equal(model.eval().user(batch), model.user(changed))

    def test_dropout_shortens_histories_in_training_alone(self) -> None:
        model = YouTubeDNN.from_schema(EXAMPLE, YouTubeDNN.Config(dim=4, history_dropout=0.5))
        assert not torch.equal(model.train().user(example_batch()), model.user(example_batch()))
        assert torch.equal(model.eval().user(example_batch()), model.user(example_batch()))

    def test_it_needs_a_history(self) -> None:
        with pytest.raises(SchemaError, match="YouTubeDNN needs one column that lists items of `item`, the schema has"):
            YouTubeDNN.from_schema(EXAMPLE.without(["history"]))


class TestAutoencoders:
    @pytest.mark.parametrize("model", [MultVAE, RecVAE])
    def test_the_loss_is_minus_the_log_probability_of_what_was_taken(self, model: Any) -> None:
        torch.manual_seed(1)
        made = model.from_schema(EXAMPLE, model.debug()).eval()
        lists = [[5, 9, 9], [], [4]]
        logits = scores(made, histories(lists)).clone()
        logits[:, :FIRST] = -torch.inf
        log_p = logits.log_softmax(1)
        want = [-float(sum(log_p[r, i] for i in items)) for r, items in enumerate(lists)]
        mean, log_variance = made.encode(Ragged.of(lists))
        if model is MultVAE:
            standard = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
            code = torch.distributions.Normal(mean, (log_variance / 2).exp())
            distance = torch.distributions.kl_divergence(code, standard).sum(1)
            want = [a + 0.2 * b for a, b in zip(want, distance.tolist(), strict=True)]
        assert made.loss(histories(lists)).tolist() == pytest.approx(want, rel=1e-4)
        with_items = Batch.of({"history": Ragged.of(lists), "item": torch.tensor([6, 7, 8])})
        more = made.loss(with_items) - made.loss(histories(lists))
        assert more.tolist() == pytest.approx([-float(log_p[r, 6 + r]) for r in range(3)], rel=1e-4)

    def test_the_weight_of_the_distance_rises_in_training(self) -> None:
        model = MultVAE.from_schema(EXAMPLE, MultVAE.Config(hidden=4, latent=2, beta=0.4, anneal=4)).train()
        weights = []
        for _ in range(6):
            model.loss(example_batch())
            weights.append(model.config.beta * min(int(model.steps) / 4, 1.0))
        assert weights == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])

    def test_a_long_history_is_as_loud_as_a_short_one(self) -> None:
        model = MultVAE.from_schema(EXAMPLE, MultVAE.debug())
        table = model.first.weight("item")
        read = model.read(Ragged.of([[4], [4, 5, 6, 7], []]))
        torch.testing.assert_close(read, torch.stack([table[4], table[4:8].sum(0) / 2, torch.zeros(8)]))

    def test_recvae_measures_the_distance_from_a_mixture_that_remembers_the_encoder(self) -> None:
        torch.manual_seed(2)
        model = RecVAE.from_schema(EXAMPLE, RecVAE.debug())
        history = Ragged.of([[4, 5], [9]])
        mean, log_variance = (x.detach() for x in model.encode(history))
        with torch.no_grad():
            for weight in model.encoder.parameters():
                weight += 1.0
        code = torch.randn(2, 4)
        normal = torch.distributions.Normal
        parts = [normal(0.0, 1.0), normal(mean, (log_variance / 2).exp()), normal(0.0, math.exp(5.0))]
        density = sum(
            share * part.log_prob(code).sum(1).exp() for share, part in zip((0.15, 0.75, 0.1), parts, strict=True)
        )
        assert isinstance(density, Tensor)
        torch.testing.assert_close(model._log_prior(code, history), density.log(), rtol=1e-4, atol=1e-4)

    def test_recvae_copies_its_encoder_every_so_many_steps(self) -> None:
        model = RecVAE.from_schema(EXAMPLE, RecVAE.Config(hidden=4, latent=2, renew=3)).train()
        kept = []
        for step in range(5):
            with torch.no_grad():
                model.encoder.code.bias.fill_(float(step))  # type: ignore[operator,union-attr]
            model.loss(example_batch())
            kept.append(float(model.old_code_bias[0]))  # type: ignore[index,arg-type]
        assert kept == [0.0, 0.0, 0.0, 3.0, 3.0]

    def test_recvaes_decoder_learns_from_whole_histories_and_its_encoder_from_parts(self) -> None:
        """Where all of every history is dropped, the encoder's table learns nothing, and the decoder does."""
        torch.manual_seed(0)
        model = RecVAE.from_schema(EXAMPLE, RecVAE.Config(hidden=4, latent=2, dropout=0.999999)).train()
        model.loss(histories([[4, 5], [6]])).sum().backward()
        first, decoder = model.first.weight("item").grad, model.last.weight("item").grad
        assert first is not None and decoder is not None
        assert float(first.abs().sum()) == 0.0
        assert float(decoder[4:7].abs().sum()) > 0


SEQUENCES = [
    SASRec.Config(dim=8, length=6, dropout=0.0, heads=2),
    GRU4Rec.Config(dim=8, length=6, hidden=16, dropout=0.0),
]


def sequence_model(config: Any) -> SequenceModel:
    torch.manual_seed(3)
    kind = SASRec if isinstance(config, SASRec.Config) else GRU4Rec
    return kind.from_schema(EXAMPLE, config).eval()


@pytest.mark.parametrize("config", SEQUENCES, ids=["SASRec", "GRU4Rec"])
class TestSequences:
    @torch.no_grad()
    def test_what_comes_later_changes_no_state_before_it(self, config: Any) -> None:
        model = sequence_model(config)
        codes = torch.tensor([[5, 9, 12, 7, 4, 20]])
        before = model._read(codes)
        for place in range(6):
            corrupted = codes.clone()
            corrupted[0, place] = 29
            after = model._read(corrupted)
            assert torch.equal(after[:, : place + 1], before[:, : place + 1])
            assert not torch.allclose(after[:, place + 1], before[:, place + 1])

    @torch.no_grad()
    def test_a_whole_sequence_has_the_losses_of_its_beginnings(self, config: Any) -> None:
        model = sequence_model(config)
        items = [5, 9, 12, 7]
        beginnings = Batch.of({"history": Ragged.of([items[:i] for i in range(4)]), "item": torch.tensor(items)})
        whole = model.loss(histories([items, []]))
        assert whole.tolist() == pytest.approx([float(model.loss(beginnings).sum()) / 6, 0.0], rel=1e-5)

    @torch.no_grad()
    def test_a_history_longer_than_what_is_read_is_learned_from_in_pieces(self, config: Any) -> None:
        model = sequence_model(config)  # reads 6
        items = list(range(4, 13))
        known = [items[:i] for i in range(7)] + [items[6:7], items[6:8]]
        parts = Batch.of({"history": Ragged.of(known), "item": torch.tensor(items)})
        whole = model.loss(histories([[5, 6], items, []]))
        assert whole.tolist()[1:] == pytest.approx([float(model.loss(parts).sum()) / 6, 0.0], rel=1e-5)
        assert float(whole[0]) == pytest.approx(float(model.loss(histories([[5, 6]]))), rel=1e-5)
        drawn = {round(float(model.train().loss(histories([items]))), 4) for _ in range(20)}
        assert len(drawn) > 1  # cut elsewhere each time

    def test_sessions_of_one_item_and_of_none_have_finite_losses_and_gradients(self, config: Any) -> None:
        for lists in ([[5]], [[]], [[5], [], [7]], [[], []]):
            model = sequence_model(config).train()
            losses = model.loss(histories(lists))
            assert losses.shape == (len(lists),) and bool(losses.isfinite().all())
            assert [x > 0 for x in losses.tolist()] == [bool(items) for items in lists]
            losses.sum().backward()
            assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())

    @torch.no_grad()
    def test_the_last_items_count_whatever_kind_of_list_holds_them(self, config: Any) -> None:
        model = sequence_model(config)
        long = [4, 5, 6, 7, 8, 9, 10, 11, 12]
        want = model.user(histories([long[-6:], [5, 6]]))
        assert torch.allclose(model.user(histories([long, [5, 6]])), want, atol=1e-6)
        padded = torch.tensor([long, [0] * 7 + [5, 6]])
        assert torch.allclose(model.user(Batch.of({"history": padded})), want, atol=1e-6)
        assert not torch.allclose(model.user(histories([long[::-1], [6, 5]])), want)

    def test_it_learns_an_order(self, config: Any) -> None:
        """Items follow each other in a circle: after some steps the next one is first."""
        model = sequence_model(config).train()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
        circle = [[FIRST + (start + i) % 8 for i in range(7)] for start in range(8)]
        for _ in range(80):
            optimizer.zero_grad()
            torch.autograd.backward(model.loss(histories(circle)).sum())
            optimizer.step()
        found = scores(model.eval(), histories([items[:6] for items in circle])).argmax(1)
        assert found.tolist() == [items[6] for items in circle]


def test_last_items_are_cut_and_filled_up() -> None:
    codes, lengths = last(Ragged.of([[1, 2, 3, 4], [], [9]]), 3)
    assert codes.tolist() == [[2, 3, 4], [0, 0, 0], [9, 0, 0]]
    assert lengths.tolist() == [3, 0, 1]
    assert last(Ragged.of([[], []]), 3)[0].shape == (2, 0)


def test_pieces_overlap_by_one_item_and_hold_all() -> None:
    lists = Ragged.of([[], [7], [1, 2, 3, 4], list(range(10, 20))])
    found, rows, first = pieces(lists, 3, torch.tensor([3, 3, 3, 2]))
    lists_found = [found[i : i + 1].values.tolist() for i in range(len(found))]
    assert lists_found == [[], [7], [1, 2, 3, 4], [10, 11, 12], [12, 13, 14, 15], [15, 16, 17, 18], [18, 19]]
    assert rows.tolist() == [0, 1, 2, 3, 3, 3, 3]
    assert first.tolist() == [True, True, True, True, False, False, False]
    assert pieces(lists[:0], 3, torch.zeros(0, dtype=torch.int64))[1].tolist() == []


def test_a_missing_history_is_named() -> None:
    for kind in (EASE, MultVAE, SASRec):
        with pytest.raises(ColumnNotFoundError, match="the batch has no column `history`"):
            kind.from_schema(EXAMPLE, kind.debug()).user(Batch.of({"item": torch.tensor([4])}))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EASE.Config(regularisation=0.0), "EASE regularisation=0.0"),
        (lambda: ItemKNN.Config(neighbours=0), "ItemKNN neighbours=0"),
        (lambda: ItemKNN.Config(shrink=-1.0), "ItemKNN shrink=-1.0"),
        (lambda: IALS.Config(dim=0), "IALS dim=0"),
        (lambda: IALS.Config(unobserved=0.0), "IALS unobserved=0.0"),
        (lambda: MF.Config(dim=1), "MF dim=1"),
        (lambda: YouTubeDNN.Config(dim=1), "YouTubeDNN dim=1"),
        (lambda: YouTubeDNN.Config(history_dropout=1.0), "YouTubeDNN history_dropout=1.0"),
        (lambda: MultVAE.Config(latent=0), "MultVAE hidden=600, latent=0"),
        (lambda: RecVAE.Config(dropout=1.0), "RecVAE dropout=1.0"),
        (lambda: MultVAE.Config(beta=-0.1), "MultVAE beta=-0.1"),
        (lambda: RecVAE.Config(renew=0), "RecVAE layers=3, renew=0"),
        (lambda: SASRec.Config(dim=7, heads=2), "SASRec blocks=2, heads=2, dim=7"),
        (lambda: GRU4Rec.Config(layers=0), "GRU4Rec layers=0"),
        (lambda: SASRec.from_schema(EXAMPLE, SASRec.Config(length=0)), "SASRec dim=64, length=0"),
    ],
)
def test_settings_out_of_range_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


class TestTwoTowerOfUnknownItems:
    """Items that training has no row of are known by their other columns alone; so are some of its rows' items."""

    @staticmethod
    def model(share: float) -> TwoTower:
        torch.manual_seed(0)
        model = TwoTower.from_schema(EXAMPLE, TwoTower.Config(dim=8, unknown_items=share))
        counts = torch.arange(N, dtype=torch.float32)
        counts[:FIRST] = 0
        counts[[5, 9]] = 0
        model.set_counts(counts)
        return model

    def test_untrained_items_of_equal_columns_have_one_vector_and_others_their_own(self) -> None:
        codes, genres = torch.tensor([5, 9, 6, FIRST - 1]), Ragged.of([[3, 4]] * 4)
        batch = Batch.of({"item": codes, "genres": genres, "year": torch.full((4,), 0.5)})
        with torch.inference_mode():
            knows, ignores = (self.model(share).eval().item(batch) for share in (0.5, 0.0))
        assert torch.equal(knows[0], knows[1])
        assert torch.equal(knows[0], knows[3])  # that of the unknown code
        assert not torch.allclose(knows[0], knows[2])
        assert torch.equal(knows[2], ignores[2])  # in evaluation nothing else is hidden
        assert not torch.allclose(ignores[0], ignores[1])

    def test_a_share_of_the_training_rows_teaches_the_unknown_item(self) -> None:
        batch = Batch.of({**example_batch(rows=2000).features, "item": torch.full((2000,), 7)})
        model = self.model(0.3).train()
        weight = model.item_tower.tables.weight("item")
        model.item(batch)[:, 0].sum().backward()  # type: ignore[no-untyped-call]
        assert weight.grad is not None
        times = weight.grad[:, 0]
        assert 480 < float(times[FIRST - 1]) < 720  # 600 and six standard deviations
        assert float(times[FIRST - 1] + times[7]) == 2000

    def test_settings_that_do_not_fit(self) -> None:
        with pytest.raises(ConfigError, match=r"TwoTower unknown_items=1\.0\n\nhint: from 0 to below 1"):
            TwoTower.Config(unknown_items=1.0)
        items = EXAMPLE.without([c.name for c in EXAMPLE.select("item") if "id" not in c.tags])
        with pytest.raises(
            SchemaError, match="nothing to tell unknown items by: no column tagged `item` beside `item`"
        ):
            TwoTower.from_schema(items, TwoTower.Config(unknown_items=0.1))
