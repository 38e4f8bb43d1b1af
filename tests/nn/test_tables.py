"""Embedding tables: sharing, pooling, padding, and gradients of touched rows alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from falconet.batch import Batch, Ragged
from falconet.errors import ColumnNotFoundError, ConfigError, SchemaError
from falconet.nn.embedding import Tables, Touched
from falconet.nn.lookup import distinct, sums_of
from falconet.nn.projection import Projected
from falconet.schema import Column, Tag

USER = Column(name="user", dtype="int32", cardinality=6)
ITEM = Column(name="item", dtype="int32", cardinality=5)
HISTORY = Column(name="history", dtype="int32", list="ragged", cardinality=5, domain="item")
GENRES = Column(name="genres.main", dtype="int32", list=3, cardinality=4)


def tables(pooling: str = "mean") -> Tables:
    """Tables whose row i holds i in every place; three columns wide for users, two for the rest."""
    made = Tables([USER, ITEM, HISTORY, GENRES], {"user": 3, "item": 2, "genres.main": 2}, pooling)  # type: ignore[arg-type]
    with torch.no_grad():
        for name in made.tables:
            weight = made.weight(name)
            weight.copy_(torch.arange(len(weight), dtype=torch.float32).unsqueeze(1).expand_as(weight))
    return made


def batch() -> Batch:
    return Batch.of(
        {
            "user": torch.tensor([5, 1, 1], dtype=torch.int32),
            "item": torch.tensor([4, 3, 0], dtype=torch.int32),
            "history": Ragged.of([[1, 2, 0], [], [0]], torch.int32),
            "genres.main": torch.tensor([[1, 3, 0], [0, 0, 0], [2, 2, 2]], dtype=torch.int32),
        }
    )


def test_columns_of_one_domain_share_a_table() -> None:
    assert tables().tables == ("user", "item", "genres.main")
    assert sorted(tables().state_dict()) == [
        "weights.table_genres%2Emain", "weights.table_item", "weights.table_user",
    ]  # fmt: skip


def test_scalars_become_rows_and_lists_become_means_without_padding() -> None:
    found = tables()(batch())
    assert found["user"].tolist() == [[5, 5, 5], [1, 1, 1], [1, 1, 1]]
    assert found["item"].tolist() == [[4, 4], [3, 3], [0, 0]]
    assert found["history"].tolist() == [[1.5, 1.5], [0, 0], [0, 0]]
    assert found["genres.main"].tolist() == [[2, 2], [0, 0], [2, 2]]


def test_lists_become_sums_where_asked() -> None:
    found = tables("sum")(batch())
    assert found["history"].tolist() == [[3, 3], [0, 0], [0, 0]]
    assert found["genres.main"].tolist() == [[4, 4], [0, 0], [6, 6]]


def test_named_columns_alone_are_read() -> None:
    one_side = Batch.of({"item": torch.tensor([2])})
    assert tables()(one_side, ["item"])["item"].tolist() == [[2, 2]]
    assert tables().lookup("history", Ragged.of([[1, 3]])).tolist() == [[2, 2]]
    assert tables().rows("item", torch.tensor([[1, 2], [0, 4]])).tolist() == [[[1, 1], [2, 2]], [[0, 0], [4, 4]]]


def test_no_rows_give_no_rows() -> None:
    found = tables()(batch()[0:0])
    assert {name: tuple(x.shape) for name, x in found.items()} == {
        "user": (0, 3), "item": (0, 2), "history": (0, 2), "genres.main": (0, 2),
    }  # fmt: skip


def test_nothing_but_empty_lists_give_zeros() -> None:
    found = tables().lookup("history", Ragged.of([[], []]))
    assert found.tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("global_rows", [3, 1], ids=["projected_before", "pooled_before"])
def test_project_equals_the_plain_way(global_rows: int) -> None:
    torch.manual_seed(0)
    made = Tables([USER, ITEM, HISTORY, GENRES], 4, init=1.0)
    linear = nn.Linear(made.width + 2, 7)
    given, extra_B2 = batch(), torch.randn(3, 2)
    given = Batch(given.features, rows=3, global_rows=global_rows)

    def gradients(result: Tensor) -> list[Tensor]:
        (result * torch.arange(1.0, 8)).sum().backward()
        found = [p.grad.clone() for p in (*made.parameters(), *linear.parameters()) if p.grad is not None]
        made.zero_grad()
        linear.zero_grad()
        return found

    fast = made.project(given, linear, extra=extra_B2)
    plain = linear(torch.cat([*made(given).values(), extra_B2], dim=1))
    assert torch.allclose(fast, plain, atol=1e-6)
    for a, b in zip(gradients(fast), gradients(plain), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_padding_learns_nothing_by_any_torch_optimizer() -> None:
    made = Tables([ITEM, HISTORY], 2, init=0.05)
    optimizer = torch.optim.Adam(made.parameters(), lr=0.1)
    before = made.weight("item").detach().clone()
    sum(x.sum() for x in made(batch()).values()).backward()  # type: ignore[union-attr]
    optimizer.step()
    assert made.weight("item")[0].tolist() == [0, 0]
    assert (made.weight("item") != before).any(1).tolist() == [False, True, True, True, True]


def test_while_collecting_the_distinct_rows_get_the_gradient_and_the_weight_none() -> None:
    made = tables("sum")
    with made.collect() as touched:
        made(batch(), ["item", "history"])["history"].sum().backward()
    (one,) = touched
    assert (one.table, one.ids.tolist()) == ("item", [0, 1, 2, 3, 4])
    assert one.rows.grad is not None
    assert one.rows.grad[1:].tolist() == [[1, 1], [1, 1], [0, 0], [0, 0]]
    assert made.weight("item").grad is None


@pytest.mark.parametrize(
    ("given", "ids", "places"),
    [
        ([9, 3, 9, 4], [0, 3, 4, 9], [3, 1, 3, 2]),
        ([1 << 40, 0, 7, 1 << 40, 0], [0, 7, 1 << 40], [2, 0, 1, 2, 0]),
        ([0], [0], [0]),
        ([], [0], []),
    ],
    ids=["small", "padding among large ones", "padding alone", "none"],
)
def test_distinct_ids_are_ascending_after_padding(given: list[int], ids: list[int], places: list[int]) -> None:
    found = distinct(torch.tensor(given, dtype=torch.int64))
    assert [x.tolist() for x in found] == [ids, places]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_one_place_are_added_up_in_float32(dtype: torch.dtype) -> None:
    """Places that no row has come to zero; 256 ones and more do not stay 256, as they do in bfloat16."""
    place = torch.tensor([4, 1] * 400 + [1] * 100)
    sums = sums_of(torch.ones(900, 3, dtype=dtype), place, 6)
    assert sums.dtype == dtype
    assert sums.tolist() == [[n] * 3 for n in (0, 500, 0, 0, 400, 0)]


def test_padding_is_zero_at_the_start() -> None:
    made = Tables([USER], 3, init=2.0)
    assert made.weight("user")[0].tolist() == [0, 0, 0]
    assert float(made.weight("user").detach().std()) > 0.5


@pytest.mark.parametrize("wrong", [7, -1])
def test_an_id_out_of_range_names_column_and_cardinality(wrong: int) -> None:
    with pytest.raises(IndexError, match=rf"column `user` holds the id {wrong}, .*cardinality 6"):
        tables().lookup("user", torch.tensor([1, wrong]))


def test_wrong_columns_and_widths_are_refused() -> None:
    with pytest.raises(SchemaError, match="`tag` has no cardinality"):
        Tables([Column(name="tag", dtype="int32")], 4)
    with pytest.raises(SchemaError, match="have one cardinality and one width"):
        Tables([ITEM, Column(name="seen", dtype="int32", cardinality=9, domain="item")], 4)
    with pytest.raises(ColumnNotFoundError, match="`dims` has no column `item`"):
        Tables([ITEM], {"itme": 4})
    with pytest.raises(ConfigError, match="cannot be 0 wide"):
        Tables([ITEM], 0)
    with pytest.raises(ConfigError, match='must be "mean" or "sum", not \'max\''):
        Tables([HISTORY], 4, "max")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="takes 3 inputs, the columns give 9"):
        tables().project(batch(), nn.Linear(3, 1))
    with pytest.raises(ColumnNotFoundError, match="the batch has no column `item`"):
        tables()(Batch.of({"user": torch.tensor([1])}))


@pytest.mark.parametrize("pooling", ["mean", "sum"])
@pytest.mark.parametrize("distinct_ids", [5, 300], ids=["few", "many"])
def test_lists_of_few_and_of_many_distinct_ids_are_pooled_alike(distinct_ids: int, pooling: str) -> None:
    random = torch.Generator().manual_seed(0)
    column = Column(name="tag", dtype="int32", list="ragged", cardinality=distinct_ids + 1)
    made = Tables([column], 3, pooling, init=1.0)  # type: ignore[arg-type]
    lists = [torch.randint(0, distinct_ids + 1, (n % 7,), generator=random).tolist() for n in range(200)]
    upstream = torch.randn(200, 3, generator=random)
    weight = made.weight("tag").detach().double().requires_grad_()
    wanted = []
    for ids in lists:
        rows = weight[[i for i in ids if i]]
        wanted.append(rows.sum(0) / (max(len(rows), 1) if pooling == "mean" else 1))
    (torch.stack(wanted) * upstream).sum().backward()
    with made.collect() as touched:
        found = made.lookup("tag", Ragged.of(lists))
        (found * upstream).sum().backward()
    assert torch.allclose(found.double(), torch.stack(wanted), atol=1e-6)
    (one,) = touched
    assert weight.grad is not None
    assert one.rows.grad is not None
    assert torch.allclose(one.rows.grad[1:].double(), weight.grad[one.ids[1:]], atol=1e-5)


def test_a_layer_in_bfloat16_reads_rows_that_are_rounded_once() -> None:
    """What the layer and the rows' gradients come to is what autocast makes of rows in float32."""
    torch.manual_seed(0)
    made, linear = Tables([USER], 4, init=1.0), nn.Linear(4, 7)
    users = Batch.of({"user": torch.tensor([5, 1, 1, 0, 3])})
    with made.collect() as touched, torch.autocast("cpu", torch.bfloat16):
        found = made.project(users, linear)
        found.sum().backward()
    (one,) = touched
    assert one.rows.dtype == torch.bfloat16
    rows = made.weight("user").detach()[one.ids].requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        products = nn.functional.linear(rows, linear.weight)[torch.tensor([3, 1, 1, 0, 2])]
        wanted = (products.float() + linear.bias.bfloat16()).bfloat16()
        wanted.sum().backward()
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, wanted)
    assert rows.grad is not None
    assert one.rows.grad is not None
    assert torch.equal(one.rows.grad.float(), rows.grad)


