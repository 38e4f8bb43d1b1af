"""Work in bounded time: what is late is given up, does not pile up, and what it leaves behind is replaced."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from falconet.errors import ConfigError
from falconet.serve.stages import LOST, Budgets, Degraded, Stage, Stages

SHORT = 0.02
BOTH: tuple[Stage, Stage] = ("retrieve", "rank")


@pytest.fixture
def stages() -> Iterator[Stages]:
    made = Stages(Budgets(), threads=2)
    yield made
    made.close()


def soon(holds: Callable[[], bool]) -> bool:
    """Whether something holds within seconds."""
    end = time.monotonic() + 5
    while not holds() and time.monotonic() < end:
        time.sleep(0.002)
    return holds()


def ours() -> int:
    return sum(thread.name == "falconet-stages" for thread in threading.enumerate())


def quick() -> Iterator[int]:
    yield 1
    yield 2


def stuck(door: threading.Event, at: int) -> Iterator[int]:
    for number in (0, 1):
        if number == at:
            door.wait()
        yield number


def taken(
    stages: Stages, steps: Iterator[int], seconds: float | None = None, *, of: tuple[Stage, ...] = BOTH
) -> tuple[list[int], Stage | None]:
    """What comes of `steps` where each stage, or those named, may take so long."""
    stages.budgets = Budgets() if seconds is None else Budgets(**dict.fromkeys(of, seconds * 1000))
    return stages.take(steps, BOTH, time.perf_counter())


def test_stages_give_their_results_in_order(stages: Stages) -> None:
    before = ours()
    assert [taken(stages, quick()) for _ in range(20)] == [([1, 2], None)] * 20
    assert ours() - before <= 2


def test_what_a_stage_raises_is_raised_where_it_is_awaited(stages: Stages) -> None:
    def wrong() -> Iterator[int]:
        yield 1
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        taken(stages, wrong(), 5)
    assert taken(stages, quick()) == ([1, 2], None)


@pytest.mark.parametrize(("at", "name"), [(0, "retrieve"), (1, "rank")])
def test_stuck_stages_leave_room_for_others_and_do_not_pile_up(stages: Stages, at: int, name: Stage) -> None:
    door = threading.Event()
    before = ours()
    for _ in range(3 * LOST):
        assert taken(stages, stuck(door, at), SHORT, of=(name,)) == ([0][:at], name)
    assert stages.lost == LOST  # the others were not begun
    assert ours() - before <= 2 + LOST
    start = time.perf_counter()
    assert taken(stages, quick(), 60) == ([1][:at], name)  # who is stuck in one stage does not hinder the other
    assert time.perf_counter() - start < 30  # what cannot begin is not waited for
    door.set()
    assert soon(lambda: stages.lost == 0)
    assert taken(stages, quick(), 60) == ([1, 2], None)
    assert soon(lambda: ours() - before <= 2)


def test_many_at_once_are_late_in_bounded_threads(stages: Stages) -> None:
    door, before, found = threading.Event(), ours(), []
    stages.budgets = Budgets(total=1000 * SHORT)
    many = [
        threading.Thread(target=lambda: found.append(stages.take(stuck(door, 1), BOTH, time.perf_counter())))
        for _ in range(40)
    ]
    for one in many:
        one.start()
    for one in many:
        one.join()
    assert len(found) == 40
    assert all(late is not None for _, late in found)
    assert ours() - before <= 2 + 2 * (LOST - 1 + 2)  # those that go on, and of each stage those that were given up
    door.set()
    assert soon(lambda: stages.lost == 0)
    assert taken(stages, quick(), 60) == ([1, 2], None)


def test_work_that_nobody_waits_for_any_more_is_not_begun() -> None:
    stages, door, begun = Stages(Budgets(), threads=1), threading.Event(), []

    def busy() -> Callable[[], None]:
        door.wait()
        return lambda: None

    def noted() -> Iterator[int]:
        begun.append(1)
        yield 1

    stages._pool.put(busy)  # its only thread
    stages.budgets = Budgets(retrieve=1000 * SHORT)
    assert stages.take(noted(), BOTH, time.perf_counter()) == ([], "retrieve")
    door.set()
    assert taken(stages, quick(), 60) == ([1, 2], None)
    assert not begun
    stages.close()


def test_a_stage_that_begins_late_is_late_by_its_own_time(stages: Stages) -> None:
    door = threading.Event()
    stages.budgets = Budgets(retrieve=60_000, rank=1000 * SHORT)
    start = time.perf_counter()
    assert stages.take(stuck(door, 1), BOTH, start) == ([0], "rank")
    assert SHORT <= time.perf_counter() - start < 30
    door.set()


def test_a_stage_has_its_budget_or_what_is_left_of_all() -> None:
    budgets = Budgets(total=1000, rank=200)
    now = time.perf_counter()
    assert budgets.left("rank", now, now + 3600) == pytest.approx(1.0, abs=0.9)
    assert budgets.left("rank", now + 3600, now) == pytest.approx(0.2, abs=0.19)
    assert budgets.left("retrieve", now - 5, now) < 0  # type: ignore[operator]
    assert Budgets().left("rank", now, now) is None
    for endless in (1e13, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="budget `total` is"):
            Budgets(total=endless)
    with pytest.raises(ConfigError, match="budget `rank` is 0 ms"):
        Budgets(rank=0)


def test_what_is_missing_is_said_at_once_and_then_once_in_a_while() -> None:
    said: list[str] = []
    degraded = Degraded(said.append, seconds=SHORT)
    for _ in range(3):
        degraded.count("rank")
    degraded.count("store")
    assert said == [
        "ranking took too long: an answer in the order of the retrievers",
        "the store cannot be reached: an answer without what it knows",
    ]
    time.sleep(SHORT)
    degraded.count("rank")
    assert said[2:] == ["ranking took too long: 3 answers in the order of the retrievers"]
