"""Threads for application code."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tests.conftest import DEADLINE, eventually
from txlayer.runtime.pool import Job, Pool


def submit(pool: Pool, run: Callable[[], Any], done: list[Any] | None = None) -> tuple[Job, bool]:
    job = Job(run, lambda job: done.append(job.result) if done is not None else None)
    return job, pool.submit(job)


def test_jobs_run_on_a_bounded_number_of_threads() -> None:
    pool, done, gate = Pool("t", 3, 0), [], threading.Event()
    names: set[str] = set()

    def work() -> None:
        names.add(threading.current_thread().name)
        gate.wait(DEADLINE)

    for _ in range(10):
        submit(pool, work, done)
    eventually(lambda: len(names) == 3)
    gate.set()
    eventually(lambda: len(done) == 10)
    assert len(names) == 3
    pool.close()


def test_an_idle_thread_is_used_again() -> None:
    pool, done = Pool("t", 5, 0), []
    for number in range(5):
        submit(pool, lambda: None, done)
        eventually(lambda number=number: len(done) == number + 1)
        eventually(lambda: len(pool._resting) == 1)
    assert pool.threads == 1
    pool.close()


def test_the_thread_that_worked_last_is_woken_first() -> None:
    pool, done, gates = Pool("t", 3, 0), [], [threading.Event() for _ in range(3)]

    def work(gate: threading.Event) -> int:
        gate.wait(DEADLINE)
        return threading.get_ident()

    for gate in gates:
        submit(pool, lambda gate=gate: work(gate), done)
    for number, gate in enumerate(gates, 1):
        gate.set()
        eventually(lambda number=number: len(pool._resting) == number)
    last = done[-1]
    for number in range(4, 9):
        submit(pool, threading.get_ident, done)
        eventually(lambda number=number: len(done) == number and len(pool._resting) == 3)
    assert done[3:] == [last] * 5
    pool.close()


def test_a_job_that_is_submitted_when_another_is_done_is_taken_by_the_same_thread() -> None:
    pool, ran = Pool("t", 3, 0), []
    second = Job(lambda: ran.append(threading.get_ident()), lambda job: None)
    submit(pool, lambda: None)
    eventually(lambda: len(pool._resting) == 1)
    assert pool.submit(Job(lambda: ran.append(threading.get_ident()), lambda job: pool.submit(second)))
    eventually(lambda: len(ran) == 2)
    assert ran[0] == ran[1]
    assert pool.threads == 1
    pool.close()


def test_what_was_submitted_before_the_close_is_done() -> None:
    pool, done, gate = Pool("t", 1, 0), [], threading.Event()
    submit(pool, lambda: gate.wait(DEADLINE), done)
    submit(pool, lambda: "second", done)
    pool.close()
    gate.set()
    eventually(lambda: done == [True, "second"])


def test_jobs_that_wait_when_the_last_thread_gets_stuck_are_refused() -> None:
    pool, gate, ended = Pool("t", 1, 1), threading.Event(), []
    first, second = (submit(pool, lambda: gate.wait(DEADLINE))[0] for _ in range(2))
    waiting = Job(lambda: "never", ended.append)
    assert pool.submit(waiting)
    eventually(lambda: first.started is not None)
    assert pool.give_up(first)
    eventually(lambda: second.started is not None)
    assert (ended, waiting.refused) == ([], False)
    assert pool.give_up(second)
    assert (ended, waiting.refused) == ([waiting], True)
    gate.set()
    eventually(lambda: pool.stuck == 0)
    assert waiting.result is None
    assert submit(pool, lambda: "again")[1]
    pool.close()


def test_a_stuck_thread_is_replaced_up_to_the_cap_and_counted() -> None:
    pool, done, gate = Pool("t", 1, 2), [], threading.Event()
    jobs = []
    for number in range(3):
        job, taken = submit(pool, lambda: gate.wait(DEADLINE), done)
        assert taken
        eventually(lambda job=job: job.started is not None)
        assert pool.give_up(job)
        assert pool.stuck == number + 1
        jobs.append(job)
    assert pool.threads == 3
    assert not submit(pool, lambda: None, done)[1]
    gate.set()
    eventually(lambda: pool.stuck == 0)
    eventually(lambda: pool.threads == 1)
    assert submit(pool, lambda: "again", done)[1]
    eventually(lambda: done == ["again"], "what was given up tells nobody that it is done")
    pool.close()


def test_a_job_that_has_finished_cannot_be_given_up() -> None:
    pool, done = Pool("t", 1, 1), []
    job, _ = submit(pool, lambda: "done", done)
    eventually(lambda: done == ["done"])
    assert not pool.give_up(job)
    assert pool.stuck == 0
    pool.close()


def test_a_job_that_fails_costs_no_thread_and_is_done_without_a_result() -> None:
    pool, done = Pool("t", 1, 0), []
    submit(pool, lambda: 1 / 0, done)
    submit(pool, lambda: "next", done)
    eventually(lambda: done == [None, "next"])
    assert pool.threads == 1
    pool.close()


def test_a_thread_survives_an_end_that_fails() -> None:
    pool, done = Pool("t", 1, 0), []

    def fail(job: Job) -> None:
        raise ValueError("not taken")

    assert pool.submit(Job(lambda: None, fail))
    submit(pool, lambda: "next", done)
    eventually(lambda: done == ["next"])
    pool.close()
