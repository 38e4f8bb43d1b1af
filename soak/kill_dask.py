"""Kill Dask workers with SIGKILL at random moments of a fit and a write; compare with an undisturbed run.

    python soak/kill_dask.py [--kills N] [--rows N] [--seed N] [--quick]

Each round fits a workflow and writes it (FULL shuffle) on two worker processes, of which one is killed. Checks: the
saved workflow and every output file are equal byte for byte. Then the whole client process is killed while it writes:
its workers end, no output is there, and the next run gives the same bytes and leaves nothing of the killed one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import polars as pl

from falconet import DaskExecutor, Dataset, Shuffle, Workflow, ops
from falconet.datasets.synthetic import synthesize
from falconet.io.artifact import read_artifact
from falconet.progress import set_quiet

PATIENCE = 30.0  # seconds for workers to notice that their client is gone


def job(executor: DaskExecutor, data: Path, out: Path) -> tuple[dict[str, str], float]:
    """Fit and write; the hash of every file of the saved workflow and of the features, and the share of the fit."""
    start = time.monotonic()
    dataset = Dataset(data / "ratings", part_size="1MB")
    joined = ["movieId"] >> ops.JoinExternal(
        pl.read_parquet(data / "movies.parquet"), on="movieId", columns_ext=["genres"]
    )
    outputs = ([joined, "userId"] >> ops.Categorify()) + (["timestamp", "rating"] >> ops.Normalize())
    fitted = Workflow(outputs).fit(dataset, executor=executor)
    share = time.monotonic() - start
    fitted.transform(dataset, out_of_fold=False).to_parquet(
        out / "features", shuffle=Shuffle.FULL, seed=1, output_files=5
    )
    share /= time.monotonic() - start
    fitted.save(out / "workflow")
    hashes = {
        f"{name}/{file}": entry["sha256"]
        for name in ("workflow", "features")
        for file, entry in read_artifact(out / name).files.items()
    }
    return hashes, share


def workers() -> DaskExecutor:
    return DaskExecutor(cluster={"n_workers": 2, "memory_limit": 0, "silence_logs": "CRITICAL"})


def pids(executor: DaskExecutor) -> list[int]:
    return list(executor._open().run(os.getpid).values())


def killed_round(data: Path, out: Path, after: float, victim: int) -> tuple[dict[str, str], float | None]:
    """One job with a worker killed `after` seconds; its hashes, and how far the job was (None: it had ended)."""
    with workers() as executor:
        killed_at: list[float] = []
        victims = pids(executor)

        def kill() -> None:
            os.kill(victims[victim], signal.SIGKILL)
            killed_at.append(time.monotonic())

        timer = threading.Timer(after, kill)
        start = time.monotonic()
        timer.start()
        hashes, _ = job(executor, data, out)
        took = time.monotonic() - start
        timer.cancel()
    shutil.rmtree(out)
    return hashes, (killed_at[0] - start) / took if killed_at else None


def killed_client(data: Path, out: Path) -> list[str]:
    """Kill the client's process once it writes; what is wrong afterwards."""
    command = [sys.executable, __file__, "--job", str(data), str(out)]
    client = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
    assert client.stdout is not None
    started = json.loads(client.stdout.readline())
    while client.poll() is None and not list(out.glob(".tmp-features-*/.exchange/*")):
        time.sleep(0.005)
    client.kill()
    inside = client.wait() == -signal.SIGKILL
    client.stdout.close()
    end = time.monotonic() + PATIENCE
    while (left := [pid for pid in started if _runs(pid)]) and time.monotonic() < end:
        time.sleep(0.05)
    wrong = [] if inside else ["the client had ended before it was killed"]
    wrong += [f"worker {pid} is left" for pid in left]
    wrong += [f"{name} is there, half written" for name in ("features", "workflow") if (out / name).exists()]
    return wrong


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text() if Path(f"/proc/{pid}").exists() else True


def differences(hashes: dict[str, str], calm: dict[str, str], what: str) -> list[str]:
    """A line, where a run's files are not those of the undisturbed one."""
    other = sorted(name for name in hashes.keys() | calm.keys() if hashes.get(name) != calm.get(name))
    return [f"{what} gives other bytes: {', '.join(other)}"] if other else []


def run_job(data: Path, out: Path) -> None:
    """The job in a process of its own, which says first what its workers' processes are."""
    with workers() as executor:
        print(json.dumps(pids(executor)), flush=True)
        print(json.dumps(job(executor, data, out)[0]), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--seed", type=int, default=None, help="of the random moments")
    parser.add_argument("--quick", action="store_true", help="two kills, 300,000 rows")
    parser.add_argument("--job", nargs=2, type=Path, metavar=("DATA", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    set_quiet(True)
    if options.job:
        run_job(*options.job)
        return 0
    kills, rows = (2, 300_000) if options.quick else (options.kills, options.rows)
    moments = random.Random(options.seed)
    folder = Path(tempfile.mkdtemp(prefix="falconet-kill-dask-"))
    try:
        data = synthesize(folder / "data", users=rows // 150, items=rows // 300, rows=rows)
        with workers() as executor:
            job(executor, data, folder / "warm")
            start = time.monotonic()
            calm, share = job(executor, data, folder / "calm")
            seconds = time.monotonic() - start
        failed, inside = [], []
        for number in range(kills):
            hashes, when = killed_round(data, folder / "out", moments.uniform(0, seconds), moments.randrange(2))
            inside.append(when)
            failed += differences(hashes, calm, f"round {number}")
        (folder / "killed").mkdir()
        failed += killed_client(data, folder / "killed")
        with workers() as executor:
            again, _ = job(executor, data, folder / "killed")
        failed += differences(again, calm, "the run after the client was killed")
        failed += [f"{left.name} is left" for left in (folder / "killed").glob(".*")]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    hit = [when for when in inside if when is not None]
    in_fit = sum(when < share for when in hit)
    print(
        f"undisturbed {seconds:.1f} s, {len(calm)} files; {kills} kills: {in_fit} in the fit, {len(hit) - in_fit} later"
    )
    if 2 * len(hit) < kills:
        failed.append(f"only {len(hit)} of {kills} kills came before the job ended")
    print("\n".join(failed) if failed else "ok: all files equal byte for byte, no worker and no half output left")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
