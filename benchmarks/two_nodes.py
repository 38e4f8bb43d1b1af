"""Training on two nodes over a slow link, beside torch's own way; and what happens when a node is killed.

    python benchmarks/two_nodes.py [--steps N] [--gbit N] [--quick] [--json]

The nodes are two network namespaces of this machine, joined by a pair of virtual interfaces whose rate is limited in
both directions (`tc tbf`), with one process on each and one thread in each: needs Linux, root and iproute2.

Steps: two embedding tables 64 wide of MovieLens-25M's sizes and an MLP, global batch 16,384, random ids, batches made
beforehand. falconet exchanges the rows that were touched, in float32 and in bfloat16; torch has dense gradients,
DistributedDataParallel and Adam. All of them run in the same two processes, started by torchrun. Milliseconds are those
of a step from end to end, the first ones left out; megabytes those that node 0 sends in a step, counted by its
interface.

A lost node: both nodes train under `falconet launch`. In mid-epoch all processes of one node get SIGKILL, or the cable
between them is cut; those that are left must end with one message that names the node. Then both are started again and
must go on from the last snapshot. Seconds are those until they had ended, 5 of them the silence after which a node is
taken for gone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import falconet as fl
from falconet.batch import Batch
from falconet.progress import set_quiet
from falconet.schema import Column, Schema, Tag
from falconet.train.callbacks import Callback
from falconet.train.settings import TrainConfig
from falconet.train.trainer import Trainer

WORK = "steps of 16,384 rows with two tables 64 wide on two nodes, and a killed node"
USERS, FILMS, WIDTH, HIDDEN, BATCH = 162_542, 59_048, 64, (128, 128, 128), 16_384
FIRST, SECOND = ADDRESSES = ("10.77.0.1", "10.77.0.2")
LINK, PORT = "wire0", 29500
TIMEOUT = 5  # seconds of silence after which a node is taken for gone


def schema(users: int = USERS, films: int = FILMS) -> Schema:
    """A user, a film, and whether the one liked the other."""
    return Schema((
        Column(name="user", dtype="int32", tags=frozenset({Tag.USER, Tag.CATEGORICAL}), cardinality=users),
        Column(name="film", dtype="int32", tags=frozenset({Tag.ITEM, Tag.CATEGORICAL}), cardinality=films),
        Column(name="liked", dtype="float32", tags=frozenset({Tag.TARGET, Tag.BINARY})),
    ))  # fmt: skip


class Prepared:
    """Random batches, made beforehand; each process has its own half."""

    def __init__(self, users: int, films: int, steps: int, batch: int) -> None:
        rank, world = fl.Runtime.peek()
        random = torch.Generator().manual_seed(rank)
        self.rows, self._batches = steps * batch, []
        for _ in range(steps):
            n = batch // world
            ids = {
                name: torch.randint(1, size, (n,), generator=random)
                for name, size in (("user", users), ("film", films))
            }
            liked = torch.randint(0, 2, (n,), generator=random).float()
            self._batches.append(Batch({k: x.int() for k, x in ids.items()}, {"liked": liked}, n, batch, None))

    def __len__(self) -> int:
        return len(self._batches)

    def batches(self, epoch: int = 0, start: int = 0, rank: int = 0, world: int = 1) -> Generator[Batch]:
        """The same in every epoch."""
        yield from self._batches[start:]

    def state_dict(self) -> dict[str, Any]:
        """What the data is."""
        return {"rows": self.rows}


class Clock(Callback):
    """The milliseconds of each step and the bytes sent by its end, since the one before."""

    def __init__(self) -> None:
        self.ms: list[float] = []
        self.mb: list[float] = []
        self._time, self._sent = time.perf_counter(), sent()

    def step(self, step: int, figures: Mapping[str, float]) -> None:
        """A step is over."""
        now, so_far = time.perf_counter(), sent()
        self.ms.append((now - self._time) * 1e3)
        self.mb.append((so_far - self._sent) / 1e6)
        self._time, self._sent = now, so_far


def sent() -> int:
    """The bytes that this node has sent."""
    return int(Path(f"/sys/class/net/{LINK}/statistics/tx_bytes").read_text())


def ours(data: Prepared, exchange: Any) -> Clock:
    """Every step of an epoch, by the trainer."""
    torch.manual_seed(0)
    model = fl.models.MLP.from_schema(schema(), fl.models.MLP.Config(hidden=HIDDEN, dim=WIDTH, dropout=0.0, loss="mse"))
    clock = Clock()
    Trainer(TrainConfig(exchange_dtype=exchange), callbacks=[clock]).fit(model, data)
    return clock


class Dense(nn.Module):
    """The same network in plain torch."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.film = nn.Embedding(USERS, WIDTH), nn.Embedding(FILMS, WIDTH)
        layers: list[nn.Module] = []
        for wide_in, wide_out in zip((2 * WIDTH, *HIDDEN), HIDDEN, strict=False):
            layers += [nn.Linear(wide_in, wide_out), nn.ReLU(), nn.BatchNorm1d(wide_out)]
        self.layers = nn.Sequential(*layers, nn.Linear(HIDDEN[-1], 1))

    def forward(self, users: Tensor, films: Tensor) -> Tensor:
        scores: Tensor = self.layers(torch.cat([self.user(users), self.film(films)], dim=1)).squeeze(1)
        return scores


