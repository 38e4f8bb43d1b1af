"""What the launchers of several machines agree on: whether an attempt is over, how it ended, who is still there.

They talk through the store that node 0's launcher holds, which is also where their processes meet. All of a launcher's
own processes have ended, or are done, before it says how its part ended, so when all have said it a new attempt may
begin.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Literal, TypeVar

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from falconet.errors import ConfigError, DistributedError
from falconet.train.meeting import Line, find, hold, within
from falconet.train.place import Meeting, Place, read_meeting, read_place

T = TypeVar("T")
_MEET = timedelta(minutes=10)
_LOOK = 0.2  # seconds between two looks at the store
_FAREWELL = 10.0  # seconds that node 0 waits for the others, who need its store to the end


@dataclass(frozen=True)
class Nodes:
    """The machines of one launch, each with a launcher of its own; by default this one alone."""

    count: int = 1
    rank: int = 0
    meeting: Meeting = field(default_factory=lambda: Meeting("127.0.0.1", 0))
    timeout_s: float = 60.0  # of silence after which a launcher is taken for gone


def find_nodes(
    env: Mapping[str, str],
    count: int | None = None,
    rank: int | None = None,
    address: str | None = None,
    port: int | None = None,
    timeout_s: float = 60.0,
) -> Nodes:
    """The machines of a launch: as given, else as the srun or mpirun says that started one launcher on each.

    Raises ConfigError where something is missing or does not fit together.
    """
    outer = read_place(env)
    under = outer.launcher not in ("none", "torchrun") and outer.world > 1
    if count is None and not under:
        count = 1
    if count is None and outer.local_world > 1:
        raise ConfigError(
            f"{outer.launcher} started {outer.local_world} launchers on one machine",
            hint="one launcher per machine, as by `srun --ntasks-per-node=1`, and processes by -np",
        )
    count = outer.world if count is None else count
    if rank is None and under and outer.world == count:
        rank = outer.rank
    if count == 1:
        rank = rank or 0
    if rank is None:
        raise ConfigError(f"--nnodes {count} without --node-rank", hint="0 on the first machine, 1 on the next, ...")
    if not 0 <= rank < count:
        raise ConfigError(f"--node-rank {rank} does not fit --nnodes {count}", hint="from 0 to nnodes - 1")
    if count == 1:
        return Nodes()
    given = {"MASTER_ADDR": address, "MASTER_PORT": None if port is None else str(port)}
    asked = {**env, **{name: value for name, value in given.items() if value is not None}}
    return Nodes(count, rank, read_meeting(asked, Place(outer.launcher, rank, count, 0, 1)), timeout_s)


@dataclass(frozen=True)
class Ending:
    """How an attempt ended on one node, or in one process."""

    kind: Literal["done", "failed", "stopped", "cut"]  # stopped: by SIGTERM; cut: because of another one
    rank: int = 0  # of the process that failed
    what: str = ""
    follows: bool = False  # from another process's end
    trace: str = ""


def cause(endings: list[Ending]) -> Ending:
    """The ending that explains the others: a failure of its own, else a stop, else any failure; or that all is done."""
    order = {"failed": 0, "stopped": 1, "cut": 3, "done": 4}
    return min(endings, key=lambda e: (2 if e.kind == "failed" and e.follows else order[e.kind], e.rank))


class Council:
    """The launchers of one launch, seen from one of them."""

    def __init__(self, nodes: Nodes, nproc: int) -> None:
        self.nodes = nodes
        self.store: TCPStore = (hold if nodes.rank == 0 else find)(nodes.meeting, _MEET)
        self.address = nodes.meeting.address
        self._line = None if nodes.rank == 0 else Line(self.address, int(self.store.port))
        self._heard = dict.fromkeys(range(nodes.count), (b"", time.monotonic()))
        self._looked = 0.0
        self._fresh: TCPStore | None = None
        self._lost: DistributedError | None = None
        self._silent: set[int] = set()
        if nodes.count > 1:
            self._agree(nproc)

    @property
    def look(self) -> float | None:
        """After how many seconds to look again; None where there is nobody to look at."""
        return _LOOK if self.nodes.count > 1 else None

    def _agree(self, nproc: int) -> None:
        rank = self.nodes.rank
        if self.store.add(f"launch/{rank}", 1) > 1:
            raise ConfigError(f"two launchers say they are node {rank}", hint="`--node-rank` from 0 to nnodes - 1")
        self.store.set(f"shape/{rank}", json.dumps([self.nodes.count, nproc]))
        count, each = json.loads(self.store.get("shape/0"))
        if (count, each) != (self.nodes.count, nproc):
            raise ConfigError(
                f"node {rank} has --nnodes {self.nodes.count} -np {nproc}, node 0 has --nnodes {count} -np {each}",
                hint="start all launchers alike",
            )

    def begin(self, attempt: int) -> int:
        """The port at which the processes of an attempt meet.

        The first time at the launchers' own. Later they need a store without what the attempt before left there: a
        script that joins by torch alone would take its addresses for this one's.
        """
        if attempt == 0:
            return int(self.store.port)
        if self.nodes.rank == 0:
            self._fresh = fresh = hold(Meeting(self.address, 0), _MEET)
            self._tell(f"{attempt}/port", str(fresh.port))
            return int(fresh.port)
        return int(self._ask(lambda: self.store.get(f"{attempt}/port")))

    def over(self, attempt: int) -> bool:
        """Whether an attempt has ended early on any node. Raises DistributedError for a node that fell silent."""
        if self.nodes.count == 1:
            return False

        def ask() -> bool:
            self._listen()
            return bool(self.store.check([f"{attempt}/over"]))

        return self._ask(ask)

    def _ask(self, ask: Callable[[], T]) -> T:
        """What the store says. Raises DistributedError where node 0, which holds it, is gone, and then at once."""
        if self._lost is not None:
            raise self._lost
        try:
            if self._line is not None and self._line.cut:
                raise RuntimeError("its launcher has ended")
            return within(self.nodes.timeout_s, ask)
        except (RuntimeError, TimeoutError) as error:
            self._lost = self._gone(0, str(error))
            raise self._lost from error

    def _gone(self, node: int, why: str) -> DistributedError:
        return DistributedError(
            f"node {node} of {self.nodes.count} is gone: {why}",
            hint='start all launchers again; a training with a folder and resume="auto" goes on from its last snapshot',
        )

    def _listen(self) -> None:
        now, timeout = time.monotonic(), self.nodes.timeout_s
        if now - self._looked < timeout / 20:
            return
        self._looked = now
        self.store.set(f"alive/{self.nodes.rank}", str(now))
        for node, (word, when) in self._heard.items():
            said = self.store.get(f"alive/{node}") if self.store.check([f"alive/{node}"]) else b""
            if said != word:
                self._heard[node] = (said, now)
            elif now - when > timeout and not self.store.check([f"left/{node}"]):
                self._silent.add(node)
                raise self._gone(node, f"its launcher has been silent for {timeout:.0f} s")

    def call_off(self, attempt: int) -> None:
        """Tell the others that an attempt is over."""
        self._tell(f"{attempt}/over", "")

    def say(self, attempt: int, ending: Ending) -> None:
        """Tell how an attempt ended here."""
        word = asdict(ending) | {"trace": ""}  # it is shown where it happened
        self._tell(f"{attempt}/ending/{self.nodes.rank}", json.dumps(word))

    def _tell(self, key: str, value: str) -> None:
        if self.nodes.count > 1:
            with suppress(DistributedError):  # node 0 is gone, and nobody is there to hear it
                self._ask(lambda: self.store.set(key, value))

    def endings(self, attempt: int, own: Ending) -> list[Ending] | None:
        """How an attempt ended on every node; None while any has not said so."""
        keys = [f"{attempt}/ending/{node}" for node in range(self.nodes.count) if node != self.nodes.rank]
        if not keys:
            return [own]

        def ask() -> list[bytes]:
            self._listen()
            return [self.store.get(key) for key in keys] if self.store.check(keys) else []

        return [own, *(Ending(**json.loads(word)) for word in words)] if (words := self._ask(ask)) else None

    def leave(self) -> None:
        """Take leave; node 0 goes last, with the store."""
        self._tell(f"left/{self.nodes.rank}", "")
        deadline = time.monotonic() + _FAREWELL
        others = [f"left/{node}" for node in range(1, self.nodes.count) if node not in self._silent]
        while self.nodes.rank == 0 and others and not self.store.check(others) and time.monotonic() < deadline:
            time.sleep(_LOOK)
