"""What goes wrong in a step is named: the batch, the columns, the rows, and what to lower."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor, nn

from conftest import need
from falconet.batch import Batch, Ragged
from falconet.errors import ConfigError, DataError
from falconet.io.artifact import read_artifact
from falconet.loader.loader import Loader
from falconet.nn.supervised import Supervised
from falconet.train.callbacks import Callback
from falconet.train.trainer import Trainer
from falconet.train.trouble import not_finite
from train.workers import SCHEMA, SGD, Line, Net, Rows, config, line_batch, loader, net, write_rows


@pytest.fixture
def spoilt(tmp_path: Path) -> Path:
    """320 rows in order, of which 100 and 101 have an age, and 101 an answer, that is no number."""
    folder = write_rows(tmp_path / "spoilt", (200, 120))
    file = folder / "part_0.parquet"
    table = pq.read_table(file)
    columns = {name: table[name].to_pylist() for name in SCHEMA.names}
    columns["age"][100], columns["age"][101], columns["liked"][101] = math.nan, math.inf, math.nan
    pq.write_table(pa.table(columns, schema=table.schema), file)
    return folder


@pytest.mark.parametrize(
    ("column", "value", "what"),
    [("item", 30, "`item` holds the id 30, its table has the rows 0 to 29"), ("item", -1, "`item` holds the id -1"),
     ("genres", [2, 2**30], "`genres` holds the id 1073741824")],
)  # fmt: skip
@pytest.mark.parametrize("in_training", [True, False])
def test_an_id_that_no_table_has_is_named_with_its_row(
    tmp_path: Path, data: Path, column: str, value: object, what: str, in_training: bool
) -> None:
    folder = write_rows(tmp_path / "beyond", (200, 120))
    table = pq.read_table(folder / "part_1.parquet")
    columns = {name: table[name].to_pylist() for name in SCHEMA.names}
    columns[column][7] = value
    pq.write_table(pa.table(columns, schema=table.schema), folder / "part_1.parquet")
    beyond, good = Loader(folder, batch_size=32), loader(data)
    with pytest.raises(DataError) as error:
        Trainer(config()).fit(net(), *((beyond, good) if in_training else (good, beyond)))
    assert f"at step 7 of epoch 1: column {what}" in error.value.args[0]
    assert error.value.hint is not None
    assert error.value.hint.startswith(
        f"`{column}` is out of this range in 1 of its 32 rows, the first from row 7 of row group 0 of `{folder}"
    )


@pytest.mark.parametrize("spoilt", [True, False])
def test_what_a_gpu_asserts_some_steps_later_is_named(tmp_path: Path, data: Path, spoilt: bool) -> None:
    class Late(Net):
        """Tells in the ninth step, as a GPU does, that something was wrong."""

        calls = 0

        def loss(self, batch: Batch) -> Tensor:
            self.calls += 1
            if self.calls == 9:
                raise RuntimeError("CUDA error: device-side assert triggered")
            items = batch.features["item"]
            assert isinstance(items, Tensor)
            return super().loss(replace(batch, features={**batch.features, "item": items.clamp(max=29)}))

    folder = write_rows(tmp_path / "beyond", (320,))
    table = pq.read_table(folder / "part_0.parquet")
    columns = {name: table[name].to_pylist() for name in SCHEMA.names}
    columns["item"][200] = 30 if spoilt else 29
    pq.write_table(pa.table(columns, schema=table.schema), folder / "part_0.parquet")
    with pytest.raises((DataError, RuntimeError)) as error:
        Trainer(config()).fit(Late(), Loader(folder, batch_size=32))
    if spoilt:
        assert error.value.args[0] == (
            "at step 7 of epoch 1: column `item` holds the id 30, its table has the rows 0 to 29"
        )
        assert isinstance(error.value, DataError)
        assert "the first from row 200 of row group" in (error.value.hint or "")
    else:
        assert type(error.value) is RuntimeError


def test_another_index_error_is_left_alone(data: Path) -> None:
    class Short(Net):
        def loss(self, batch: Batch) -> Tensor:
            return [super().loss(batch)][batch.rows]

    with pytest.raises(IndexError, match="list index out of range"):
        Trainer(config()).fit(Short(), loader(data))


def test_a_value_that_is_no_number_is_named_with_its_row_and_the_last_snapshot_stays(
    spoilt: Path, tmp_path: Path
) -> None:
    rows = Loader(spoilt, batch_size=32)
    with pytest.raises(DataError) as error:
        Trainer(config(snapshot_steps=2), tmp_path / "run").fit(net(), rows)
    assert error.value.args[0] == "the loss is nan at step 4 of epoch 1"
    assert error.value.hint is not None
    for part in (
        "`next(loader.batches(0, 3))` is the batch",
        f"`age` is not finite in 2 of its 32 rows, the first from row 100 of row group 0 of `{spoilt}",
        f"`liked` is not finite in 1 of its 32 rows, the first from row 101 of row group 0 of `{spoilt}",
    ):
        assert part in error.value.hint
    batch = next(rows.batches(0, 3))
    assert list(not_finite(batch)) == ["age", "liked"]
    snapshot = tmp_path / "run/snapshots/00000002"
    assert read_artifact(snapshot, "snapshot")
    assert [path.name for path in (tmp_path / "run/snapshots").iterdir()] == [snapshot.name]


def test_columns_of_lists_and_weights_are_looked_through() -> None:
    lists = Ragged(torch.tensor([1.0, math.inf, 2.0, math.nan]), torch.tensor([0, 1, 1, 3, 4]))
    codes = torch.arange(4)
    images = torch.zeros(4, 2, 2)
    images[2, 1, 0] = -math.inf
    batch = Batch.of({"lists": lists, "codes": codes, "images": images}, {}, torch.tensor([1.0, math.nan, 1.0, 1.0]))
    assert not_finite(batch) == {"lists": [2, 3], "images": [2], "the weight": [1]}


def test_a_gradient_that_is_no_number_stops_the_run_though_the_loss_is_fine() -> None:
    class Corner(Line):
        calls = 0

        def loss(self, batch: Batch) -> Tensor:
            self.calls += 1
            return super().loss(batch) + ((self.weight * 0).sqrt() if self.calls == 3 else 0)

    with pytest.raises(DataError, match=r"the gradient is nan at step 1 of epoch 3(?s:.*)all values in it are finite"):
        Trainer(config(epochs=4, optimizer="sgd")).fit(Corner(), Rows([line_batch()]))


def test_a_model_that_learns_nothing_is_told(data: Path) -> None:
    class Cut(Net):
        def loss(self, batch: Batch) -> Tensor:
            return super().loss(batch).detach()

    model = Cut()
    before = {name: x.clone() for name, x in model.state_dict().items() if "running" not in name}
    with pytest.raises(ConfigError, match="Cut learns nothing: its loss depends on no parameter that requires"):
        Trainer(config()).fit(model, loader(data))
    after = model.state_dict()
    assert all(torch.equal(x, after[name]) for name, x in before.items() if "num_batches" not in name)


class Fails(nn.Module):
    """A model whose loss raises an error, while it trains or while it is validated."""

    def __init__(self, error: Exception, training: bool) -> None:
        super().__init__()
        self.line, self.error, self.when = Line(), error, training

    def loss(self, batch: Batch) -> Tensor:
        if self.training == self.when:
            raise self.error
        return self.line.loss(batch)


FULL = (
    RuntimeError("[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory: you tried ..."),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nmore"),
    MemoryError(),
)


@pytest.mark.parametrize("error", FULL, ids=lambda error: type(error).__name__)
def test_out_of_memory_says_what_to_lower(error: Exception) -> None:
    said = str(error).partition("\n")[0]
    with pytest.raises(ConfigError) as told:
        Trainer(config(accumulate=2)).fit(Fails(error, training=True), Rows([line_batch()]))
    assert told.value.args[0] == "out of memory on cpu, with 2 rows at once" + (f": {said}" if said else "")
    assert str(told.value.hint).startswith("`accumulate=4` takes the same steps with half the rows at once")
    assert told.value.__cause__ is error
    with pytest.raises(ConfigError, match=r"with 3 rows at once(?s:.*)a smaller batch_size of the validation's loader"):
        Trainer(SGD).fit(Fails(error, training=False), Rows([line_batch()]), Rows([line_batch()]))


def test_other_errors_of_a_model_are_its_own() -> None:
    error = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    with pytest.raises(RuntimeError) as told:
        Trainer(SGD).fit(Fails(error, training=True), Rows([line_batch()]))
    assert told.value is error


def test_torch_compile_that_fails_says_to_leave_it_out() -> None:
    failed = type("InvalidCxxCompiler", (RuntimeError,), {"__module__": "torch._inductor.exc"})
    with pytest.raises(ConfigError, match=r"torch.compile failed: no compiler(?s:.*)leave `compile` out; on a CPU"):
        Trainer(SGD).fit(Fails(failed("no compiler\nfound"), training=True), Rows([line_batch()]))


class Last(Callback):
    """The loss of the last step."""

    loss = math.nan

    def step(self, step: int, figures: Mapping[str, float]) -> None:
        self.loss = figures["loss"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's own, while it compiles
def test_a_compiled_model_comes_to_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    need("compiler", compiler is not None, "apt-get install g++")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.manual_seed(0)
    x = torch.randn(5, 3)
    rows = Rows([Batch.of({"x": x}, {"y": x.sum(1, keepdim=True)})] * 3)
    models, losses = [], []
    for compiled in (False, True):
        torch.manual_seed(1)
        model = Supervised(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), nn.MSELoss(reduction="none"))
        last = Last()
        Trainer(config(compile=compiled), callbacks=[last]).fit(model, rows)
        models.append(model)
        losses.append(last.loss)
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert models[0].state_dict().keys() == models[1].state_dict().keys()
    for name, weight in models[0].state_dict().items():
        assert torch.allclose(weight, models[1].state_dict()[name], atol=1e-5), name