def dense(data: Prepared) -> Clock:
    """Every step of an epoch, by torch's own means."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Dense(), gradient_as_bucket_view=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    clock = Clock()
    for step, batch in enumerate(data.batches()):
        loss = nn.functional.mse_loss(model(batch.features["user"], batch.features["film"]), batch.targets["liked"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        clock.step(step, {})
    return clock


def link_gbit() -> float:
    """What the link carries in each direction, by sums of 32 MB: of two processes each sends as much as it holds."""
    values, times = torch.ones(8_000_000), []
    for _ in range(4):
        start = time.perf_counter()
        dist.all_reduce(values)
        times.append(time.perf_counter() - start)
    return 32e6 * 8 / 1e9 / statistics.median(times[1:])


def time_steps(steps: int, few: int, out: Path) -> None:
    """Of `few` dense steps and `steps` of ours, after some that do not count."""
    torch.set_num_threads(1)
    with fl.Runtime.start() as runtime:
        found: dict[str, list[float]] = {"link_gbit": [link_gbit()]}
        for name, n, run in (
            ("ours", steps, lambda data: ours(data, "float32")),
            ("ours_bfloat16", steps, lambda data: ours(data, "bfloat16")),
            ("dense", few, dense),
        ):
            clock: Clock = run(Prepared(USERS, FILMS, n + 5, BATCH))
            found |= {f"{name}_ms": clock.ms[5:], f"{name}_mb": clock.mb[5:]}
        if runtime.is_main:
            out.write_text(json.dumps(found))


def train(folder: Path) -> None:
    """Something to be killed in: two epochs of 100 steps, a snapshot every 5."""
    torch.set_num_threads(1)
    with fl.Runtime.start() as runtime:
        torch.manual_seed(0)
        model = fl.models.MLP.from_schema(schema(4000, 1000), fl.models.MLP.Config(hidden=(32,), dim=16))
        settings = TrainConfig(epochs=2, snapshot_steps=5)
        Trainer(settings, folder / "run", runtime).fit(model, Prepared(4000, 1000, 100, 512), resume="auto")


def command(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr.strip()} (needs Linux, root and iproute2)")
    return done.stdout


@contextmanager
def two_nodes(gbit: float) -> Iterator[tuple[str, str]]:
    """Two network namespaces, joined by a link of so many Gbit/s; their names."""
    one, other = names = (f"falconet-{os.getpid()}-0", f"falconet-{os.getpid()}-1")
    made: list[str] = []
    try:
        for name in names:
            command("ip", "netns", "add", name)
            made.append(name)
        command("ip", "link", "add", LINK, "netns", one, "type", "veth", "peer", "name", LINK, "netns", other)
        for name, address in zip(names, ADDRESSES, strict=True):
            command("ip", "-n", name, "addr", "add", f"{address}/24", "dev", LINK)
            for interface in ("lo", LINK):
                command("ip", "-n", name, "link", "set", interface, "up")
            # A burst is what the link may carry at once: a few of the packets of up to 64 KB that the kernel hands it.
            limit = ("tbf", "rate", f"{gbit}gbit", "burst", "256kb", "latency", "50ms")
            command("tc", "-n", name, "qdisc", "add", "dev", LINK, "root", *limit)
        yield names
    finally:
        for name in made:
            kill(name)
            command("ip", "netns", "del", name)


def kill(node: str) -> None:
    """SIGKILL for all processes of a node."""
    for pid in command("ip", "netns", "pids", node).split():
        os.kill(int(pid), signal.SIGKILL)


def start(nodes: tuple[str, str], launcher: list[str], *words: str) -> list[subprocess.Popen[str]]:
    """This script on both nodes, by a launcher on each."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    rest = ["--master-addr", FIRST, "--master-port", str(PORT), __file__, *words]
    return [
        subprocess.Popen(
            ["ip", "netns", "exec", node, sys.executable, *launcher, "--nnodes=2", f"--node-rank={rank}", *rest],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank, node in enumerate(nodes)
    ]  # fmt: skip


def finish(launchers: list[subprocess.Popen[str]]) -> None:
    """Wait until all are done. Raises SystemExit with what was said where one failed."""
    said = [launcher.communicate(timeout=600)[1] for launcher in launchers]
    if any(launcher.returncode for launcher in launchers):
        raise SystemExit("a node failed:\n" + "\n".join(said))


FALCONET = ["-m", "falconet", "launch", "-np", "1", "--node-timeout", str(TIMEOUT)]
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node=1"]


# What happens to the nodes, and what those that are left say of it.
LOSSES = {
    "node 1 killed": {0: "node 1 of 2 is gone"},
    "node 0 killed": {1: "node 0 of 2 is gone"},
    "cable cut": {0: "node 1 of 2 is gone", 1: "node 0 of 2 is gone"},
}


def survive(nodes: tuple[str, str], folder: Path, loss: str) -> float:
    """Strike in mid-epoch and start both nodes again; after how many seconds those that were left had ended."""
    launchers = start(nodes, FALCONET, "--train", str(folder))
    wait_for(lambda: steps_saved(folder) >= 10, launchers)
    if loss == "cable cut":
        command("ip", "-n", nodes[1], "link", "set", LINK, "down")
    else:
        kill(nodes[1 if loss == "node 1 killed" else 0])
    begun = time.monotonic()
    said = {node: launchers[node].communicate(timeout=120)[1] for node in LOSSES[loss]}
    seconds = time.monotonic() - begun
    for launcher in launchers:
        launcher.communicate()
    for node, wanted in LOSSES[loss].items():
        errors = [line for line in said[node].splitlines() if line.startswith("error: ")]
        alone = len(errors) == 1 and not any(noise in said[node] for noise in ("Traceback", "frame #"))
        if launchers[node].returncode != 1 or not alone or wanted not in errors[0]:
            raise SystemExit(f"{loss}: node {node} ended with {launchers[node].returncode} and said\n{said[node]}")
        print(f"{loss}: node {node} said `{errors[0]}`")
    before = steps_saved(folder)
    if not 10 <= before < 100:
        raise SystemExit(f"{loss}: not in mid-epoch, but after step {before}")
    command("ip", "-n", nodes[1], "link", "set", LINK, "up")
    finish(start(nodes, FALCONET, "--train", str(folder)))
    events = [json.loads(line) for line in (folder / "run/run.jsonl").read_text().splitlines()]
    resumed = [event["step"] for event in events if event["event"] == "start"]
    if resumed != [0, before] or steps_saved(folder) != 200:
        raise SystemExit(f"{loss}: started at steps {resumed}, with a snapshot of step {before}")
    print(f"  ended after {seconds:.1f} s; started again, both went on at step {before}, to the end", flush=True)
    return seconds


def steps_saved(folder: Path) -> int:
    last = folder / "run/last.json"
    return int(json.loads(last.read_text())["snapshot"]) if last.is_file() else 0


def wait_for(happened: Callable[[], bool], launchers: list[subprocess.Popen[str]]) -> None:
    """Raises SystemExit with what was said where a launcher ended before."""
    while not happened():
        if any(launcher.poll() is not None for launcher in launchers):
            raise SystemExit("a node ended early:\n" + "\n".join(x.communicate(timeout=60)[1] for x in launchers))
        time.sleep(0.01)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50, help="that are timed")
    parser.add_argument("--gbit", type=float, default=1.0, help="of the link, in each direction")
    parser.add_argument("--quick", action="store_true", help="10 steps, 3 dense ones, one of the nodes killed")
    parser.add_argument("--json", action="store_true", help="the figures as JSON, on the last line")
    parser.add_argument("--time", nargs=3, metavar=("STEPS", "DENSE", "FILE"), help=argparse.SUPPRESS)
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.time:
        set_quiet(True)
        time_steps(int(options.time[0]), int(options.time[1]), Path(options.time[2]))
        return 0
    if options.train:
        set_quiet(True)
        train(options.train)
        return 0
    steps, few = (10, 3) if options.quick else (options.steps, options.steps)
    with tempfile.TemporaryDirectory(prefix="falconet-nodes-") as folder, two_nodes(options.gbit) as nodes:
        out = Path(folder) / "times.json"
        finish(start(nodes, TORCHRUN, "--time", str(steps), str(few), str(out)))
        times: dict[str, list[float]] = json.loads(out.read_text())
        for loss in list(LOSSES)[:1] if options.quick else LOSSES:
            run = Path(folder) / loss
            run.mkdir()
            times[f"{loss.replace(' ', '_')}_s"] = [survive(nodes, run, loss)]
    ratios = {"ratio": "ours_ms", "ratio_bfloat16": "ours_bfloat16_ms"}
    for name, of in ratios.items():
        times[name] = [statistics.median(times["dense_ms"]) / statistics.median(times[of])]
    figures = {
        name: {"median": statistics.median(x), "low": min(x), "high": max(x), "runs": len(x)}
        for name, x in times.items()
    }
    for name, x in figures.items():
        print(f"{name}: {x['median']:.2f} ({x['low']:.2f} to {x['high']:.2f} in {x['runs']})")
    if options.json:
        machine = {"cores": os.cpu_count(), "processor": platform.machine(), "system": platform.system()}
        versions = {"python": platform.python_version(), "torch": torch.__version__}
        print(json.dumps({"work": WORK, "machine": machine, "versions": versions, "figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