def gradient_of(one: Touched | Projected) -> tuple[Tensor, Tensor]:
    """The ids that a look-up taught, padding left out, and the gradient of their rows."""
    if isinstance(one, Projected):
        assert one.outer is not None
        return one.ids, one.outer @ one.layer
    assert one.rows.grad is not None
    return one.ids[1:], one.rows.grad[1 : len(one.ids)]


@pytest.mark.parametrize("hidden", [3, 7], ids=["narrower than the table", "wider"])
@pytest.mark.parametrize("rows", [4_000, 5_000, 5_121])
def test_many_distinct_rows_learn_as_those_of_an_embedding_do(rows: int, hidden: int) -> None:
    column = Column(name="user", dtype="int32", tags=frozenset({Tag.USER, Tag.CATEGORICAL}), cardinality=9_000, oov=1)
    torch.manual_seed(0)
    made, linear = Tables([column], 4, init=1.0), torch.nn.Linear(4, hidden)
    ids = torch.randperm(8_000)[:rows].repeat(2)[: rows + 999].int()
    batch = Batch({"user": ids}, {}, len(ids), len(ids))
    upstream = torch.randn(len(ids), hidden)
    weight = made.weight("user").detach().clone().requires_grad_()
    wanted = torch.nn.functional.linear(weight[ids.long()], linear.weight, linear.bias)
    (wanted * upstream).sum().backward()
    with made.collect() as touched:
        found = made.project(batch, linear)
        (found * upstream).sum().backward()
    assert torch.allclose(found, wanted, atol=1e-5)
    (one,) = touched
    assert isinstance(one, Projected) == (hidden < 4)
    touched_ids, gradient = gradient_of(one)
    assert weight.grad is not None
    assert torch.equal(touched_ids, torch.unique(ids[ids > 0]).long())
    assert torch.allclose(gradient, weight.grad[touched_ids], atol=1e-5)


