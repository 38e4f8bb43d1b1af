"""docs/ddp.md: its programs run as they stand, alone and in two processes, and print what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from falconet.train.launch import launch
from scripts import printed

PAGE = (Path(__file__).parent.parent / "docs/ddp.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.S))
SHOWN = dict(re.findall(r"^\$ (.+)\n((?:[^$`].*\n)+)", PAGE, re.M))


def losses(lines: list[str]) -> list[float]:
    return [float(line.removeprefix(f"epoch {epoch}: loss ")) for epoch, line in enumerate(lines)]


@pytest.mark.timeout(240)
def test_the_programs_print_the_same_alone_and_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(BLOCKS) == ["collectives.py", "serial.py", "by_hand.py", "with_trainer.py"]
    assert PAGE.count("```python\n") == len(BLOCKS)
    monkeypatch.chdir(tmp_path)  # `printed` goes there, and this process comes back
    alone, together = tmp_path / "alone", tmp_path / "together"
    for folder in (alone, together):
        folder.mkdir()
        for name, text in BLOCKS.items():
            (folder / name).write_text(text, encoding="utf-8")
    two = launch(printed, 2, (together, ["collectives.py", "by_hand.py", "with_trainer.py"]))
    one = printed(alone, ["serial.py", "by_hand.py", "with_trainer.py"])
    said = "".join((together / f"collectives.py.{rank}").read_text() for rank in "01")
    assert said == SHOWN["falconet launch -np 2 collectives.py"]

    wanted = losses(one["serial.py"])
    assert len(wanted) == 3
    for lines in (one["by_hand.py"], one["with_trainer.py"], two["by_hand.py"], two["with_trainer.py"]):
        assert losses(lines) == pytest.approx(wanted, abs=2e-5)  # the rounding of sums, in the last digit
    for command in ("python serial.py", "falconet launch -np 2 by_hand.py", "falconet launch -np 2 with_trainer.py"):
        assert losses(SHOWN[command].splitlines()) == pytest.approx(wanted[:1], abs=2e-5)
    for name in ("by_hand.py", "with_trainer.py"):
        assert (together / f"{name}.1").read_text() == ""
    by_hand = load_file(together / "by_hand.safetensors")
    trained = load_file(together / "run/model/model.safetensors")
    assert by_hand.keys() == trained.keys() == {"weight", "bias"}
    for key, value in by_hand.items():
        assert torch.allclose(trained[key], value, rtol=1e-5), key
