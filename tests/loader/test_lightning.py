"""Loaders under Lightning's Trainer: its loop, its checkpoints, its processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from conftest import need
from falconet.errors import ConfigError
from falconet.loader.loader import Loader

Make = Callable[..., Path]
ROOT = Path(__file__).parents[2]

SCRIPT = """
import os
import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
import lightning
import torch

from falconet.loader.lightning import LightningData
from falconet.loader.loader import Loader

folder, out, epochs, stop, devices, resume = sys.argv[1:]


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, index):
        if self.global_step == int(stop):  # after the checkpoint of the step before
            os._exit(0)
        with Path(out, f"rank{self.global_rank}.txt").open("a") as file:
            print(*batch.features["row"].tolist(), file=file)
        return self.layer(batch.targets["liked"][:, None]).sum() / batch.global_rows

    def validation_step(self, batch, index):
        self.log("liked", batch.targets["liked"].mean(), batch_size=batch.rows)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


data = LightningData(
    Loader(folder, batch_size=4, shuffle=True, seed=2, window=9), Loader(folder, batch_size=10)
)
save = lightning.pytorch.callbacks.ModelCheckpoint(out, "{step}", every_n_train_steps=2, save_top_k=-1)
trainer = lightning.Trainer(
    accelerator="cpu", devices=int(devices), strategy="ddp" if int(devices) > 1 else "auto", max_epochs=int(epochs),
    callbacks=[save], logger=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=out,
)
trainer.fit(Module(), datamodule=data, ckpt_path=resume if resume != "-" else None)
"""


@pytest.fixture
def fit(numbered_folder: Make, tmp_path: Path) -> Callable[..., list[list[int]]]:
    """Trains, and returns the rows of every step that one process took."""
    need("lightning", find_spec("lightning") is not None)
    folder = numbered_folder([10, 3, 7, 1, 6], row_group=4)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    def run(
        out: str, epochs: int, stop: int = -1, devices: int = 1, resume: str = "-", rank: int = 0
    ) -> list[list[int]]:
        (tmp_path / out).mkdir(exist_ok=True)
        arguments = [str(folder), str(tmp_path / out), str(epochs), str(stop), str(devices), resume]
        done = subprocess.run(
            [sys.executable, str(script), *arguments],
            capture_output=True,
            text=True,
            timeout=200,
            cwd=ROOT,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return rows_of(tmp_path / out, rank)

    return run


def rows_of(out: Path, rank: int) -> list[list[int]]:
    return [[int(row) for row in line.split()] for line in (out / f"rank{rank}.txt").read_text().splitlines()]


def epochs(folder: Path, rank: int = 0, world: int = 1) -> list[list[list[int]]]:
    loader = Loader(folder, batch_size=4, shuffle=True, seed=2, window=9)
    return [[b.features["row"].tolist() for b in loader.batches(epoch, 0, rank, world)] for epoch in range(3)]  # type: ignore[union-attr]


def test_epochs_follow_each_other_in_orders_of_their_own(fit: Callable[..., list[list[int]]], tmp_path: Path) -> None:
    found = fit("alone", 2)
    first, second, _ = epochs(tmp_path / "data")
    assert found == first + second


def test_two_processes_have_the_rows_of_ours(fit: Callable[..., list[list[int]]], tmp_path: Path) -> None:
    fit("two", 1, devices=2)
    for rank in (0, 1):
        assert rows_of(tmp_path / "two", rank) == epochs(tmp_path / "data", rank, 2)[0]


def test_a_checkpoint_in_mid_epoch_goes_on_with_the_rows_that_are_left(
    fit: Callable[..., list[list[int]]], tmp_path: Path
) -> None:
    seen = fit("cut", 2, stop=4)
    assert len(seen) == 4
    rest = fit("resumed", 2, resume=str(tmp_path / "cut/step=4.ckpt"))
    first, second, _ = epochs(tmp_path / "data")
    assert seen + rest == first + second


def test_without_lightning_it_says_what_to_install() -> None:
    if find_spec("lightning") is not None:
        pytest.skip("lightning is installed")
    with pytest.raises(ConfigError, match='Lightning is not installed\n\nhint: pip install "falconet\\[lightning\\]"'):
        __import__("falconet.loader.lightning")
