"""Kill `falconet run` with SIGKILL once inside each of its steps, at a random moment; compare with an undisturbed run.

    python soak/kill_run.py [--recipe RECIPE] [--data FOLDER] [--seed N] [--quick]

Checks: finished steps are skipped, training resumes at a step above 0 (when it was killed after its first snapshot),
report.json is equal byte for byte, and the total time is at most 1.5 × the undisturbed run's.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STEPS = ("prepare", "retriever", "ranker", "evaluate", "bundle")


def command(recipe: Path, data: Path, out: Path) -> list[str]:
    settings = [f"data.path={data}", "retriever.train.snapshot_steps=10", "ranker.train.snapshot_steps=50"]
    flags = [part for setting in settings for part in ("--set", setting)]
    return [sys.executable, "-m", "falconet", "run", str(recipe), *flags, "--out", str(out)]


class Run:
    """One `falconet run` in a process group of its own, its messages read as they come."""

    def __init__(self, recipe: Path, data: Path, out: Path) -> None:
        self.lines: list[str] = []
        self.began: dict[str, float] = {}
        self.seconds: dict[str, float] = {}
        self.start = time.monotonic()
        self.process = subprocess.Popen(
            command(recipe, data, out),
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())
            if begun := re.match(r"(\w+) …", line):
                self.began[begun[1]] = time.monotonic()
            if done := re.match(r"(\w+): done in ([\d.]+) s", line):
                self.seconds[done[1]] = float(done[2])

    def kill_in(self, step: str, after: float, snapshot: Path | None) -> bool:
        """SIGKILL the whole group `after` seconds into a step; whether the step was still running.

        With `snapshot`, the seconds count from the first snapshot of the step's training on.
        """
        self._wait(lambda: step in self.began)
        if snapshot is not None:
            self._wait(lambda: snapshot.exists() or step in self.seconds)
        moment = time.monotonic() + after
        self._wait(lambda: time.monotonic() >= moment)
        inside = self.process.poll() is None and step not in self.seconds
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.finish()
        return inside

    def _wait(self, happened: Callable[[], bool]) -> None:
        while not happened() and self.process.poll() is None:
            time.sleep(0.002)

    def finish(self) -> float:
        """Wait for the end; the seconds it took."""
        self.process.wait()
        self.reader.join()
        return time.monotonic() - self.start


def skipped(run: Run) -> set[str]:
    return {line.split(":")[0] for line in run.lines if line.endswith("unchanged, skipped")}


def resumed_at(work: Path, name: str) -> list[int]:
    """The steps at which the training of `work/runs/NAME` was started, the first time and after each kill."""
    log = work / "runs" / name / "run.jsonl"
    entries = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
    return [entry["step"] for entry in entries if entry["event"] == "start"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", type=Path, default=ROOT / "src/falconet/recipe/demo.toml")
    parser.add_argument("--data", type=Path, help="a MovieLens folder; generated when not given")
    parser.add_argument("--seed", type=int, default=None, help="of the random moments")
    parser.add_argument("--quick", action="store_true", help="a small data set")
    options = parser.parse_args()
    moments = random.Random(options.seed)
    folder = Path(tempfile.mkdtemp(prefix="falconet-kill-"))
    data = options.data
    if data is None:
        size = ["--users", "400", "--items", "200", "--rows", "12000"] if options.quick else []
        data = folder / "data"
        subprocess.run([sys.executable, "-m", "falconet", "data", "synth", *size, "--out", str(data)], check=True)

    calm = Run(options.recipe, data, folder / "calm")
    calm_seconds = calm.finish()
    if calm.process.returncode:
        print("\n".join(calm.lines))
        return 1

    total, inside, failed = 0.0, {}, []
    for number, step in enumerate(STEPS):
        run = Run(options.recipe, data, folder / "killed")
        # A third of a step at the most: a training that goes on is shorter than the undisturbed one.
        snapshot = {"retriever": folder / "killed/runs/retriever/last.json"}.get(step)
        after = moments.uniform(0.0, 0.3) * calm.seconds[step]
        inside[step] = run.kill_in(step, after, snapshot)
        total += time.monotonic() - run.start
        if missing := set(STEPS[:number]) - skipped(run) - set(run.seconds):
            failed.append(f"killed in {step}: {missing} neither skipped nor done")
    last = Run(options.recipe, data, folder / "killed")
    total += last.finish()
    if last.process.returncode:
        failed.append("the last call failed:\n" + "\n".join(last.lines))
    elif (folder / "calm/report.json").read_bytes() != (folder / "killed/report.json").read_bytes():
        failed.append("report.json differs from the undisturbed run's")
    print(f"undisturbed {calm_seconds:.1f} s, killed {len(STEPS)} times {total:.1f} s: {total / calm_seconds:.2f} ×")
    starts = {name: resumed_at(folder / "killed", name) for name in ("retriever", "scout", "ranker")}
    if not inside["retriever"] or max(starts["retriever"]) == 0:
        failed.append("the retriever was not killed in mid-training, or started at step 0 again")
    print("training started at steps", starts)
    print("killed inside:", ", ".join(step for step, was in inside.items() if was))
    print("\n".join(failed) if failed else "ok: report.json equal byte for byte")
    print(f"left for inspection: {folder}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
