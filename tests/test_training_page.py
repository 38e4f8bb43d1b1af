"""docs/training.md: its program runs and prints what the page says, and every setting is there with its default."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from falconet.train.callbacks import Callback
from falconet.train.recovery import HOW
from falconet.train.settings import TrainConfig

PAGE = (Path(__file__).parent.parent / "docs/training.md").read_text(encoding="utf-8")


def test_the_program_prints_what_the_page_shows(tmp_path: Path) -> None:
    blocks, shown = re.findall(r"```python\n(.*?)```", PAGE, re.S), re.findall(r"```console\n(.*?)```", PAGE, re.S)
    assert len(blocks) == len(shown) == 4
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(blocks)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(shown)


def test_every_setting_is_listed_with_its_default() -> None:
    listed = re.findall(r"^\| `(\w+)` \| `(.+?)` \| .+ \|$", PAGE, re.M)
    assert listed == [(field.name, repr(field.default)) for field in fields(TrainConfig)]


def test_what_may_change_in_a_run_and_what_a_callback_hears_is_said() -> None:
    how = re.search(r"go on with another (.*?): they say", PAGE, re.S)
    assert how is not None
    assert set(re.findall(r"`(\w+)`", how[1])) == set(HOW)
    for name in ("start", "step", "epoch", "end"):
        assert f"`{name}(" in PAGE
        assert callable(getattr(Callback, name))
