"""Several processes come to what one comes to. Groups are started once per module: each takes seconds."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from falconet.errors import ConfigError, DistributedError
from falconet.loader.loader import Loader
from falconet.train.launch import launch
from falconet.train.trainer import Trainer
from train.mistakes import fails_in_a_callback
from train.workers import (
    SHARES,
    Each,
    config,
    dies_beside_a_fork,
    dies_on_one,
    everything,
    fails_on_one,
    first_step,
    killed,
    leaves_early,
    loader,
    net,
    normalised,
    softmax_gradients,
    softmax_inputs,
    train,
    train_loose,
    train_wide,
    weights,
    write_rows,
)

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4,000 rows in three files."""
    return write_rows(tmp_path_factory.mktemp("rows") / "train", (2000, 700, 1300))


@pytest.fixture(scope="module")
def one(rows: Path) -> tuple[dict[str, Tensor], list[float], float]:
    return train(rows, 200, {})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that two processes began and that was cut off after step 7 of 10, with a snapshot at 5."""
    return tmp_path_factory.mktemp("run") / "run"


@pytest.fixture(scope="module")
def two(rows: Path, data: Path, held_out: Path, folder: Path) -> dict[str, Any]:
    return launch(everything, 2, (rows, data, held_out, folder))


def apart(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a)


def agree(
    one: tuple[dict[str, Tensor], list[float], float], many: tuple[dict[str, Tensor], list[float], float]
) -> None:
    assert len(many[1]) == 20
    assert many[1] == pytest.approx(one[1], rel=1e-5)
    assert many[2] == pytest.approx(one[2], rel=1e-3)


def test_two_processes_agree_with_one(
    rows: Path, one: tuple[dict[str, Tensor], list[float], float], two: dict[str, Any]
) -> None:
    agree(one, two["train"])


def test_parameters_agree_after_one_step(rows: Path, two: dict[str, Any]) -> None:
    assert apart(first_step(rows), two["first_step"]) <= 1e-6


@pytest.mark.slow
def test_four_processes_agree_with_one(rows: Path, one: tuple[dict[str, Tensor], list[float], float]) -> None:
    agree(one, launch(train, 4, (rows, 200, {})))


@pytest.mark.parametrize("share", SHARES)
def test_uneven_shares_of_a_batch_give_the_gradient_of_the_whole(two: dict[str, Any], share: str) -> None:
    wanted, loss = train_wide(None)
    found, same_loss = two[share]
    assert apart(wanted, found) <= 1e-6
    assert same_loss == pytest.approx(loss, rel=1e-6)


def test_a_plain_module_with_an_unused_layer_trains_as_on_one(data: Path, two: dict[str, Any]) -> None:
    wanted, loss = train_loose(data)
    found, same_loss = two["loose"]
    assert apart(wanted, found) <= 1e-5
    assert same_loss == pytest.approx(loss, rel=1e-5)


def test_early_stopping_is_decided_once_for_all(two: dict[str, Any]) -> None:
    assert two["patience"] == 2
    assert two["epochs_of_all"] == [4]


def test_validation_counts_every_row_once(data: Path, held_out: Path, two: dict[str, Any]) -> None:
    from falconet.metrics.binary import BinaryMetrics

    alone = Trainer(config(epochs=1)).fit(net(), loader(data), Loader(held_out, batch_size=4), metrics=BinaryMetrics())
    assert two["valid"] == pytest.approx(alone.metrics["valid"], rel=1e-5)


def test_the_softmax_sees_the_items_of_all_processes(two: dict[str, Any]) -> None:
    for found, wanted in zip(two["softmax"], softmax_gradients(*softmax_inputs()), strict=True):
        assert torch.allclose(found, wanted[:2], atol=1e-6)  # rank 0 has the first two of five rows


def test_tables_may_be_exchanged_in_half_the_bytes(data: Path, two: dict[str, Any]) -> None:
    assert two["bfloat16"] == pytest.approx(Trainer(config()).fit(net(), loader(data)).metrics["loss"], rel=1e-2)


def test_batchnorm_of_bfloat16_over_two_processes_rounds_its_result_alone(two: dict[str, Any]) -> None:
    for found, wanted in zip(two["narrow"], normalised(slice(None), torch.float32), strict=True):
        wanted = wanted[: len(found)]
        assert len(found) == 2500
        # Where sums differ by their last bits, a number beside the middle of two of bfloat16 is rounded to the other.
        assert (found == wanted.bfloat16()).float().mean() > 0.99
        assert torch.allclose(found.float(), wanted, rtol=2**-8, atol=1e-6)


def test_a_mistake_of_the_main_process_is_everybodys(two: dict[str, Any]) -> None:
    assert "nothing" in two["mistake"]


def test_a_run_goes_on_with_another_number_of_processes(data: Path, folder: Path, two: dict[str, Any]) -> None:
    seen: list[int] = []
    whole, model = net(), net()
    wanted = Trainer(config(snapshot_steps=5)).fit(whole, loader(data))
    each = Each(lambda step, loss: seen.append(step))
    result = Trainer(config(snapshot_steps=5), folder, callbacks=[each]).fit(model, loader(data), resume="must")
    assert seen == [6, 7, 8, 9, 10]
    assert result.rows == 320
    assert result.metrics["loss"] == pytest.approx(wanted.metrics["loss"], rel=1e-5)
    assert apart(weights(whole), weights(model)) < 1e-4


def test_a_killed_run_resumes_bit_for_bit(data: Path, tmp_path: Path) -> None:
    with pytest.raises(DistributedError, match="process 0 of 1 failed: it was ended by signal 9"):
        launch(killed, 1, (data, tmp_path / "run", 8, signal.SIGKILL))
    torch.set_num_threads(1)
    whole, model = net(dropout=0.3), net(seed=4, dropout=0.3)
    seen: list[int] = []
    Trainer(config(snapshot_steps=3), tmp_path / "whole").fit(whole, loader(data))
    each = Each(lambda step, loss: seen.append(step))
    Trainer(config(snapshot_steps=3), tmp_path / "run", callbacks=[each]).fit(model, loader(data), resume="auto")
    assert seen == [7, 8, 9, 10]
    assert apart(weights(whole), weights(model)) == 0
    for name in ("metrics.jsonl", "manifest.json"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_two_launches_at_once_fail_each_in_its_own_way_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []

    def other() -> None:
        try:
            launch(fails_on_one, 2)
        except DistributedError as error:
            told.append(str(error))

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        thread = threading.Thread(target=other)
        thread.start()
        with pytest.raises(DistributedError, match="process 1 of 2 failed: it was ended by signal 9"):
            launch(dies_on_one, 2, (tmp_path,))
        thread.join(120)
    assert len(told) == 1
    assert told[0].startswith("process 1 of 2 failed: ValueError: rank 1 has had enough")
    assert [alive(int((tmp_path / rank).read_text())) for rank in "01"] == [False, False]
    assert "Traceback" not in capfd.readouterr().err


def test_the_process_whose_callback_failed_is_named_and_not_one_that_heard_of_it(data: Path) -> None:
    with pytest.raises(DistributedError, match="process 1 of 2 failed: ValueError: the last one has had enough"):
        launch(fails_in_a_callback, 2, (data,))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_the_end_of_a_process_is_seen_while_one_that_it_forked_lives_on() -> None:
    with pytest.raises(DistributedError, match="process 1 of 2 failed: it was ended by signal 9"):
        launch(dies_beside_a_fork, 2)


def test_a_function_without_a_module_is_explained_before_any_process_starts() -> None:
    with pytest.raises(
        ConfigError, match=r"imports the function by its module and name(?s:.*)put it, at the top level"
    ):
        launch(lambda: 1, 2)
    with pytest.raises(ConfigError, match=r"cannot be given to other processes(?s:.*)open loaders and models inside"):
        launch(dies_on_one, 2, (threading.Lock(),))
    with pytest.raises(ConfigError, match="`nproc` is 0"):
        launch(fails_on_one, 0)


def test_a_prompts_function_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def cell() -> None: ...

    cell.__module__, cell.__qualname__ = "__main__", "cell"
    monkeypatch.delattr(sys.modules["__main__"], "__file__")
    with pytest.raises(ConfigError, match="a notebook's or prompt's cells are in no module"):
        launch(cell, 2)


def test_one_process_is_first_to_download(two: dict[str, Any]) -> None:
    assert two["found_it_there"] == [1.0]


def test_a_process_that_ends_while_others_wait_for_it_is_named() -> None:
    with pytest.raises(
        DistributedError, match=r"process 0 of 2 failed(?s:.*)without an error had ended by then: process 1"
    ):
        launch(leaves_early, 2)
