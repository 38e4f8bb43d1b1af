"""Work in bounded time: what is late is given up, does not pile up, and what it leaves behind is replaced."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from falconet.errors import ConfigError
from falconet.serve.stages import LOST, Budgets, Degraded, Late, Stages

SHORT = 0.02


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


def both(stages: Stages, steps: Iterator[int], seconds: float | None = None) -> list[int]:
    run = stages.start(steps, "retrieve", "rank")
    return [run.next(seconds), run.next(seconds)]


def test_stages_give_their_results_in_order(stages: Stages) -> None:
    before = ours()
    assert [both(stages, quick()) for _ in range(20)] == [[1, 2]] * 20
    assert ours() - before <= 2


def test_what_a_stage_raises_is_raised_where_it_is_awaited(stages: Stages) -> None:
    def wrong() -> Iterator[int]:
        yield 1
        raise ValueError("no")

    run = stages.start(wrong(), "retrieve", "rank")
    assert run.next(5) == 1
    with pytest.raises(ValueError, match="no"):
        run.next(5)
    assert both(stages, quick()) == [1, 2]


@pytest.mark.parametrize("at", [0, 1])
def test_stuck_stages_leave_room_for_others_and_do_not_pile_up(stages: Stages, at: int) -> None:
    door = threading.Event()
    before = ours()
    for _ in range(3 * LOST):
        with pytest.raises(Late):
            both(stages, stuck(door, at), SHORT)
    assert stages.lost == LOST  # the others were not begun
    assert ours() - before <= 2 + LOST
    start = time.perf_counter()
    with pytest.raises(Late):
        both(stages, stuck(door, at), 5)
    assert time.perf_counter() - start < 1  # what cannot begin is not waited for
    if at == 1:  # who is stuck in one stage is no hindrance to the other
        assert stages.start(quick(), "retrieve", "rank").next(5) == 1
    door.set()
    assert soon(lambda: stages.lost == 0)
    assert both(stages, quick(), 5) == [1, 2]
    assert soon(lambda: ours() - before <= 2)


def test_many_at_once_are_answered_or_late_in_bounded_threads(stages: Stages) -> None:
    door, before, late = threading.Event(), ours(), []

    def ask() -> None:
        try:
            both(stages, stuck(door, 1), SHORT)
        except Late:
            late.append(1)

    many = [threading.Thread(target=ask) for _ in range(40)]
    for one in many:
        one.start()
    for one in many:
        one.join()
    assert len(late) == 40
    assert ours() - before <= 2 + LOST - 1 + 2
    door.set()
    assert soon(lambda: stages.lost == 0)
    assert both(stages, quick(), 5) == [1, 2]


def test_work_that_nobody_waits_for_any_more_is_not_begun() -> None:
    stages, door, begun = Stages(Budgets(), threads=1), threading.Event(), []

    def noted() -> Iterator[int]:
        begun.append(1)
        yield 1

    first = stages.start(stuck(door, 0), "retrieve")
    second = stages.start(noted(), "retrieve")
    with pytest.raises(Late):
        second.next(SHORT)
    door.set()
    assert first.next(5) == 0
    assert stages.start(quick(), "retrieve").next(5) == 1
    assert not begun
    stages.close()


def test_a_stage_has_its_budget_or_what_is_left_of_all() -> None:
    budgets = Budgets(total=1000, rank=200)
    now = time.perf_counter()
    assert budgets.left("rank", now) == pytest.approx(0.2, abs=0.1)
    assert budgets.left("retrieve", now - 0.9) == pytest.approx(0.1, abs=0.09)
    assert budgets.left("rank", now - 5) < 0  # type: ignore[operator]
    assert Budgets().left("rank", now) is None
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
