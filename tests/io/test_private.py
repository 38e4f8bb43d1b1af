"""Private folders: gone with their process, and after a kill taken away by the next one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FIRST = "from falconet.io.private import private_folder; print(private_folder(), flush=True)"


def start(code: str, room: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has said which folder is its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "TMPDIR": str(room)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_what_a_killed_process_left_goes_with_the_next_and_what_is_in_use_stays(tmp_path: Path) -> None:
    lives, in_use = start(f"{FIRST}; input()", tmp_path)
    killed, left = start(f"{FIRST}; input()", tmp_path)
    (left / "rows.arrow").write_bytes(b"1")
    killed.kill()
    killed.communicate(timeout=60)
    assert (left / "rows.arrow").exists()
    unready = tmp_path / "falconet-private-unready"
    unready.mkdir()
    (unready / "lock").touch()
    third, own = start(FIRST, tmp_path)
    third.communicate(timeout=60)
    assert third.returncode == 0
    assert not own.parent.exists()
    assert not left.parent.exists()
    assert in_use.exists()
    assert unready.exists()
    lives.communicate("\n", timeout=60)
    assert lives.returncode == 0
    assert not in_use.parent.exists()