def weighed(pooling: str) -> Tables:
    made = Tables([HISTORY, GENRES], 2, pooling, list_weights={"history": "trust", "genres.main": "share"})  # type: ignore[arg-type]
    with torch.no_grad():
        for name in made.tables:
            made.weight(name).copy_(
                torch.arange(len(made.weight(name)), dtype=torch.float32).unsqueeze(1).expand(-1, 2)
            )
    return made


def weighed_batch() -> Batch:
    return Batch.of(
        {
            "history": Ragged.of([[1, 2, 0], [], [3, 4]], torch.int32),
            "trust": Ragged.of([[3.0, 1.0, 9.0], [], [0.5, -0.5]], torch.float32),
            "genres.main": torch.tensor([[1, 3, 0], [0, 0, 0], [2, 2, 2]], dtype=torch.int32),
            "share": torch.tensor([[0.25, 0.75, 5.0], [1.0, 1.0, 1.0], [2.0, 0.0, 1.0]]),
        }
    )


@pytest.mark.parametrize("learns", [True, False], ids=["by a product", "one by one"])
def test_values_of_lists_count_what_their_weights_say_and_padding_nothing(learns: bool) -> None:
    with torch.set_grad_enabled(learns):
        mean, total = (weighed(pooling)(weighed_batch()) for pooling in ("mean", "sum"))
    assert mean["history"][:, 0].tolist() == [1.25, 0.0, -0.5]  # weights that add up to 0 divide by 1
    assert mean["genres.main"][:, 0].tolist() == [2.5, 0.0, 2.0]
    assert total["history"][:, 0].tolist() == [5.0, 0.0, -0.5]
    assert total["genres.main"][:, 0].tolist() == [2.5, 0.0, 6.0]


