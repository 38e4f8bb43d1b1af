"""The long checks of soak/, once each and shortened."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from beside import ROOT, Ended, Run

WINDOWS = pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="no /proc")


def check(name: str, *flags: str) -> Run:
    def run(folder: Path) -> tuple[list[str], dict[str, str]]:
        return [str(ROOT / "soak" / name), "--quick", *flags], {}

    return run


def case(said: str, name: str, *flags: str, only: pytest.MarkDecorator = WINDOWS) -> object:
    return pytest.param(said, id=name, marks=[only, pytest.mark.beside(run=check(name, *flags))])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "said",
    [
        case("equal byte for byte", "kill_run.py"),
        case("equal byte for byte, no worker and no half output left", "kill_dask.py", "--seed", "1"),
        case("weights and figures equal byte for byte", "kill_train.py", "--seed", "1"),
        case("no event lost or twice, nothing liked shown again, no error", "kill_serve.py", "--seed", "1", only=LINUX),
        case("flat over 24 of 30 epochs", "flat.py", only=LINUX),
    ],
)
def test_a_long_check_shortened(said: str, ended: Ended) -> None:
    assert ended.code == 0, ended.out + ended.err
    assert said in ended.out
