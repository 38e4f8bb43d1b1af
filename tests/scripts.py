"""Several scripts in one group of processes: starting one takes seconds."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
from collections.abc import Sequence
from pathlib import Path

from falconet.train.runtime import Runtime


def printed(folder: Path, names: Sequence[str]) -> dict[str, list[str]]:
    """What this process printed, by script; all processes write it beside the scripts, as NAME.RANK."""
    os.chdir(folder)
    found = {}
    for name in names:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            runpy.run_path(name, run_name="__main__")
        found[name] = out.getvalue().splitlines()
        Path(f"{name}.{Runtime.peek()[0]}").write_text(out.getvalue())
    return found