def test_weights_of_one_are_no_weights_whatever_way_lists_are_pooled() -> None:
    random = torch.Generator().manual_seed(0)
    column = Column(name="tag", dtype="int32", list="ragged", cardinality=301)
    lists = Ragged.of([torch.randint(0, 301, (n % 7,), generator=random).tolist() for n in range(200)])
    rows = Batch.of({"tag": lists, "w": Ragged(torch.full(lists.values.shape, 2.0), lists.offsets)})
    plain = Tables([column], 3, "mean")
    heavy = Tables([column], 3, "mean", list_weights={"tag": "w"})
    heavy.load_state_dict(plain.state_dict())
    upstream = torch.randn(200, 3, generator=random)
    (plain(rows)["tag"] * upstream).sum().backward()
    (heavy(rows)["tag"] * upstream).sum().backward()
    torch.testing.assert_close(heavy(rows)["tag"], plain(rows)["tag"])
    torch.testing.assert_close(heavy.weight("tag").grad, plain.weight("tag").grad)
    layer = nn.Linear(3, 2)
    torch.testing.assert_close(heavy.project(rows, layer), layer(plain(rows)["tag"]))


@pytest.mark.parametrize(
    "trust", [Ragged.of([[3.0, 1.0], [1.0], [0.5, 0.5]]), torch.ones(3, 3)], ids=["other lengths", "another kind"]
)
def test_weights_that_do_not_fit_the_lists_are_named(trust: Ragged | Tensor) -> None:
    rows = weighed_batch()
    with pytest.raises(SchemaError, match="the weights `trust` do not fit the lists of `history`"):
        weighed("mean")(Batch.of({**rows.features, "trust": trust}))
