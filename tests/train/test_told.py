"""What the trainer says of how a run goes, and how it is told to stop."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from falconet.errors import ConfigError
from falconet.loader.loader import Loader
from falconet.metrics.binary import BinaryMetrics
from falconet.nn.supervised import freeze
from falconet.train.callbacks import Callback
from falconet.train.trainer import Trainer
from train.workers import Each, Net, Worse, config, loader, net, same

posix = pytest.mark.skipif(os.name == "nt", reason="Windows has no kill() for one's own signals")


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What was said, without what each training says."""
    starts = ("stopped", "going on", "the model has", "`")
    return [x for x in capsys.readouterr().err.splitlines() if x.startswith(starts) and "kept in memory" not in x]


def ask(number: int, at: int, times: int = 1) -> Each:
    """Has a signal come to this process in a step."""

    def call(step: int, loss: float) -> None:
        if step == at:
            for _ in range(times):
                os.kill(os.getpid(), number)

    return Each(call)


@pytest.fixture
def python_hears_ctrl_c() -> Iterator[None]:
    """As in a program of one's own."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


@posix
@pytest.mark.usefixtures("python_hears_ctrl_c")
def test_ctrl_c_ends_after_the_step_with_a_snapshot(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    with pytest.raises(SystemExit) as end:
        Trainer(config(epochs=2), run, callbacks=[ask(signal.SIGINT, 3)]).fit(net(), loader(data))
    assert end.value.code == 130
    # A callback hears of a step when it is over: the next one carries the word.
    assert lines(capsys) == [f"stopped at step 4 of 20, epoch 1 of 2; a snapshot is in `{run}`"]
    assert [path.name for path in (run / "snapshots").iterdir()] == ["00000004"]
    found, wanted = net(), net()
    Trainer(config(epochs=2), run).fit(found, loader(data), resume="auto")
    assert lines(capsys) == ["going on from step 4 of 20, epoch 1 of 2"]
    Trainer(config(epochs=2)).fit(wanted, loader(data))
    assert same(found, wanted)
    lines(capsys)
    Trainer(config(epochs=2), run).fit(net(), loader(data), resume="auto")
    assert lines(capsys) == [f"`{run}` is finished, after 2 epochs: its weights are read"]


@posix
@pytest.mark.usefixtures("python_hears_ctrl_c")
def test_without_a_folder_ctrl_c_says_that_nothing_is_kept(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        Trainer(config(epochs=2), callbacks=[ask(signal.SIGINT, 10)]).fit(net(), loader(data))
    assert lines(capsys) == ["stopped at step 10 of 20, epoch 2 of 2; nothing is kept without a folder"]


@posix
@pytest.mark.usefixtures("python_hears_ctrl_c")
def test_ctrl_c_twice_ends_at_once(data: Path, tmp_path: Path) -> None:
    class Slow(Net):
        def loss(self, batch: object) -> Tensor:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
            raise AssertionError("not at once")

    with pytest.raises(KeyboardInterrupt):
        Trainer(config(), tmp_path / "run").fit(Slow(), loader(data))
    assert not list((tmp_path / "run/snapshots").iterdir())


@posix
def test_ctrl_c_stays_ignored_where_it_is(data: Path) -> None:
    """In a process of a launcher, or one started by nohup or with &."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        result = Trainer(config(), callbacks=[ask(signal.SIGINT, 3, times=2)]).fit(net(), loader(data))
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.rows == 320


class Hears(BinaryMetrics):
    """Metrics during which, in the first of two batches of the validation of an epoch, a signal comes."""

    def __init__(self, number: int, epoch: int, look: Callable[[], object] = lambda: None) -> None:
        self.left, self.number, self.look = epoch * 2, number, look  # one batch is judged before all

    def partial(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), self.number)
        if self.left == -1:
            self.look()
        return super().partial(logits, targets)


@posix
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.usefixtures("python_hears_ctrl_c")
def test_a_stop_during_a_validation_does_not_wait_for_its_end(
    data: Path, held_out: Path, tmp_path: Path, number: int, code: int
) -> None:
    valid, run = Loader(held_out, batch_size=4), tmp_path / "run"

    def unseen() -> None:
        raise AssertionError("the validation went on")

    with pytest.raises(SystemExit) as end:
        Trainer(config(epochs=3), run).fit(net(), loader(data), valid, metrics=Hears(number, 2, unseen))
    assert end.value.code == code
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 1
    steps: list[int] = []
    again = Trainer(config(epochs=3), run, callbacks=[Each(lambda step, loss: steps.append(step))])
    found, wanted = net(), net()
    result = again.fit(found, loader(data), valid, resume="must", metrics=BinaryMetrics())
    assert steps == list(range(21, 31))  # the epoch is not trained again, but judged
    assert result.history == Trainer(config(epochs=3)).fit(wanted, loader(data), valid, metrics=BinaryMetrics()).history
    assert same(found, wanted)


@posix
def test_a_snapshot_can_be_asked_for_during_a_validation(data: Path, held_out: Path, tmp_path: Path) -> None:
    run, found = tmp_path / "run", []

    def look() -> None:
        found.extend([(run / "last.json").read_text(), (run / "metrics.jsonl").read_text()])

    metrics = Hears(signal.SIGUSR1, 1, look)
    Trainer(config(), run).fit(net(), loader(data), Loader(held_out, batch_size=4), metrics=metrics)
    assert found == ['{"snapshot": "00000010"}', ""]


def test_why_a_training_ends_before_its_epochs_is_said(
    data: Path, held_out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    patient = config(epochs=9, patience=2, monitor="auc")
    Trainer(patient).fit(net(), loader(data), loader(held_out), metrics=Worse())
    assert lines(capsys) == [
        "stopped after epoch 3 of 9: valid auc no better for 2 epochs",
        "the model has the weights of epoch 1, with valid auc 0.5000",
    ]

    class Ends(Callback):
        def epoch(self, epoch: int, figures: object) -> bool:
            return True

    Trainer(config(epochs=9), callbacks=[Ends()]).fit(net(), loader(data))
    assert lines(capsys) == ["stopped after epoch 1 of 9: a callback ended it"]
    Trainer(config(epochs=2)).fit(net(), loader(data), loader(held_out))
    assert not [line for line in lines(capsys) if line.startswith("stopped")]


@pytest.mark.parametrize(
    ("monitor", "hint"), [("AUC", "did you mean `auc`"), ("ndcg", "available: auc, log_loss, loss")]
)
def test_a_figure_that_no_validation_has_is_refused_before_the_first_step(
    data: Path, held_out: Path, monitor: str, hint: str
) -> None:
    steps: list[int] = []
    trainer = Trainer(config(monitor=monitor), callbacks=[Each(lambda step, loss: steps.append(step))])
    with pytest.raises(ConfigError, match=f"the validation has no `{monitor}` to monitor(?s:.*){hint}"):
        trainer.fit(net(), loader(data), loader(held_out), metrics=BinaryMetrics())
    assert not steps


def test_a_model_stays_in_the_mode_it_is_in(data: Path, held_out: Path) -> None:
    model = net()
    model.rest[2].eval()
    freeze(model.first)
    modes = [module.training for module in model.modules()]
    assert set(modes) == {True, False}
    Trainer(config()).evaluate(model, loader(held_out))
    assert [module.training for module in model.modules()] == modes

    class Fails(nn.Linear):
        def loss(self, batch: object) -> Tensor:
            raise ValueError

    fails = Fails(1, 1)
    with pytest.raises(ValueError):
        Trainer(config()).evaluate(fails, loader(held_out))
    assert fails.training
    assert torch.is_grad_enabled()
