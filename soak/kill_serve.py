"""Load with events on `falconet serve --workers 2` while workers are killed with SIGKILL and bundles take turns.

    python soak/kill_serve.py [--minutes N] [--kills N] [--reloads N] [--people N] [--seed N] [--quick]

People open sessions: each asks for a list, likes an item of it, asks again, and so on. An event whose answer does not
come is sent again under its id. One worker is never killed, so that what it keeps over all reloads shows. Checks: every
event that was accepted is in the store once; no item is recommended that the person had liked; no answer of 500 or
above, and none that is cut but by a kill; the memory of the worker that lives is flat.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from falconet.datasets.synthetic import synthesize
from falconet.progress import set_quiet
from falconet.recipe.config import recipe_of
from falconet.recipe.run import run
from falconet.serve.stores.sqlite import SqliteStore

TOKEN = "soak"  # noqa: S105 - of a server that ends with this script
LIKES = 12  # of one session
CUT = 5.0  # seconds after a kill in which a connection may be found cut
FLAT = 1.10  # memory at the end over memory at the start
CONNECTION = (ConnectionError, http.client.HTTPException, TimeoutError)


def bundles(folder: Path) -> tuple[Path, Path]:
    """Two bundles of the same catalogue, of rankers that learned for one and for two epochs."""
    data = synthesize(folder / "data", users=300, items=400, rows=12_000, seed=1)
    found = []
    for epochs in (1, 2):
        plain = {
            "format": 1,
            "data": {"path": str(data)},
            "prepare": {"history": "others"},
            "retriever": {"model": "EASE"},
            "ranker": {"train": {"epochs": epochs}},
            "bundle": {"candidates": 50},
        }
        run(recipe_of(plain), folder / "work")
        found.append(folder / f"bundle-{epochs}")
        shutil.copytree(folder / "work/bundle", found[-1])
    return found[0], found[1]


class Server:
    """`falconet serve --workers 2`, its workers, and when one of them was killed."""

    def __init__(self, bundle: Path, db: Path) -> None:
        command = [sys.executable, "-m", "falconet", "serve", str(bundle), "--workers", "2", "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--db", str(db), "--token", TOKEN],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().rpartition(":")[2])
        self.survivor = min(self.workers())
        self.killed_at = 0.0

    def workers(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def kill_one(self) -> None:
        """Kill a worker that can die, once there is one."""
        while not (others := [pid for pid in self.workers() if pid != self.survivor]):
            time.sleep(0.05)
        self.killed_at = time.monotonic()
        os.kill(others[0], signal.SIGKILL)

    def memory(self) -> float:
        """Of the worker that lives, in MB."""
        return int(Path(f"/proc/{self.survivor}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


class Person(threading.Thread):
    """Somebody at the service, one session after the other until told to stop."""

    def __init__(self, number: int, server: Server, over: threading.Event) -> None:
        super().__init__()
        self.number, self.server, self.over = number, server, over
        self.accepted: set[str] = set()
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        self.connection: http.client.HTTPConnection | None = None

    def run(self) -> None:
        session = 0
        while not self.over.is_set():
            self._session(f"{self.number}-{session}")
            session += 1

    def _session(self, session: str) -> None:
        self.connection = None  # any of the workers
        liked: set[Any] = set()
        for place in range(LIKES):
            answer = self._ask("/v1/recommend", {"session_id": session, "k": 10})
            if answer is None or self.over.is_set():
                return
            shown = [item["item_id"] for item in answer["items"]]
            if liked & set(shown):
                self.wrong.append(f"session {session} was shown {liked & set(shown)} again")
            item, name = shown[place % len(shown)], f"{session}-{place}"
            event = {"event_id": name, "session_id": session, "item_id": item, "type": "like"}
            said = self._ask("/v1/events", {"events": [event]})
            if said is None:
                return
            if said["rejected"]:
                self.wrong.append(f"event {name}: {said['outcomes'][0]}")
            self.accepted.add(name)
            liked.add(item)

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        """The answer; asked again where the connection was cut."""
        for _ in range(20):
            try:
                if self.connection is None:
                    self.connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
                self.connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
                reply = self.connection.getresponse()
                content = reply.read()
            except CONNECTION as error:
                self.counts["cut"] += 1
                if time.monotonic() - self.server.killed_at > CUT:
                    self.wrong.append(f"{path} was cut without a kill: {error!r}")
                self.connection = None
                continue
            self.counts[str(reply.status)] += 1
            if reply.status == 200:
                return json.loads(content)
            if reply.status != 429:
                self.wrong.append(f"{path} was answered {reply.status}: {content[:200]!r}")
                return None
            time.sleep(0.2)
        self.wrong.append(f"{path}: no answer in 20 tries")
        return None


def swap(server: Server, served: Path, next_one: Path, number: int) -> None:
    """Put the other bundle into the folder that is served, and tell the workers of it every second time."""
    new, old = served.with_name(f"new-{number}"), served.with_name(f"old-{number}")
    shutil.copytree(next_one, new)
    served.rename(old)
    new.rename(served)
    shutil.rmtree(old)
    if number % 2:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        headers = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"}
        try:
            connection.request("POST", "/v1/admin/reload", "{}", headers)
            status = connection.getresponse().status
        except CONNECTION:
            return  # the worker was killed: the others look into the folder by themselves
        if status != 200:
            raise SystemExit(f"reload was answered {status}")


def stored(db: Path) -> Counter[str]:
    store = SqliteStore(db)
    try:
        return Counter(name for batch in store.export() for name in batch.column("event_id").to_pylist())
    finally:
        store.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--reloads", type=int, default=20)
    parser.add_argument("--people", type=int, default=4)
    parser.add_argument("--seed", type=int, default=None, help="of the moments of the kills")
    parser.add_argument("--quick", action="store_true", help="20 seconds, two kills, two reloads")
    options = parser.parse_args()
    seconds, kills, reloads = options.minutes * 60, options.kills, options.reloads
    if options.quick:
        seconds, kills, reloads = 20.0, 2, 2
    set_quiet(True)
    moments = random.Random(options.seed)
    folder = Path(tempfile.mkdtemp(prefix="falconet-kill-serve-"))
    server: Server | None = None
    try:
        both = bundles(folder)
        served, db = folder / "served/bundle", folder / "events.db"
        shutil.copytree(both[0], served)
        server = Server(served, db)
        over = threading.Event()
        people = [Person(number, server, over) for number in range(options.people)]
        start = time.monotonic()
        for person in people:
            person.start()
        plan = [(moments.uniform(0.05, 0.95) * seconds, "kill") for _ in range(kills)]
        plan += [((number + 0.5) / reloads * seconds, "swap") for number in range(reloads)]
        memory, swaps = [], 0
        for when, what in [*sorted(plan), (seconds, "end")]:
            while (left := start + when - time.monotonic()) > 0:
                time.sleep(min(left, 1.0))
                memory.append(server.memory())
            if what == "kill":
                server.kill_one()
            elif what == "swap":
                swap(server, served, both[(swaps + 1) % 2], swaps)
                swaps += 1
        over.set()
        for person in people:
            person.join()
        server.process.send_signal(signal.SIGTERM)
        _, said = server.process.communicate(timeout=60)
        wrong = [line for person in people for line in person.wrong]
        wrong += [f"the server said: {line}" for line in said.splitlines() if "Traceback" in line or "error" in line]
        if server.process.returncode:
            wrong.append(f"the server ended with {server.process.returncode}")
        found, accepted = stored(db), set().union(*(person.accepted for person in people))
        wrong += [f"event {name} was accepted and is lost" for name in sorted(accepted - found.keys())]
        wrong += [f"event {name} is there {count} times" for name, count in found.items() if count > 1]
        taken = said.count("another takes its place")
        if taken != kills:
            wrong.append(f"{taken} workers were started again after {kills} kills")
        third = max(len(memory) // 3, 1)
        first, last = statistics.median(memory[third : 2 * third] or memory), statistics.median(memory[-third:])
        if last > FLAT * first and not options.quick:
            wrong.append(f"memory grew from {first:.0f} to {last:.0f} MB")
        counts = sum((person.counts for person in people), Counter[str]())
        print(
            f"{seconds:.0f} s, {counts['200']:,} answers, {len(accepted):,} events accepted, {kills} kills, {swaps} "
            f"bundles, {counts['cut']} connections cut; memory {first:.0f} MB, at the end {last:.0f} MB"
        )
        print("\n".join(wrong[:20]) if wrong else "ok: no event lost or twice, nothing liked shown again, no error")
        return 1 if wrong else 0
    finally:
        if server is not None and server.process.poll() is None:
            server.process.kill()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
