"""What is done to each batch, beside numpy, and the same on 1, 2 and 4 processes."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from falconet.batch import Batch
from falconet.errors import ArtifactError, ColumnNotFoundError, ConfigError, DataError, SchemaError
from falconet.loader.loader import Loader
from falconet.loader.position import described
from falconet.loader.transforms import Negatives, Padding, SampleWeights, Transform, Unknown
from falconet.loader.vectors import PretrainedVectors

Make = Callable[..., Path]


@pytest.fixture
def load(numbered_folder: Make) -> Callable[..., Loader]:
    folder = numbered_folder([30, 13, 7], row_group=6)

    def make(*transforms: Transform | Callable[[Batch], Batch], lanes: int = 1, **settings: Any) -> Loader:
        return Loader(folder, batch_size=16, shuffle=True, seed=4, transforms=transforms, lanes=lanes, **settings)

    return make


def column(loader: Loader, name: str, epoch: int = 0, start: int = 0, world: int = 1) -> Tensor:
    """A dense feature of all steps, those of rank 0 first."""
    ranks = [list(loader.batches(epoch, start, rank, world)) for rank in range(world)]
    found = [batch.features[name] for step in zip(*ranks, strict=True) for batch in step]
    return torch.cat(found)  # type: ignore[arg-type]


VECTORS = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)


def every() -> list[Transform]:
    return [
        Negatives(column="item", count=5),
        Padding(lengths={"genres": 2}),
        PretrainedVectors(column="item", source=VECTORS, known="has_vector"),
        SampleWeights(lambda batch: batch.features["price"] + 1),  # type: ignore[operator]
        Unknown(values={"row": -1}, share=0.5),
    ]


@pytest.mark.parametrize("lanes", [1, 4])
def test_all_of_them_are_the_same_on_1_2_and_4_processes(load: Callable[..., Loader], lanes: int) -> None:
    loader = load(*every(), lanes=lanes)
    for name in ("negatives", "genres", "vectors", "has_vector", "row"):
        alone = column(loader, name, 1)
        assert [torch.equal(column(loader, name, 1, 0, world), alone) for world in (2, 4)] == [True, True]
        assert torch.equal(column(loader, name, 1, 2), alone[32:])


def test_the_schema_says_what_came_in(load: Callable[..., Loader]) -> None:
    schema = load(*every()).schema
    assert schema.names == (
        "row", "item", "genres", "vector", "price", "liked", "importance", "negatives", "vectors", "has_vector",
    )  # fmt: skip
    assert (schema["genres"].list, schema["genres"].cardinality) == (2, 10)
    assert (schema["negatives"].list, schema["negatives"].table, schema["negatives"].tags) == (5, "item", frozenset())
    assert (schema["vectors"].list, schema["vectors"].tags) == (3, {"embedding"})


@pytest.mark.parametrize("kind", ["array", "tensor", "npy", "safetensors", "safetensors of two"])
def test_vectors_are_those_of_the_ids_and_zero_where_there_is_none(
    load: Callable[..., Loader], tmp_path: Path, kind: str
) -> None:
    source: Any = VECTORS
    key = None
    if kind == "tensor":
        source = torch.from_numpy(VECTORS).double()
    elif kind == "npy":
        source = tmp_path / "vectors.npy"
        np.save(source, VECTORS.astype(np.float16))
    elif kind.startswith("safetensors"):
        source = tmp_path / "vectors.safetensors"
        tensors = {"items": torch.from_numpy(VECTORS).to(torch.bfloat16)}
        if kind.endswith("two"):
            tensors["users"], key = torch.zeros(2, 2), "items"
        save_file(tensors, source)
    loader = load(PretrainedVectors(column="item", source=source, key=key, known="has_vector"))
    items = column(loader, "item").numpy()
    wanted = np.where((items < 40)[:, None], VECTORS[np.minimum(items, 39)], 0)
    found = column(loader, "vectors")
    assert found.dtype == torch.float32
    assert column(loader, "has_vector").tolist() == (items < 40).tolist()
    assert np.abs(found.numpy() - wanted).max() < (0 if kind in ("array", "tensor") else 0.02) + 1e-7
    again = pickle.loads(pickle.dumps(loader))  # noqa: S301
    assert torch.equal(column(again, "vectors"), found)


def test_vectors_of_other_codes_than_their_rows(load: Callable[..., Loader]) -> None:
    codes = np.array([45, 7, 12])
    loader = load(PretrainedVectors(column="item", source=VECTORS[:3], codes=codes, known="has_vector"))
    items = column(loader, "item")
    vectors, known = column(loader, "vectors"), column(loader, "has_vector")
    for i, code in enumerate(codes):
        assert torch.equal(vectors[items == int(code)][0], torch.from_numpy(VECTORS[i]))
    assert (int(known.sum()), float(vectors[~known].abs().sum())) == (3, 0)


def test_only_the_rows_asked_for_are_read_from_a_file(load: Callable[..., Loader], tmp_path: Path) -> None:
    np.save(tmp_path / "vectors.npy", VECTORS)
    transform = PretrainedVectors(column="item", source=tmp_path / "vectors.npy")
    next(load(transform).batches())
    assert isinstance(transform._vectors, np.memmap)


@pytest.mark.parametrize("keep", ["first", "last"])
def test_padding_gives_lists_of_one_length(load: Callable[..., Loader], keep: str) -> None:
    def lists(loader: Loader) -> list[list[int]]:
        return [row for batch in loader.batches() for row in batch.features["genres"].to_lists()]  # type: ignore[union-attr]

    whole = lists(load())
    for length in (1, 2, 4):
        padded = column(load(Padding(lengths={"genres": length}, value=-1, keep=keep)), "genres")  # type: ignore[arg-type]
        cut = [row[:length] if keep == "first" else row[-length:] for row in whole]
        assert padded.tolist() == [row + [-1] * (length - len(row)) for row in cut]
        assert padded.dtype == torch.int32


def test_padding_keeps_the_order_within_a_list() -> None:
    from falconet.batch import Ragged
    from falconet.loader.transforms import Place

    batch = Batch({"x": Ragged.of([[1, 2, 3], [], [4]])}, {}, 3, 3, None)
    place = Place(0, 0, 0, 0, 3)
    for keep, wanted in (("first", [[1, 2], [0, 0], [4, 0]]), ("last", [[2, 3], [0, 0], [4, 0]])):
        made = Padding(lengths={"x": 2}, keep=keep)(batch, place)  # type: ignore[arg-type]
        assert made.features["x"].tolist() == wanted  # type: ignore[union-attr]


def test_negatives_are_other_codes_equally_likely_and_a_function_of_seed_epoch_and_step(
    load: Callable[..., Loader],
) -> None:
    loader = load(Negatives(column="item", count=2000))
    items, drawn = column(loader, "item"), column(loader, "negatives")
    assert (drawn.shape, drawn.dtype) == ((50, 2000), torch.int32)
    assert not bool((drawn == items[:, None]).any())
    counts = np.bincount(drawn.flatten().numpy(), minlength=100)
    assert (counts[:2].tolist(), len(counts)) == ([0, 0], 100)
    expected = 100_000 / 98  # every item is the own one of at most one row, so this is right to 1 / 50
    assert np.abs(counts[2:] - expected).max() < 6 * np.sqrt(expected) + expected / 50
    assert not torch.equal(column(loader, "negatives", 1), drawn)
    other = replace(Negatives(column="item", count=2000), stream=2)
    assert not torch.equal(column(load(other), "negatives"), drawn)
    assert torch.equal(column(load(Negatives(column="item", count=2000)), "negatives"), drawn)


def test_negatives_of_a_row_that_has_no_code_are_all_codes(load: Callable[..., Loader]) -> None:
    loader = load(Negatives(column="item", count=300, codes=range(90, 93)))
    items, drawn = column(loader, "item"), column(loader, "negatives")
    assert int(items.max()) < 90
    assert all(set(row.tolist()) == {90, 91, 92} for row in drawn)


def test_weights_are_those_of_the_function_times_those_of_the_data(load: Callable[..., Loader]) -> None:
    loader = load(SampleWeights(lambda batch: 1 + 4 * batch.targets["liked"]))
    for batch in loader.batches():
        row = batch.features["row"].double()  # type: ignore[union-attr]
        assert batch.weights is not None
        torch.testing.assert_close(batch.weights.double(), (row + 1) * torch.where(row % 2 == 0, 5.0, 1.0))


def test_a_share_of_the_rows_look_like_an_unknown_item_and_the_others_are_as_they_were(numbered_folder: Make) -> None:
    unknown = Unknown(values={"item": 1, "price": -4.5}, share=0.3)
    load = partial(Loader, numbered_folder([2000]), batch_size=500, shuffle=True, seed=4)
    plain, loader = load(), load(transforms=[unknown])
    hidden = column(loader, "price") == -4.5
    assert 540 < int(hidden.sum()) < 660  # 600, and three standard deviations of 20
    assert torch.equal(column(loader, "item") == 1, hidden | (column(plain, "item") == 1))
    for name in ("item", "price", "row"):
        same = ~hidden if name != "row" else torch.ones_like(hidden)
        found, was = column(loader, name), column(plain, name)
        assert found.dtype == was.dtype
        assert torch.equal(found[same], was[same])
    assert not torch.equal(column(loader, "price", 1) == -4.5, hidden)  # others in the next epoch
    other = column(load(transforms=[replace(unknown, stream=3)]), "price") == -4.5
    both = float((other & hidden).float().mean())
    assert 0.05 < both < 0.13  # chosen apart: 0.09


def test_a_plain_function_of_a_batch_is_a_transform(load: Callable[..., Loader]) -> None:
    def double(batch: Batch) -> Batch:
        return replace(batch, features={**batch.features, "twice": batch.features["row"] * 2})  # type: ignore[operator]

    loader = load(double)
    assert torch.equal(column(loader, "twice"), column(loader, "row") * 2)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: Padding(lengths={"genre": 2}), ColumnNotFoundError, "the batch has no column `genre`\n\nhint: did"),
        (lambda: Padding(lengths={"item": 2}), SchemaError, "`item` does not hold lists of any length"),
        (lambda: Padding(lengths={"genres": 0}), ConfigError, "the length of `genres` is 0"),
        (lambda: Padding(lengths={"genres": 1}, keep="all"), ConfigError, r"`Padding\.keep` must be one of"),
        (lambda: Negatives(column="liked", count=1), ColumnNotFoundError, "the batch has no column `liked`"),
        (lambda: Negatives(column="genres", count=1), SchemaError, "`genres` does not hold one code a row"),
        (lambda: Negatives(column="item", count=0), ConfigError, "`count` 0"),
        (lambda: Negatives(column="item", count=1, name="price"), SchemaError, "a column `price` already"),
        (lambda: Negatives(column="row", count=1), SchemaError, "`row` has no cardinality"),
        (lambda: Negatives(column="item", count=1, codes=range(3, 4)), ConfigError, r"cannot be drawn from range\(3,"),
        (lambda: Unknown(values={"items": 2}), ColumnNotFoundError, "no column `items`\n\nhint: did you mean `item`"),
        (lambda: Unknown(values={"genres": 2}), SchemaError, "column `genres` holds lists"),
        (lambda: Unknown(values={}), ConfigError, "Unknown has no `values`"),
        (lambda: Unknown(values={"item": 2}, share=1.0), ConfigError, "Unknown `share` is 1.0\n\nhint: above 0"),
        (lambda: Unknown(values={"item": 2}, stream=0), ConfigError, "Unknown `stream` is 0"),
        (lambda: Unknown(values={"item": 100}), ConfigError, "the value 100\n\nhint: a code, from 0 on below 100"),
        (lambda: Unknown(values={"item": 2.5}), ConfigError, "gives `item` the value 2.5"),
        (lambda: Unknown(values={"price": float("nan")}), ConfigError, "the value nan\n\nhint: a finite number"),
        (lambda: Unknown(values={"price": None}), ConfigError, "gives `price` the value None"),  # type: ignore[dict-item]
        (lambda: PretrainedVectors(column="genres", source=VECTORS), SchemaError, "`genres` does not hold one code"),
        (lambda: PretrainedVectors(column="item", source="no.npy"), ArtifactError, "no vectors at `no.npy`"),
        (lambda: PretrainedVectors(column="item", source=VECTORS[0]), DataError, "are no matrix of floats"),
        (lambda: PretrainedVectors(column="item", source=VECTORS, codes=np.arange(2)), ConfigError, "2 codes for 40"),
        (lambda: PretrainedVectors(column="item", source=VECTORS, name="price"), SchemaError, "a column `price` alr"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_anything_is_read(
    load: Callable[..., Loader], make: Callable[[], Transform], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        load(make())


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (SampleWeights(lambda batch: torch.ones(3)), r"weights of step 0 are not 16 finite numbers .* \(shape \[3\]\)"),
        (SampleWeights(lambda batch: -batch.features["row"] - 1), "are not 16 finite numbers of at least 0"),  # type: ignore[operator]
        (lambda batch: batch[:3], "a transform made 3 rows of a batch of 16 rows"),
        (lambda batch: None, "a transform made a NoneType of a batch of 16 rows"),
    ],
)
def test_what_a_function_made_wrong_is_an_error_in_the_loop(
    load: Callable[..., Loader], transform: Any, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        next(load(transform).batches())


def doubled(batch: Batch) -> Batch:
    return batch


def test_a_position_knows_columns_targets_and_transforms(
    numbered_folder: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What decides the rows that batches hold must be the same where a position is taken up."""
    folder = numbered_folder([20])
    np.save(tmp_path / "vectors.npy", np.zeros((40, 3), np.float32))
    base: dict[str, Any] = {
        "columns": ["item", "genres"],
        "targets": ["price"],
        "transforms": [Negatives(column="item", count=3), Padding(lengths={"genres": 2}), doubled],
    }
    vectors = PretrainedVectors(column="item", source=tmp_path / "vectors.npy", codes=torch.arange(40))
    state = json.loads(json.dumps(Loader(folder, batch_size=4, **base).state_dict()))
    Loader(folder, batch_size=4, **base).load_state_dict(state)
    for setting, changed in (
        ("columns", ["item", "genres", "count"]),
        ("columns", ["genres", "item"]),
        ("targets", []),
        ("transforms", []),
        ("transforms", [Negatives(column="item", count=4), *base["transforms"][1:]]),
        ("transforms", [*base["transforms"][:2], lambda batch: batch]),
        ("transforms", [*base["transforms"], vectors]),
    ):
        with pytest.raises(ConfigError, match=r"the saved position has (columns|targets|transforms) = "):
            Loader(folder, batch_size=4, **{**base, setting: changed}).load_state_dict(state)
    with_vectors = Loader(folder, batch_size=4, transforms=[vectors]).state_dict()["transforms"]
    assert with_vectors[0]["source"] == ["vectors.npy", (tmp_path / "vectors.npy").stat().st_size]
    assert with_vectors[0]["codes"] == ["torch.int64", 40]
    monkeypatch.chdir(tmp_path)
    assert described("vectors.npy") == described(tmp_path / "vectors.npy") == with_vectors[0]["source"]
    assert [described(x) for x in ("a/item", "b/item", "first", ".")] == ["a/item", "b/item", "first", "."]
