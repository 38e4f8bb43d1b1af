"""Jobs run in few threads: that which was busy last, others only where it is busy, and no more than are allowed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from falconet.serve.pool import Pool

WAIT = 60


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool("of-a-test", 3)
    yield made
    made.close()


def run(pool: Pool, job: Callable[[], object] = lambda: None) -> tuple[threading.Event, list[int]]:
    """Whether a job has ended and its thread is free, and the thread."""
    ended, where = threading.Event(), list[int]()

    def work() -> Callable[[], None]:
        job()
        where.append(threading.get_ident())
        return ended.set

    pool.put(work)
    return ended, where


def test_one_job_after_the_other_takes_one_thread_however_many_there_are(pool: Pool) -> None:
    together = threading.Barrier(3)
    burst = [run(pool, together.wait) for _ in range(3)]
    assert all(ended.wait(WAIT) for ended, _ in burst)
    used = set()
    for _ in range(20):
        ended, where = run(pool)
        assert ended.wait(WAIT)
        used.update(where)
    assert len(used) == 1
    assert used <= {place for _, where in burst for place in where}


def test_what_is_too_much_waits_and_runs_in_its_order(pool: Pool) -> None:
    door, begun = threading.Event(), list[int]()
    busy = [run(pool, lambda: door.wait(WAIT)) for _ in range(3)]
    later = [run(pool, lambda i=i: begun.append(i)) for i in range(5)]  # type: ignore[misc]
    assert not begun
    door.set()
    assert all(ended.wait(WAIT) for ended, _ in [*busy, *later])
    assert sorted(begun) == list(range(5))
    assert len({place for _, where in [*busy, *later] for place in where}) <= 3


def test_a_thread_whose_job_does_not_end_is_replaced_and_ends_with_it(pool: Pool) -> None:
    door, threads = threading.Event(), list[threading.Thread]()

    def stuck() -> None:
        threads.append(threading.current_thread())
        door.wait(WAIT)

    for _ in range(3):
        pool.put(stuck)
    ended, where = run(pool)
    pool.replace()
    assert ended.wait(WAIT)
    assert where[0] not in [thread.ident for thread in threads]
    door.set()
    for thread in threads:
        thread.join(WAIT)
    assert not any(thread.is_alive() for thread in threads)


def test_a_closed_pool_ends_its_threads_after_what_they_do() -> None:
    pool, door, threads = Pool("of-a-test", 2), threading.Event(), list[threading.Thread]()

    def job() -> None:
        threads.append(threading.current_thread())
        door.wait(WAIT)

    running = [run(pool, job) for _ in range(4)]
    pool.close()
    door.set()
    assert all(ended.wait(WAIT) for ended, _ in running)
    for thread in threads:
        thread.join(WAIT)
    assert not any(thread.is_alive() for thread in threads)
