"""A server under load from another process: two stages over a generated catalogue.

    python benchmarks/serve.py [--items N] [--candidates N] [--rate N] [--seconds N] [--curves] [--quick] [--json]

A bundle of 62,000 items is made: TwoTower vectors of 64 numbers and a DLRM that orders 500 candidates, both with random
weights, histories of 50 items, genres, ids of 64 bits. `falconet serve` answers on one core, the load comes from
another (where the system can pin processes): requests of known users for 20 items, one event for each ten, sent on time
whether or not the last has been answered; a latency counts from when the request was due. Then as many as one worker
sustains.
`in_process_p50_ms` is the whole answer without HTTP, `million_items_p50_ms` the same with a million items searched
exactly, `bulk_users_per_s` what `falconet recommend --users` does. `--curves` shows the cost
of an answer against items, candidates and the length of histories.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import falconet as fl
from falconet import ops
from falconet.models.base import MODELS
from falconet.models.store import save_model
from falconet.progress import set_quiet
from falconet.retrieval.candidates import CandidateRows
from falconet.schema import FOOTER_KEY, Column, Schema, Tag
from falconet.serve.bundle import ServingConfig, build_bundle
from falconet.serve.recommender import Recommender
from falconet.serve.tables import Catalogue

WORK = "answers of two stages (TwoTower of 64, DLRM) over HTTP, and in process"
FIRST = 3  # the first code of a vocabulary
GENRES = 20
CONNECTIONS = 16
EARLY = 0.0002  # seconds that a timer may be late
ID = 10_000_000_000  # ids begin above 32 bits


def id_column(name: str, side: Tag, values: int) -> Column:
    tags = frozenset({side, Tag.ID, Tag.CATEGORICAL})
    return Column(name=name, dtype="int32", nullable=False, tags=tags, cardinality=FIRST + values, oov=1, domain=name)


def list_column(name: str, values: int, domain: str | None, *tags: Tag) -> Column:
    of = frozenset({*tags, Tag.CATEGORICAL})
    return Column(
        name=name, dtype="int32", list="ragged", nullable=False, tags=of, cardinality=FIRST + values, domain=domain
    )


def schemas(items: int, users: int) -> tuple[Schema, Schema]:
    """Of the items and of the users."""
    number = frozenset({Tag.ITEM, Tag.CONTINUOUS})
    of_items = (
        id_column("item", Tag.ITEM, items),
        Column(name="item_id", dtype="int64"),
        Column(name="title", dtype="string"),
        Column(name="show_year", dtype="int32"),
        Column(name="count", dtype="int64"),
        list_column("genres", GENRES, None, Tag.ITEM),
        Column(name="log_popularity", dtype="float32", nullable=False, tags=number),
    )
    of_users = (
        id_column("user", Tag.USER, users),
        Column(name="user_id", dtype="int64"),
        list_column("history", items, "item", Tag.USER, Tag.SEQUENCE),
        Column(name="seen", dtype="int32", list="ragged", nullable=False),
    )
    return Schema(of_items), Schema(of_users)


def lists(lengths: Any, values: Any) -> pa.ListArray:
    """Lists of these lengths, one after the other."""
    return pa.ListArray.from_arrays(pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)), values)


def make_bundle(folder: Path, items: int, users: int, history: int, candidates: int) -> Path:
    """Tables, models with random weights and their bundle."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    item_schema, user_schema = schemas(items, users)
    counts = (items / np.arange(1, items + 1)).astype(np.int64) + 1
    lengths = rng.integers(1, 4, items)
    met = np.sort(rng.integers(FIRST, FIRST + items, (users, history), dtype=np.int32), axis=1)
    histories = lists(np.full(users, history), met.ravel())
    item_columns = {
        "item": np.arange(FIRST, FIRST + items, dtype=np.int32),
        "item_id": np.arange(ID, ID + items),
        "title": [f"Item {i}" for i in range(items)],
        "show_year": rng.integers(1950, 2026, items, dtype=np.int32),
        "count": counts,
        "genres": lists(lengths, rng.integers(FIRST, FIRST + GENRES, lengths.sum(), dtype=np.int32)),
        "log_popularity": np.log1p(counts).astype(np.float32),
    }
    user_columns = {
        "user": np.arange(FIRST, FIRST + users, dtype=np.int32),
        "user_id": np.arange(ID, ID + users),
        "history": histories,
        "seen": histories,
    }
    tables = {"items": (item_schema, item_columns), "users": (user_schema, user_columns)}
    for name, (schema, columns) in tables.items():
        (folder / name).mkdir()
        footer = {FOOTER_KEY: schema.to_json().encode()}
        table = pa.table(columns).select(schema.names).replace_schema_metadata(footer)
        pq.write_table(table, folder / name / "part.parquet")
    raw = {"user": pa.array(np.arange(ID, ID + users)), "item": pa.array(ID + np.arange(users) % items)}
    pq.write_table(pa.table(raw), folder / "raw.parquet")
    outputs = (["user"] >> ops.Categorify() >> ops.AddTags(tags=("user", "id"))) + (
        ["item"] >> ops.Categorify() >> ops.AddTags(tags=("item", "id"))
    )
    fl.Workflow(outputs).fit(fl.Dataset(folder / "raw.parquet")).save(folder / "workflow")
    torch.manual_seed(0)
    tagged = Schema(tuple(c for c in (*user_schema, *item_schema) if c.tags))
    save_model(MODELS["TwoTower"].from_schema(tagged.without(["log_popularity"])), folder / "retriever")
    rows = CandidateRows(tagged, Catalogue(folder / "items", "item").features)
    taken = Column(name="taken", dtype="float32", nullable=False, tags=frozenset({Tag.TARGET, Tag.BINARY}))
    save_model(MODELS["DLRM"].from_schema(Schema((*rows.schema, taken))), folder / "ranker")
    build_bundle(
        folder / "bundle", workflow=folder / "workflow", retriever=folder / "retriever", ranker=folder / "ranker",
        items=folder / "items", users=folder / "users",
        config=ServingConfig(user="user", item="item", candidates=candidates, history=history),
        data={"rows": users * history, "from": 0, "to": 0},
    )  # fmt: skip
    return folder / "bundle"


