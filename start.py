#!/usr/bin/env python3
"""Set falconet up in .venv and run it. Needs Python 3.11 or newer and nothing else.

    python start.py demo            the whole road on generated data, about a minute after installation
    python start.py test            the checks and tests that CI runs
    python start.py ANYTHING ...    the falconet command itself, e.g. `python start.py serve work/bundle`

Without an NVIDIA GPU the CPU build of torch is enough and much smaller; --torch-index says where to take torch from
(pytorch.org's installation page names the address):

    python start.py --torch-index URL demo

pip's own settings (pip.conf, PIP_* variables) are honoured.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
MARK = VENV / "falconet-installed"


def wanted(extras: str) -> str:
    """What the installation depends on, as one hash."""
    files = [ROOT / "pyproject.toml", ROOT / "constraints.txt"]
    return hashlib.sha256(b"".join(f.read_bytes() for f in files) + str(ROOT).encode()).hexdigest() + extras


def installed() -> list[str]:
    return MARK.read_text().split("\n") if MARK.is_file() and PYTHON.is_file() else []


def pip(*arguments: str) -> None:
    command = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    print("$ pip install", *arguments, file=sys.stderr, flush=True)
    if code := subprocess.run(command, cwd=ROOT, check=False).returncode:
        print("error: the installation failed; pip's own message is above", file=sys.stderr)
        sys.exit(code)


def install(extras: str, torch_index: str | None) -> None:
    """Make .venv and install falconet in it, unless that has been done for these very files."""
    if wanted(extras) in installed():
        return
    if not installed() and Path(sys.prefix) != VENV:  # also where an earlier start was cut off half way
        print(f"making {VENV}", file=sys.stderr, flush=True)
        venv.create(VENV, with_pip=True)
    constraints = ROOT / "constraints.txt"
    pinned = next(line for line in constraints.read_text().splitlines() if line.startswith("torch=="))
    print(
        "installing; torch comes first and is large (0.2 GB for CPUs, some GB with CUDA)", file=sys.stderr, flush=True
    )
    # torch first and alone: an index for torch must not be asked for anything else.
    pip(pinned, *(("--index-url", torch_index) if torch_index else ()))
    pip("--constraint", str(constraints), "--editable", f".[{extras}]" if extras else ".")
    MARK.write_text("\n".join([*installed(), wanted(extras)]))


def main() -> int:
    if sys.version_info < (3, 11):  # noqa: UP036 - an older Python can start this file, and should be told
        print(f"error: falconet needs Python 3.11 or newer, this is {sys.version.split()[0]}", file=sys.stderr)
        return 1
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch-index", metavar="URL", help="take torch from this package index")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="demo, test, or any falconet command")
    options = parser.parse_args()
    if not options.command:
        parser.print_help()
        return 2
    name, *rest = options.command
    try:
        install("dev" if name == "test" else "", options.torch_index)
    except KeyboardInterrupt:
        print("stopped; the next start goes on from here", file=sys.stderr)
        return 130
    signal.signal(signal.SIGINT, lambda number, frame: None)  # Ctrl-C is for the command; we wait for its exit code
    if name == "test":
        return subprocess.run([str(PYTHON), str(ROOT / "scripts" / "check"), *rest], cwd=ROOT, check=False).returncode
    said = {**os.environ, "FALCONET_COMMAND": f"{Path(sys.executable).name} {sys.argv[0]}"}  # for "what to try next"
    return subprocess.run([str(PYTHON), "-m", "falconet", name, *rest], env=said, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