class Load:
    """Sends requests on time and notes how long after they were due the last byte of the answer was there.

    One thread, awake a little before a request is due; answers are looked into when all are there.
    """

    def __init__(self, port: int, users: int) -> None:
        self._port, self._users = port, users

    def run(self, rate: float, seconds: float) -> tuple[list[float], dict[str, list[float]], int]:
        """Latencies in ms, those of every stage as the server says, and how many answers were no 200."""
        count = int(rate * seconds)
        answers, took = [b""] * count, [0.0] * count
        asked: dict[socket.socket, int] = {}
        sent = done = 0
        with ExitStack() as opened:
            # select's timer has microseconds; those of epoll and kqueue are rounded up to milliseconds.
            waiting = opened.enter_context(selectors.SelectSelector())
            idle = deque(opened.enter_context(self._connection()) for _ in range(CONNECTIONS))
            for connection in idle:
                waiting.register(connection, selectors.EVENT_READ, connection)
            start = time.perf_counter() + 0.2
            requests = [self._request(number, start) for number in range(count)]
            while done < count:
                left = start + sent / rate - time.perf_counter() if sent < count and idle else 1.0
                if left <= 0:
                    connection = idle.popleft()
                    asked[connection] = sent
                    connection.sendall(requests[sent])
                    sent += 1
                for key, _ in waiting.select(max(left - EARLY, 0)):
                    connection = key.data
                    number = asked[connection]
                    part = connection.recv(1 << 20)
                    if not part:
                        raise ConnectionError(f"the server hung up after {done:,} of {count:,} answers")
                    answers[number] += part
                    if _is_whole(answers[number]):
                        took[number] = (time.perf_counter() - start - number / rate) * 1000
                        idle.append(connection)
                        done += 1
        return self._told(answers, took)

    def _connection(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self._port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        return connection

    def _request(self, number: int, start: float) -> bytes:
        """A request for a list, every tenth one with an event."""
        user = ID + random.Random(number).randrange(self._users)
        path, body = "/v1/recommend", {"user_id": user, "k": 20}
        if number % 10 == 9:
            event = {"event_id": f"{number}-{start}", "user_id": user, "item_id": ID + number % 1000, "type": "view"}
            path, body = "/v1/events", {"events": [event]}
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n"
        return head.encode() + b"content-length: %d\r\n\r\n" % len(content) + content

    def _told(self, answers: list[bytes], took: list[float]) -> tuple[list[float], dict[str, list[float]], int]:
        latencies, failed = [], 0
        stages: dict[str, list[float]] = {}
        for answer, ms in zip(answers, took, strict=True):
            failed += not answer.startswith(b"HTTP/1.1 200 ")
            said = json.loads(answer.partition(b"\r\n\r\n")[2])
            if "took_ms" in said:
                latencies.append(ms)
                for stage, each in said["took_ms"].items():
                    stages.setdefault(stage, []).append(each)
        return latencies, stages, failed


def _is_whole(answer: bytes) -> bool:
    """Whether a response has all its bytes."""
    head, _, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return length is not None and len(body) == int(length[1])


def sustained(load: Load, seconds: float) -> float:
    """The highest of a row of rates at which the median answer comes within 50 ms."""
    best = 0.0
    for rate in (150, 200, 250, 300, 350, 400, 500, 600, 800, 1000):
        latencies, _, failed = load.run(rate, seconds)
        if failed or percentile(latencies, 50) > 50:
            break
        best = rate
    return best


def percentile(values: list[float], q: float) -> float:
    return float(np.percentile(values, q)) if values else float("nan")


def serve(bundle: Path, args: argparse.Namespace) -> dict[str, float]:
    """The figures of a server under load."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "falconet", "serve", str(bundle), "--port", "0", "--quiet"]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        address = process.stdout.readline().strip() if process.stdout else ""
        ready_s = time.perf_counter() - began
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
        if len(cores) > 1:
            os.sched_setaffinity(process.pid, {cores[0]})
            for thread in Path(f"/proc/{process.pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {cores[0]})
            os.sched_setaffinity(0, {cores[1]})
        try:
            load = Load(int(address.rsplit(":", 1)[1]), args.users)
            load.run(args.rate, min(2.0, args.seconds))  # warm
            latencies, stages, failed = load.run(args.rate, args.seconds)
            figures = {
                "p50_ms": percentile(latencies, 50),
                "p99_ms": percentile(latencies, 99),
                "failed": float(failed),
                "ready_s": ready_s,
                **{f"{stage}_ms": percentile(values, 50) for stage, values in stages.items()},
            }
            figures["requests_per_s"] = sustained(load, args.seconds / 4)
            status = Path(f"/proc/{process.pid}/status")
            if status.is_file():
                line = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM"))
                figures["peak_mb"] = int(line.split()[1]) / 1000
        finally:
            process.terminate()
            if cores:
                os.sched_setaffinity(0, set(cores))
    return figures


def in_process(bundle: Path, users: int, asked: int) -> float:
    """The median milliseconds of a whole answer, without HTTP."""
    recommender = Recommender.load(bundle)
    chance = random.Random(0)
    times = []
    for number in range(asked + 5):
        start = time.perf_counter()
        answer = recommender.recommend(ID + chance.randrange(users), k=20)
        if number >= 5:
            times.append((time.perf_counter() - start) * 1000)
        if len(answer.items) != 20:
            raise SystemExit("an answer has fewer items than were asked for")
    return statistics.median(times)


def in_bulk(bundle: Path, folder: Path, users: int) -> float:
    """Users a second of a file that are recommended to, by one thread."""
    pq.write_table(pa.table({"user_id": np.arange(ID, ID + users)}), folder / "users.parquet")
    recommender = Recommender.load(bundle)
    start = time.perf_counter()
    recommender.recommend_users(folder / "users.parquet", folder / "lists", k=20)
    return users / (time.perf_counter() - start)


def curves(folder: Path, users: int, asked: int) -> dict[str, float]:
    """The cost of an answer against one thing at a time."""
    found = {}
    kinds: list[tuple[str, dict[str, int]]] = [
        *((f"items_{n}", {"items": n}) for n in (1000, 10_000, 62_000, 250_000)),
        *((f"candidates_{n}", {"candidates": n}) for n in (100, 200, 500, 1000, 2000)),
        *((f"history_{n}", {"history": n}) for n in (10, 50, 200, 1000)),
    ]
    for name, change in kinds:
        made = {"items": 62_000, "candidates": 500, "history": 50, **change}
        bundle = make_bundle(folder / name, users=users, **made)
        found[f"{name}_ms"] = in_process(bundle, users, asked)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=62_000)
    parser.add_argument("--users", type=int, default=20_000)
    parser.add_argument("--candidates", type=int, default=500)
    parser.add_argument("--rate", type=float, default=100.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each load lasts")
    parser.add_argument("--curves", action="store_true", help="also the cost against items, candidates and history")
    parser.add_argument("--quick", action="store_true", help="500 items, two seconds")
    parser.add_argument("--json", action="store_true", help="the figures as JSON, on the last line")
    args = parser.parse_args()
    million = 1_000_000
    if args.quick:
        args.items, args.users, args.candidates, args.seconds, million = 500, 200, 50, 2.0, 2000
    set_quiet(True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bundle = make_bundle(folder / "load", args.items, args.users, 50, args.candidates)
        figures = serve(bundle, args)
        figures["in_process_p50_ms"] = in_process(bundle, args.users, 200)
        figures["bulk_users_per_s"] = in_bulk(bundle, folder, min(args.users, 4000))
        large = make_bundle(folder / "million", million, args.users, 50, args.candidates)
        figures["million_items_p50_ms"] = in_process(large, args.users, 200)
        if args.curves:
            figures |= curves(folder, min(args.users, 2000), 100)
    for key, value in figures.items():
        print(f"{key:24} {value:10.2f}")
    if args.json:
        machine = f"{platform.machine()}, {os.cpu_count()} cores"
        versions = {"python": platform.python_version(), "torch": torch.__version__}
        rows: dict[str, Any] = {
            key: {"median": value, "low": value, "high": value, "runs": 1} for key, value in figures.items()
        }
        print(json.dumps({"work": WORK, "machine": machine, "versions": versions, "figures": rows}))


if __name__ == "__main__":
    main()
